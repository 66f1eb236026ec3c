"""A job record as a JSON object: for imports from other systems, and for local runs.

Keys are the fields of JobRecord; `jobid`, `submit_time` and `state` are required, all others may be
missing or null. Times are epoch seconds or RFC 3339 with a zone, `state` is a value of JobState,
`nodes` a list of names or of objects with the fields of NodeShare, `steps` a list of objects with
the fields of StepRecord, `reallocations` one of objects with those of Reallocation.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from math import inf
from typing import Any, NamedTuple, get_type_hints

from batchjob.runtime.settings import suggest_nearest
from batchjob.schedulers.fields import RowError, sanitize_text
from batchjob.schedulers.records import JobRecord, NodeShare, Reallocation, StepRecord
from batchjob.schedulers.states import JobState

_LIMIT = 2**63
_TIMES = (
    "submit_time", "expected_start_time", "eligible_time", "start_time", "end_time", "until_time"
)  # fmt: skip
_NESTED: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "nodes": (NodeShare, ("node",)),
    "steps": (StepRecord, ("step", "state")),
    "reallocations": (Reallocation, ("until_time",)),
}
"""The record of each object in these lists, and its fields without which it is none."""
_SIGNED = frozenset((
    "priority", "exit_code", "derived_exit_code", "resized_cpu_seconds", "resized_gpu_seconds",
    "resized_memory_byte_seconds",
))  # fmt: skip
"""The numbers that may be negative."""


def _parse_text(value: Any) -> str:
    if isinstance(value, str):
        return sanitize_text(value)
    raise ValueError(f"expected text, got {_shortened_json(value)}")


def _parse_integer(value: Any, least: int = 0) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value < _LIMIT:
        return value
    raise ValueError(f"expected a whole number of at least {least}, got {_shortened_json(value)}")


def _parse_number(value: Any, least: float = 0) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value < inf:
        return float(value)
    raise ValueError(f"expected a number of at least {least:g}, got {_shortened_json(value)}")


def _parse_time(value: Any) -> float:
    """Epoch seconds, to the millisecond."""
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            at = None
        if at is not None and at.tzinfo is not None:
            return _round_to_milliseconds(at.timestamp())
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**40:
        return _round_to_milliseconds(value)
    raise ValueError(f"expected epoch seconds or a time with a zone, got {_shortened_json(value)}")


def _round_to_milliseconds(seconds: float) -> float:
    """A time with milliseconds; whole seconds as int, to be written without a fraction."""
    rounded = round(seconds, 3)
    return int(rounded) if rounded % 1 == 0 else rounded


def _parse_whole_time(value: Any) -> int:
    return int(_parse_time(value))


def _parse_state(value: Any) -> JobState:
    try:
        return JobState(str(value).upper())
    except ValueError as error:
        words = ", ".join(JobState)
        raise ValueError(f"expected one of {words}, got {_shortened_json(value)}") from error


def _shortened_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:40]


_Parser = Callable[[Any], Any]


def _field_parsers(record: type[NamedTuple]) -> dict[str, _Parser]:
    by_type: dict[Any, _Parser] = {
        str: _parse_text,
        int: _parse_integer,
        int | None: _parse_integer,
        float | None: _parse_number,
        JobState: _parse_state,
    }
    signed = by_type | {
        int | None: partial(_parse_integer, least=-_LIMIT),
        float | None: partial(_parse_number, least=-1e24),
    }
    times: dict[Any, _Parser] = dict.fromkeys((int, int | None), _parse_whole_time)
    times |= dict.fromkeys((float, float | None), _parse_time)
    types = get_type_hints(record)

    def parsers_of(name: str) -> Mapping[Any, _Parser]:
        if name in _TIMES:
            return times
        return signed if name in _SIGNED or record is Reallocation else by_type

    return {name: parsers_of(name)[types[name]] for name in types if name not in _NESTED}


_NOT_HELD = {
    name: default
    for name, default in JobRecord._field_defaults.items()
    if name.startswith(("allocated_", "resized_", "node_list", "nodes", "reallocations"))
}

_JOB_PARSERS = _field_parsers(JobRecord)
_NESTED_PARSERS = {name: _field_parsers(record) for name, (record, _) in _NESTED.items()}


def decode(document: Any, cluster: str, source: str) -> tuple[JobRecord, tuple[str, ...]]:
    """The record of an object, and what of it could not be used; raises RowError for no job.

    `cluster` and `source` replace the values in the object.
    """
    if not isinstance(document, dict):
        raise RowError(f"expected a JSON object, got {_shortened_json(document)}")
    for name in ("jobid", "submit_time", "state"):
        if document.get(name) in (None, ""):
            raise RowError(f"{name} is missing")
        try:
            _JOB_PARSERS[name](document[name])
        except ValueError as error:
            raise RowError(f"{name}: {error}") from error
    parse_errors: list[str] = []
    flat = {name: value for name, value in document.items() if name not in _NESTED}
    values = _parse_fields(flat, _JOB_PARSERS, "", parse_errors)
    nested = {name: _parse_objects(document, name, parse_errors) for name in _NESTED}
    record = JobRecord(**values | nested | {"cluster": cluster, "source": source})
    if not record.state.is_live and record.start_time is None and record.elapsed_seconds is None:
        record = record._replace(**_NOT_HELD)  # it never started: what is stated was requested
    return record, tuple(parse_errors)


def _parse_fields(
    document: Mapping[str, Any],
    parsers: Mapping[str, _Parser],
    prefix: str,
    parse_errors: list[str],
) -> dict[str, Any]:
    values = {}
    for name, value in document.items():
        parse = parsers.get(name)
        if value is None:
            continue
        if parse is None:
            parse_errors.append(
                f"{prefix}{name[:80]}: unknown field{suggest_nearest(name, (*parsers, *_NESTED))}"
            )
            continue
        try:
            values[name] = parse(value)
        except ValueError as error:
            parse_errors.append(f"{prefix}{name}: {error}")
    if "state" in values:
        values.setdefault("state_word", values["state"].value)
    return values


def _parse_objects(
    document: Mapping[str, Any], name: str, parse_errors: list[str]
) -> tuple[Any, ...]:
    """The records of a list, unique by key; a plain text is an object with that key."""
    items = document.get(name) or []
    if not isinstance(items, list):
        parse_errors.append(f"{name}: expected a list, got {_shortened_json(items)}")
        return ()
    record, required = _NESTED[name]
    by_key = {}
    for item in items:
        fields = item if isinstance(item, dict) else {required[0]: item}
        values = _parse_fields(fields, _NESTED_PARSERS[name], f"{name}: ", parse_errors)
        missing = [field for field in required if not values.get(field)]
        if missing:
            parse_errors.append(f"{name}: {missing[0]} is missing")
        else:
            by_key[values[required[0]]] = record(**values)
    return tuple(by_key.values())


def encode(job: JobRecord) -> dict[str, Any]:
    """The object of a record, without unknown values; the inverse of decode()."""
    document = _known_fields(job)
    document.update((name, [*map(_known_fields, getattr(job, name))]) for name in _NESTED)
    return {name: value for name, value in document.items() if value != []}


def _known_fields(record: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in record._asdict().items()
        if value is not None and value not in ("", ())
    }

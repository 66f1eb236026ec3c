"""A job record as a JSON object: for imports from other systems, and for local runs.

Keys are the fields of JobRecord; `jobid`, `submit_time` and `state` are required, all others may be
missing or null. Times are epoch seconds or RFC 3339 with a zone, `state` is a value of JobState,
`nodes` a list of names or of objects with the fields of NodeShare, `steps` a list of objects with
the fields of StepRecord.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, get_type_hints

from batchjob.schedulers.fields import RowError, clean
from batchjob.schedulers.records import JobRecord, NodeShare, StepRecord
from batchjob.schedulers.states import JobState

_LARGEST = 2**63
_TIMES = ("submit_time", "expected_start_time", "eligible_time", "start_time", "end_time")
_NESTED = ("nodes", "steps")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return clean(value)
    raise ValueError(f"expected text, got {_shown(value)}")


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST:
        return value
    raise ValueError(f"expected a whole number of at least 0, got {_shown(value)}")


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST:
        return float(value)
    raise ValueError(f"expected a number of at least 0, got {_shown(value)}")


def _time(value: Any) -> float:
    """Epoch seconds, to the millisecond."""
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            at = None
        if at is not None and at.tzinfo is not None:
            return _milliseconds(at.timestamp())
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**40:
        return _milliseconds(value)
    raise ValueError(f"expected epoch seconds or a time with a zone, got {_shown(value)}")


def _milliseconds(seconds: float) -> float:
    """A time with milliseconds; whole seconds as int, to be written without a fraction."""
    rounded = round(seconds, 3)
    return int(rounded) if rounded % 1 == 0 else rounded


def _whole_time(value: Any) -> int:
    return int(_time(value))


def _state(value: Any) -> JobState:
    try:
        return JobState(str(value).upper())
    except ValueError as error:
        words = ", ".join(JobState)
        raise ValueError(f"expected one of {words}, got {_shown(value)}") from error


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:40]


def _parsers(record: type[NamedTuple]) -> dict[str, Callable[[Any], Any]]:
    by_type: dict[Any, Callable[[Any], Any]] = {
        str: _text,
        int: _integer,
        int | None: _integer,
        float | None: _number,
        JobState: _state,
    }
    times = {int: _whole_time, int | None: _whole_time, float | None: _time}
    hints = get_type_hints(record)
    return {
        name: (times if name in _TIMES else by_type)[hints[name]]
        for name in hints
        if name not in _NESTED
    }


_JOB, _STEP, _NODE = map(_parsers, (JobRecord, StepRecord, NodeShare))


class Decoded(NamedTuple):
    """A record, and the parts of the object that could not be used."""

    job: JobRecord
    complaints: tuple[str, ...]


def decode(document: Any, cluster: str, source: str) -> Decoded:
    """The record of an object; raises RowError if it cannot be a job.

    `cluster` and `source` are set by the reader, whatever the object says.
    """
    if not isinstance(document, dict):
        raise RowError(f"expected a JSON object, got {_shown(document)}")
    for name in ("jobid", "submit_time", "state"):
        if document.get(name) in (None, ""):
            raise RowError(f"{name} is missing")
        try:
            _JOB[name](document[name])
        except ValueError as error:
            raise RowError(f"{name}: {error}") from error
    complaints: list[str] = []
    flat = {name: value for name, value in document.items() if name not in _NESTED}
    values = _fields(flat, _JOB, "", complaints)
    nodes = [NodeShare(**each) for each in _objects(document, "nodes", _NODE, "node", complaints)]
    steps = []
    for each in _objects(document, "steps", _STEP, "step", complaints):
        if "state" in each:
            steps.append(StepRecord(**{"state_word": each["state"].value} | each))
        else:
            complaints.append("steps: state is missing")
    words = {"state_word": values["state"].value}
    fixed = {"cluster": cluster, "source": source, "nodes": tuple(nodes), "steps": tuple(steps)}
    return Decoded(JobRecord(**words | values | fixed), tuple(complaints))


def _fields(
    document: Mapping[str, Any],
    parsers: Mapping[str, Callable[[Any], Any]],
    where: str,
    complaints: list[str],
) -> dict[str, Any]:
    values = {}
    for name, value in document.items():
        parse = parsers.get(name)
        if value is None:
            continue
        if parse is None:
            complaints.append(f"{where}{name[:80]}: unknown field")
            continue
        try:
            values[name] = parse(value)
        except ValueError as error:
            complaints.append(f"{where}{name}: {error}")
    return values


def _objects(
    document: Mapping[str, Any],
    name: str,
    parsers: Mapping[str, Callable[[Any], Any]],
    key: str,
    complaints: list[str],
) -> list[dict[str, Any]]:
    """The objects of a list, unique by key; a plain text is an object with that key."""
    given = document.get(name) or []
    if not isinstance(given, list):
        complaints.append(f"{name}: expected a list, got {_shown(given)}")
        return []
    found: dict[str, dict[str, Any]] = {}
    for each in given:
        inner = each if isinstance(each, dict) else {key: each}
        values = _fields(inner, parsers, f"{name}: ", complaints)
        if values.get(key):
            found[values[key]] = values
        else:
            complaints.append(f"{name}: {key} is missing")
    return list(found.values())


def encode(job: JobRecord) -> dict[str, Any]:
    """The object of a record, without unknown values; the inverse of decode()."""
    document = _said(job)
    document["nodes"] = [_said(node) for node in job.nodes]
    document["steps"] = [_said(step) for step in job.steps]
    return {name: value for name, value in document.items() if value != []}


def _said(record: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in record._asdict().items()
        if value is not None and value not in ("", ())
    }

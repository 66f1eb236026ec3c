"""Lines of a sample file: one self-contained JSON object for each sample.

    {"time": 1775300000.0, "manager": "slurm", "jobid": "1", "user": "alice", "node": "n001",
     "interval_seconds": 5.0, "cpu_user_seconds": 19.9, "io": {"sda": {"read_bytes": 4096}}}

Counters are totals since the job began. Values that were not read are not in the line.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from batchjob.quantities.quantity import SampleGroup
from batchjob.quantities.sample import (
    BY_NAME,
    BY_NAME_IN_GROUP,
    SAMPLE_GROUPS,
    JobSample,
    SampleHeader,
    SampleKey,
)
from batchjob.runtime.json_reader import parse_json

_TOO_LARGE = 2.0**63


class LineError(ValueError):
    """Not a line of a sample file."""


def encode_line(header: SampleHeader, sample: JobSample) -> bytes:
    document = {"time": round(sample.at, 2), **header._asdict(), **group_values(sample.values)}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def group_values(values: Mapping[SampleKey, float]) -> dict[str, Any]:
    """The values of a sample by name; those of devices, GPUs ... are in nested objects."""
    document: dict[str, Any] = {}
    for name, value in values.items():
        quantity = BY_NAME[name.quantity]
        digits = quantity.digits
        rounded = round(value, digits) if digits else round(value)
        if quantity.group is None:
            document[quantity.name] = rounded
            continue
        group, member = document.setdefault(quantity.group.name, {}), " ".join(name.of)
        if quantity.name_in_group:
            group.setdefault(member, {})[quantity.name_in_group] = rounded
        else:
            group[member] = rounded
    return document


def flatten_values(document: Mapping[str, Any]) -> dict[SampleKey, float]:
    """The values of a document; raises LineError. Names of later versions are ignored."""
    return {
        name: value for key, content in document.items() for name, value in _flatten(key, content)
    }


class Decoder:
    """Reads the lines of one file in order, and reports what has changed."""

    def __init__(self) -> None:
        self.header: SampleHeader | None = None
        self.values: dict[SampleKey, float] = {}
        # Keys that the last line changed; removed ones are not in `values`.
        self.changed: set[SampleKey] = set()
        self._before: Mapping[str, Any] = {}

    def advance(self, text: bytes) -> float:
        """Read the next line into `values`; returns its time. Raises LineError."""
        document = _parse_object(text)
        at = document.pop("time", None)
        if not _is_number(at):
            raise LineError("expected a `time`")
        if self.header is None:
            self.header = _read_header(document)
        before, self._before = self._before, document
        self.changed.clear()
        for key in {**before, **document}:
            old, new = before.get(key), document.get(key)
            if old != new or type(old) is not type(new):
                self._change(dict(_flatten(key, old)), dict(_flatten(key, new)))
        return float(at)

    def _change(self, old: dict[SampleKey, float], new: dict[SampleKey, float]) -> None:
        for name in old.keys() - new.keys():
            del self.values[name]
            self.changed.add(name)
        for name, value in new.items():
            if old.get(name) != value:
                self.values[name] = value
                self.changed.add(name)


def _flatten(key: str, content: Any) -> Iterator[tuple[SampleKey, float]]:
    """The numbers under one name of a document."""
    if content is None:
        return
    if (group := SAMPLE_GROUPS.get(key)) is not None:
        yield from _flatten_group(group, content)
    elif key in BY_NAME:
        yield SampleKey(key), _check_number(key, content)


def _flatten_group(group: SampleGroup, content: Any) -> Iterator[tuple[SampleKey, float]]:
    if not isinstance(content, dict):
        raise LineError(f"expected an object as {group.name}, got {content!r:.40}")
    label_count = len(group.labels)
    for text, member in content.items():
        of = tuple(text.split(" ", label_count - 1)) if label_count > 1 else (text,)
        if len(of) != label_count:
            raise LineError(f"expected {label_count} names for {group.name}, got {text!r:.40}")
        for name_in_group, number in (
            member.items() if isinstance(member, dict) else (("", member),)
        ):
            quantity = BY_NAME_IN_GROUP.get((group.name, name_in_group))
            if quantity is not None and number is not None:
                yield SampleKey(quantity.name, of), _check_number(quantity.name, number)


def _check_number(name: str, value: Any) -> float:
    if not _is_number(value):
        raise LineError(f"expected a number as {name}, got {value!r:.40}")
    number: float = value
    return number


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -_TOO_LARGE < value < _TOO_LARGE  # type: ignore[operator]


def _read_header(document: Mapping[str, Any]) -> SampleHeader:
    try:
        found = SampleHeader(**{field: document[field] for field in SampleHeader._fields})
    except KeyError as error:
        raise LineError(f"expected {error}") from None
    if not all(isinstance(part, str) for part in found[:-1]) or not _is_number(found[-1]):
        raise LineError("expected names, and a number as interval_seconds")
    return found


def _parse_object(text: bytes) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except ValueError as error:
        raise LineError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise LineError(f"expected an object, got {text[:40]!r}")
    return document

"""Lines of a sample file: one self-contained JSON object for each sample.

    {"time": 1775300000.0, "manager": "slurm", "jobid": "1", "user": "alice", "node": "n001",
     "interval_seconds": 5.0, "cpu_user_seconds": 19.9, "io": {"sda": {"read_bytes": 4096}}}

Counters are totals since the job began. Values that were not read are not in the line.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from batchjob.quantities.index import BY_NAME, SAMPLE_GROUPS, WITHIN
from batchjob.quantities.quantity import SampleGroup
from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey

_TOO_LARGE = 2.0**63


class LineError(ValueError):
    """Not a line of a sample file."""


def line(who: SampleHeader, sample: JobSample) -> bytes:
    """The line of a sample."""
    document = {"time": round(sample.at, 2), **who._asdict(), **numbers(sample.values)}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def numbers(values: Mapping[SampleKey, float]) -> dict[str, Any]:
    """The numbers of a sample by name; those of devices, GPUs ... in objects."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        quantity = BY_NAME[name.quantity]
        digits = quantity.digits
        told = round(value, digits) if digits else round(value)
        if quantity.group is None:
            made[quantity.name] = told
            continue
        group, of = made.setdefault(quantity.group.name, {}), " ".join(name.of)
        if quantity.within:
            group.setdefault(of, {})[quantity.within] = told
        else:
            group[of] = told
    return made


def values(document: Mapping[str, Any]) -> dict[SampleKey, float]:
    """The numbers of a document; raises LineError. Names of later versions are ignored."""
    return {name: value for key, told in document.items() for name, value in _flat(key, told)}


class Decoder:
    """Reads the lines of one file in order, and reports what has changed."""

    def __init__(self) -> None:
        self.who: SampleHeader | None = None
        self.values: dict[SampleKey, float] = {}
        # Keys that the last line changed; removed ones are not in `values`.
        self.changed: set[SampleKey] = set()
        self._before: Mapping[str, Any] = {}

    def advance(self, text: bytes) -> float:
        """Read the next line into `values`; returns its time. Raises LineError."""
        document = _document(text)
        at = document.pop("time", None)
        if not _number(at):
            raise LineError("expected a `time`")
        if self.who is None:
            self.who = _who(document)
        before, self._before = self._before, document
        self.changed.clear()
        for key in {**before, **document}:
            old, new = before.get(key), document.get(key)
            if old != new or type(old) is not type(new):
                self._change(dict(_flat(key, old)), dict(_flat(key, new)))
        return float(at)

    def _change(self, old: dict[SampleKey, float], new: dict[SampleKey, float]) -> None:
        for name in old.keys() - new.keys():
            del self.values[name]
            self.changed.add(name)
        for name, value in new.items():
            if old.get(name) != value:
                self.values[name] = value
                self.changed.add(name)


def _flat(key: str, told: Any) -> Iterator[tuple[SampleKey, float]]:
    """The numbers under one name of a document."""
    if told is None:
        return
    if (group := SAMPLE_GROUPS.get(key)) is not None:
        yield from _flat_group(group, told)
    elif key in BY_NAME:
        yield SampleKey(key), _checked(key, told)


def _flat_group(group: SampleGroup, told: Any) -> Iterator[tuple[SampleKey, float]]:
    if not isinstance(told, dict):
        raise LineError(f"expected an object as {group.name}, got {told!r:.40}")
    several = len(group.labels)
    for text, of_one in told.items():
        of = tuple(text.split(" ", several - 1)) if several > 1 else (text,)
        if len(of) != several:
            raise LineError(f"expected {several} names for {group.name}, got {text!r:.40}")
        for within, number in of_one.items() if isinstance(of_one, dict) else (("", of_one),):
            quantity = WITHIN.get((group.name, within))
            if quantity is not None and number is not None:
                yield SampleKey(quantity.name, of), _checked(quantity.name, number)


def _checked(name: str, value: Any) -> float:
    if not _number(value):
        raise LineError(f"expected a number as {name}, got {value!r:.40}")
    number: float = value
    return number


def _number(value: object) -> bool:
    return type(value) in (int, float) and -_TOO_LARGE < value < _TOO_LARGE  # type: ignore[operator]


def _who(document: Mapping[str, Any]) -> SampleHeader:
    try:
        found = SampleHeader(**{field: document[field] for field in SampleHeader._fields})
    except KeyError as error:
        raise LineError(f"expected {error}") from None
    if not all(isinstance(part, str) for part in found[:-1]) or not _number(found[-1]):
        raise LineError("expected names, and a number as interval_seconds")
    return found


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise LineError(f"expected an object, got {text[:40]!r}")
    return document

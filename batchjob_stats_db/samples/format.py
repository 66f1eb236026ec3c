"""Lines of a sample file.

The first says whose samples follow. Each further one is a sample, and holds only what has changed:
a gauge its new value, a counter how much it grew; `null` is what is no longer there. So the first
sample of a file holds all, and `t`, which is seconds, is epoch time there and the time since the
line before in all others.
"""

import json
from collections.abc import Mapping
from typing import Any

from batchjob.quantities.sample import (
    BY_KEY,
    BY_NAME,
    GROUP_BY_KEY,
    JobSample,
    Quantity,
    SampleHeader,
    SampleKey,
)

VERSION = 1
_TICKS = 100  # of time, to the second


class LineError(ValueError):
    """Not a line of a sample file."""


def first(who: SampleHeader) -> bytes:
    """The line that begins a file."""
    return _line({"batchjob": VERSION, **who._asdict()})


def who(text: bytes) -> SampleHeader:
    """Read the first line; raises LineError."""
    document = _document(text)
    version = document.pop("batchjob", None)
    if version != VERSION:
        raise LineError(f"expected samples of version {VERSION}, got {version!r:.20}")
    try:
        found = SampleHeader(**{field: document[field] for field in SampleHeader._fields})
    except KeyError as error:
        raise LineError(f"expected {error} in the first line") from None
    interval = found.interval
    if not all(isinstance(part, str) for part in found[:-1]) or not _number(interval):
        raise LineError("expected names and an interval in the first line")
    return found


class Encoder:
    """Makes the lines of one file from its samples."""

    def __init__(self) -> None:
        self._ticks: int | None = None
        self._counts: dict[SampleKey, int] = {}

    def line(self, sample: JobSample) -> bytes:
        """The next line."""
        ticks = round(sample.at * _TICKS)
        counts = {
            name: round(value * BY_NAME[name.quantity].per_unit)
            for name, value in sample.values.items()
        }
        document: dict[str, Any] = {"t": _seconds(ticks - (self._ticks or 0))}
        for name, count in counts.items():
            before = self._counts.get(name)
            if count != before:
                quantity = BY_NAME[name.quantity]
                grown = count - before if quantity.counter and before is not None else count
                _place(document, quantity, name, grown)
        for name in self._counts.keys() - counts.keys():
            _place(document, BY_NAME[name.quantity], name, None)
        self._ticks, self._counts = ticks, counts
        return _line(document)


class Decoder:
    """Reads the lines of one file, in their order."""

    def __init__(self) -> None:
        self._ticks = 0
        self.counts: dict[SampleKey, int] = {}
        self.changed: set[SampleKey] = (
            set()
        )  # by the last line; those no longer in `counts` are gone

    def sample(self, text: bytes) -> JobSample:
        """The sample of the next line; raises LineError."""
        at = self.advance(text)
        return JobSample(at, {n: c / BY_NAME[n.quantity].per_unit for n, c in self.counts.items()})

    def advance(self, text: bytes) -> float:
        """Read the next line into `counts`, and say of which time it is; raises LineError."""
        document = _document(text)
        seconds = document.pop("t", None)
        if not _number(seconds):
            raise LineError("expected the time as `t`")
        self._ticks += round(seconds * _TICKS)
        self.changed.clear()
        for key, told in document.items():
            if (quantity := BY_KEY.get(("", key))) is not None:
                self._take(quantity, (), told)
            elif key in GROUP_BY_KEY and isinstance(told, dict):
                for of, numbers in told.items():
                    self._take_group(key, of, numbers)
        return self._ticks / _TICKS

    def _take_group(self, group: str, of: str, numbers: Any) -> None:
        several = len(GROUP_BY_KEY[group].labels)
        names = tuple(of.split(" ", several - 1)) if several > 1 else (of,)
        if len(names) != several:
            raise LineError(f"expected {several} names for {group}, got {of!r:.40}")
        for key, told in numbers.items() if isinstance(numbers, dict) else (("", numbers),):
            # What a later version adds has a key unknown to this one.
            if (quantity := BY_KEY.get((group, key))) is not None:
                self._take(quantity, names, told)

    def _take(self, quantity: Quantity, of: tuple[str, ...], told: Any) -> None:
        name = SampleKey(quantity.name, of)
        self.changed.add(name)
        if told is None:
            self.counts.pop(name, None)
        elif type(told) is not int or abs(told) >= 1 << 63:  # a bool is none
            raise LineError(f"expected a whole number, got {told!r:.40}")
        else:
            self.counts[name] = told + (self.counts.get(name, 0) if quantity.counter else 0)


def _place(
    document: dict[str, Any], quantity: Quantity, name: SampleKey, number: int | None
) -> None:
    if not quantity.group:
        document[quantity.key] = number
        return
    group = document.setdefault(quantity.group, {})
    of = " ".join(name.of)
    if quantity.key:
        group.setdefault(of, {})[quantity.key] = number
    else:
        group[of] = number


def _seconds(ticks: int) -> float | int:
    return ticks // _TICKS if ticks % _TICKS == 0 else ticks / _TICKS


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise LineError(f"expected an object, got {text[:40]!r}")
    return document

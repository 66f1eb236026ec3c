"""One row of a scheduler's answer, read field by field.

A field that cannot be read counts as not said, and the row goes to the quarantine as well as on
record: a job is not lost because its memory was written in an unknown way.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from batchjob.schedulers.records import RAW_LIMIT, Quarantined

T = TypeVar("T")

TEXT_LIMIT = 16_384  # characters of a job's name, submit line ... that are kept
_LATEST = 2**40  # seconds; a "time" beyond is a number of something else


class RowError(ValueError):
    """The row has no usable key or state, so it cannot be a job's."""


class FieldReader:
    """Values by name; `complaints` grows with each that cannot be read."""

    __slots__ = ("complaints", "values")

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.complaints: list[str] = []

    def text(self, name: str) -> str:
        """The text, fit for a database; "" where there is none."""
        raw = self.values.get(name)
        return clean(raw) if raw else ""

    def get(self, name: str, parse: Callable[[str], T | None]) -> T | None:
        """The parsed value; None where there is none or it cannot be read."""
        raw = self.values.get(name)
        if not raw:
            return None
        try:
            return parse(raw)
        except ValueError as error:
            self.complaints.append(f"{name}: {error}")
            return None

    def need(self, name: str, parse: Callable[[str], T | None]) -> T:
        """The parsed value; raises RowError where there is none."""
        try:
            value = parse(self.values.get(name, ""))
        except ValueError as error:
            raise RowError(f"{name}: {error}") from error
        if value is None:
            raise RowError(f"{name} is missing")
        return value


def clean(text: str) -> str:
    """Text any database takes: no NUL, no half of a surrogate pair, of bounded length."""
    text = text[:TEXT_LIMIT]
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def quarantined(source: str, reason: str, raw: str) -> Quarantined:
    """A row for the quarantine, with its text cut to a bearable length."""
    return Quarantined(source, clean(reason), clean(raw[:RAW_LIMIT]))


def integer(text: str) -> int:
    """A whole number that a database can hold; may be negative."""
    digits = text if text.isdigit() else text.removeprefix("-")
    if digits.isdigit() and digits.isascii() and len(digits) <= 18:
        return int(text)
    raise ValueError(f"expected a whole number, got {text[:40]!r}")


def count(text: str) -> int | None:
    """A whole number; None for a negative one, which schedulers write for "not set"."""
    number = integer(text)
    return None if number < 0 else number


def seconds(text: str) -> float | None:
    """Seconds with a fraction; None for a negative number ("not measured")."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) <= _LATEST:
        raise ValueError(f"expected seconds, got {text[:40]!r}")
    return None if number < 0 else number


_NO_TIME = frozenset(("", "0", "Unknown", "None", "N/A"))


def epoch(text: str) -> int | None:
    """Epoch seconds; None for 0, `Unknown` (not yet) and `None` (never)."""
    if text in _NO_TIME:
        return None
    at = integer(text)
    if not 0 < at < _LATEST:
        raise ValueError(f"expected epoch seconds, got {text[:40]!r}")
    return at


_CLOCK = re.compile(r"(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,12}(?:\.\d{1,9})?)", re.ASCII)


def clock_duration(text: str) -> float:
    """Seconds of `[[HH:]MM:]SS[.fraction]`; hours go beyond 24."""
    match = _CLOCK.fullmatch(text)
    if not match:
        raise ValueError(f"expected a duration such as 26:00:00, got {text[:40]!r}")
    hours, minutes, seconds = match.groups()
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)


class HostListError(ValueError):
    """Not a host list, or one of more hosts than the limit."""


class HostShare(NamedTuple):
    """What a job has on one host; None where the list does not say."""

    cpus: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None

    def plus(self, other: "HostShare") -> "HostShare":
        """Both together; a part that only one of them says is that one's."""
        return HostShare(
            *(
                mine if theirs is None else (mine or 0) + theirs
                for mine, theirs in zip(self, other, strict=True)
            )
        )


def summed(parts: Iterable[tuple[str, HostShare]]) -> dict[str, HostShare]:
    """One share for each host, of all its parts."""
    shares: dict[str, HostShare] = {}
    for host, share in parts:
        known = shares.get(host)
        shares[host] = share if known is None else known.plus(share)
    return shares


def host_count(text: str, whole: str) -> int:
    """A number in the host list `whole`; raises HostListError."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise HostListError(f"expected a number, got {text[:20]!r} in {whole[:80]!r}")

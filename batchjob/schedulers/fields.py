"""Reads one row of a scheduler's answer, field by field.

A field that cannot be parsed counts as missing, and the row is written to the quarantine in
addition to the job: no job is lost because its memory has an unknown format.
"""

import calendar
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from batchjob.runtime.json_reader import repeated_names
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.records import RAW_LIMIT, NodeShare, QuarantinedRow

T = TypeVar("T")

TEXT_LIMIT = 16_384  # maximum length of a job's name, submit line ...
_MAX_SECONDS = 2**40  # seconds; a larger number is not a time


class RowError(ValueError):
    """The row has no usable key or state, so it cannot be a job."""


def row_problem(error: Exception) -> str:
    """What is wrong with a row, whatever reading it raised: the others must still be read.

    Raises the error where it is of a file or of the scheduler's program instead.
    """
    if isinstance(error, OSError | SchedulerError):
        raise error
    return str(error) if isinstance(error, RowError) else f"it cannot be read: {error!r}"


class FieldReader:
    """Values by name; `parse_errors` lists those that cannot be parsed, or stand twice."""

    __slots__ = ("parse_errors", "values")

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.parse_errors = [f"{name} stands twice" for name in repeated_names(values)]

    def text(self, name: str) -> str:
        """The text in a form that a database accepts; "" if there is none."""
        raw = self.values.get(name)
        return sanitize_text(raw) if raw else ""

    def get(self, name: str, parse: Callable[[str], T | None]) -> T | None:
        """The parsed value; None if it is missing or cannot be parsed."""
        raw = self.values.get(name)
        if not raw:
            return None
        try:
            return parse(raw)
        except ValueError as error:
            self.parse_errors.append(f"{name}: {error}")
            return None

    def require(self, name: str, parse: Callable[[str], T | None]) -> T:
        """The parsed value; raises RowError if it is missing."""
        try:
            value = parse(self.values.get(name, ""))
        except ValueError as error:
            raise RowError(f"{name}: {error}") from error
        if value is None:
            raise RowError(f"{name} is missing")
        return value


def sanitize_text(text: str) -> str:
    """Make text acceptable to any database: no NUL, no lone surrogate, of limited length."""
    text = text[:TEXT_LIMIT]
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def quarantined_row(source: str, reason: str, raw: str, jobid: str = "") -> QuarantinedRow:
    return QuarantinedRow(
        source, sanitize_text(reason), sanitize_text(raw[:RAW_LIMIT]), jobid=jobid
    )


def integer(text: str) -> int:
    """A whole number that a database can store; may be negative."""
    digits = text if text.isdigit() else text.removeprefix("-")
    if digits.isdigit() and digits.isascii() and len(digits) <= 18:
        return int(text)
    raise ValueError(f"expected a whole number, got {text[:40]!r}")


def count(text: str) -> int | None:
    """A whole number; None if negative, which schedulers write for "not set"."""
    number = integer(text)
    return None if number < 0 else number


def seconds(text: str) -> float | None:
    """Seconds with a fraction; None if negative ("not measured")."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) <= _MAX_SECONDS:
        raise ValueError(f"expected seconds, got {text[:40]!r}")
    return None if number < 0 else number


_NO_TIME = frozenset(("", "0", "Unknown", "None", "N/A"))


def epoch(text: str) -> int | None:
    """Epoch seconds; None for 0, `Unknown` (not yet) and `None` (never)."""
    if text in _NO_TIME:
        return None
    at = integer(text)
    if not 0 < at < _MAX_SECONDS:
        raise ValueError(f"expected epoch seconds, got {text[:40]!r}")
    return at


_CLOCK = re.compile(r"(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,12}(?:\.\d{1,9})?)", re.ASCII)


def utc_time(text: str, *forms: str) -> int | None:
    """Epoch seconds of a time in UTC in one of these formats (strptime(3)); None for others."""
    for form in forms:
        try:
            return calendar.timegm(time.strptime(text, form))
        except ValueError:
            continue
    return None


def clock_duration(text: str) -> float:
    """Seconds of `[[HH:]MM:]SS[.fraction]`; hours may exceed 24."""
    match = _CLOCK.fullmatch(text)
    if not match:
        raise ValueError(f"expected a duration such as 26:00:00, got {text[:40]!r}")
    hours, minutes, seconds = match.groups()
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)


def merged_shares(parts: Iterable[NodeShare]) -> tuple[NodeShare, ...]:
    """One share for each node: the sum of its parts, of those that state an amount."""
    shares: dict[str, NodeShare] = {}
    for part in parts:
        known = shares.get(part.node, NodeShare(part.node))
        amounts: list[Any] = [
            mine if theirs is None else (mine or 0) + theirs
            for mine, theirs in zip(known[1:4], part[1:4], strict=True)
        ]
        shares[part.node] = NodeShare(part.node, *amounts)
    return tuple(shares.values())


def parse_host_list_number(text: str, host_list: str) -> int:
    """Parse a number in a host list; raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise ValueError(f"expected a number, got {text[:20]!r} in {host_list[:80]!r}")

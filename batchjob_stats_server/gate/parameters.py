"""What a client of the Prometheus HTTP API may send, read into values."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from batchjob_stats_server.gate.bounds import Malformed, Window, shown

_LATEST = 1 << 33  # a bound that no clock comes near: the year 2242
_PART = re.compile(r"([0-9]{1,9})(ms|[smhdwy])", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


class Asked(NamedTuple):
    """Parameters by name, each given once; `match[]` is the one that may be repeated."""

    values: Mapping[str, Any]
    match: tuple[str, ...] = ()

    def window(self, now: float, longest_default: float) -> Window:
        """Start and end, or what stands for them; Prometheus would take all times there are."""
        end = self.values.get("end", now)
        window = Window(self.values.get("start", end - longest_default), end)
        if window.end < window.start:
            raise Malformed("end: expected a time not before start")
        return window


def read(pairs: Iterable[tuple[str, str]], allowed: frozenset[str]) -> Asked:
    """Raises Malformed for a parameter unknown here, given twice, or of no meaning."""
    values: dict[str, Any] = {}
    match: list[str] = []
    for name, text in pairs:
        if name not in allowed:
            raise Malformed(f"parameter {shown(name)} is not known here")
        if name == "match[]":
            match.append(text)
            continue
        if name in values:
            raise Malformed(f"{name}: expected once")
        try:
            values[name] = _READERS[name](text)
        except (ValueError, OverflowError) as error:
            raise Malformed(f"{name}: {error}") from error
    return Asked(values, tuple(match))


def _time(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = _rfc3339(text)
    if not 0 <= seconds < _LATEST:
        raise ValueError(f"expected a time, Unix seconds or RFC 3339, got {shown(text)}")
    return seconds


def _rfc3339(text: str) -> float:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return math.nan if parsed.tzinfo is None else parsed.timestamp()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        parts = _PART.findall(text)
        whole = "".join(number + unit for number, unit in parts) == text
        seconds = sum(int(number) * _UNITS[unit] for number, unit in parts) if whole else math.nan
    if not 0.001 <= seconds < _LATEST:
        raise ValueError(f"expected a duration such as 30 or 1m, got {shown(text)}")
    return seconds


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise ValueError(f"expected a whole number, got {shown(text)}")


_READERS: Mapping[str, Callable[[str], Any]] = {
    "query": str,
    "time": _time,
    "start": _time,
    "end": _time,
    "step": _seconds,
    "timeout": _seconds,
    "limit": _count,
}

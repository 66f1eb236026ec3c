"""When to look at a job's measurements, as a dashboard's address takes it."""

from collections.abc import Callable, Mapping
from typing import Any

PAD_SECONDS = 60  # a scrape or two before the first sample, and after the last


def _from(row: Mapping[Any, Any]) -> str:
    start = row["start_time"]
    return "now-1h" if start is None else str((start - PAD_SECONDS) * 1000)


def _to(row: Mapping[Any, Any]) -> str:
    start, end = row["start_time"], row["end_time"]
    return "now" if start is None or end is None else str((end + PAD_SECONDS) * 1000)


FIELDS: dict[str, Any] = {"window_from": (str, ""), "window_to": (str, "")}
MADE: Mapping[str, Callable[[Mapping[Any, Any]], str]] = {"window_from": _from, "window_to": _to}
"""Epoch milliseconds, or `now`; made of a job's row."""

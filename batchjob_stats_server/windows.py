"""When to look at a job's measurements, as a dashboard's address takes it."""

from typing import Any

from batchjob_stats_server.keys import Made, MadeKeys

PAD_SECONDS = 60  # a scrape or two before the first sample, and after the last


def begin(start: int | None) -> str:
    """Epoch milliseconds, or before now."""
    return "now-1h" if start is None else str((start - PAD_SECONDS) * 1000)


def end(start: int | None, end: int | None) -> str:
    """Epoch milliseconds, or now."""
    return "now" if start is None or end is None else str((end + PAD_SECONDS) * 1000)


FIELDS: dict[str, Any] = {"window_from": (str, ""), "window_to": (str, "")}
MADE: MadeKeys = (
    ("window_from", Made(("start_time",), begin)),
    ("window_to", Made(("start_time", "end_time"), end)),
)
"""Made of a job's row."""

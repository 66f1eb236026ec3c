"""The period of a job's measurements in the address of a dashboard."""

from typing import Any

from batchjob_stats_server.api.row_keys import KeySource, KeySources

PAD_SECONDS = 60  # one or two scrape intervals, before the first sample and after the last


def begin(started: float | None) -> str:
    """Epoch milliseconds, or a time before now."""
    return "now-1h" if started is None else str(round((started - PAD_SECONDS) * 1000))


def end(started: float | None, ended: float | None) -> str:
    """Epoch milliseconds, or now."""
    return "now" if started is None or ended is None else str(round((ended + PAD_SECONDS) * 1000))


FIELDS: dict[str, Any] = {"window_from": (str, ""), "window_to": (str, "")}
COMPUTED_KEYS: KeySources = (
    ("window_from", KeySource(("start_time",), begin)),
    ("window_to", KeySource(("start_time", "end_time"), end)),
)
"""Made of a job's row."""

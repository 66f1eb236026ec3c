"""The last runs with the same name, side by side: duration, memory and energy."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from markupsafe import Markup, escape

from batchjob_stats_server.pages.rendering import links, template_filters
from batchjob_stats_server.report.explain import elapsed_seconds
from batchjob_stats_server.report.model import Row

RUN_WIDTH, BAR_HEIGHT = 14, 30.0  # width of a run; height of its bars
_ROW_HEIGHT, _TITLE_HEIGHT = 48, 14  # height of a row; of the title above the bars
_SLOW_FACTOR = 1.5  # multiple of the median
_MIN_COMPLETED_RUNS = 3  # minimum completed runs for a median


RUN_COLUMNS = (
    "cluster", "jobid", "submit_time", "run", "state", "start_time", "end_time",
    "elapsed_seconds", "suspended_seconds", "as_of_time", "usage_samples", "usage_until_time",
    "memory_used_bytes", "energy_used_joules",
)  # fmt: skip
"""Columns to query for each run."""


class RunStrip(NamedTuple):
    """Runs, the oldest first, and their bars."""

    runs: Sequence[Row]
    # For each quantity its title, the values relative to the highest, and that one as text.
    rows: list[tuple[str, list[float | None], str]]
    slow: list[bool]  # whether a run took much longer than the median
    descriptions: list[str]  # text for a run, for the pointer and screen readers

    @property
    def height(self) -> int:
        return len(self.rows) * _ROW_HEIGHT

    def render_runs(self, here: int) -> Markup:
        """Render a link with bars for each run; `here` is the row id of the displayed job."""
        return template_filters.trusted_html(
            "".join(_run_link(self, n, here) for n in range(len(self.runs)))
        )


_RunValue = Callable[[Row, int], float | None]
_QUANTITIES: tuple[tuple[str, _RunValue, Callable[..., str]], ...] = (
    ("Elapsed", elapsed_seconds, template_filters.duration),
    ("Peak memory", lambda row, _: row["memory_used_bytes"], template_filters.size),
    ("Energy", lambda row, _: row["energy_used_joules"], template_filters.energy),
)


def build_strip(runs: Sequence[Row], now: int) -> RunStrip | None:
    if len(runs) < 2:
        return None
    rows = [row for each in _QUANTITIES if (row := _strip_row(runs, now, *each))]
    times = [elapsed_seconds(run, now) or 0.0 for run in runs]
    completed_times = [
        time for run, time in zip(runs, times, strict=True) if run["state"] == "COMPLETED"
    ]
    usual_time = median(completed_times) if len(completed_times) >= _MIN_COMPLETED_RUNS else None
    slow = [usual_time is not None and time > _SLOW_FACTOR * usual_time for time in times]
    descriptions = [
        _describe_run(run, now, is_slow) for run, is_slow in zip(runs, slow, strict=True)
    ]
    return RunStrip(runs, rows, slow, descriptions)


def _strip_row(
    runs: Sequence[Row], now: int, title: str, value_of: _RunValue, format_value: Callable[..., str]
) -> tuple[str, list[float | None], str] | None:
    values = [value_of(run, now) for run in runs]
    top = max((value for value in values if value is not None), default=0.0)
    if top <= 0:
        return None
    return title, [None if value is None else value / top for value in values], format_value(top)


def _run_link(strip: RunStrip, index: int, here: int) -> str:
    run = strip.runs[index]
    state, here_class = escape(run["state"].lower()), " here" if run["id"] == here else ""
    bars = "".join(
        _run_bar(
            index, number, ratio, f"{state}{' slow' if strip.slow[index] and not number else ''}"
        )
        for number, (_, ratios, _) in enumerate(strip.rows)
        if (ratio := ratios[index]) is not None
    )
    return (
        f'<a href="{escape(links.job_path(run))}">'
        f"<title>{escape(strip.descriptions[index])}</title>\n"
        f'<rect class="hit{here_class}" x="{index * RUN_WIDTH}" y="0" width="{RUN_WIDTH}" '
        f'height="{strip.height}"/>{bars}</a>\n'
    )


def _run_bar(index: int, number: int, ratio: float, style: str) -> str:
    height = round(max(BAR_HEIGHT * ratio, 0.5), 2)
    y = round(BAR_HEIGHT - height, 2) + number * _ROW_HEIGHT + _TITLE_HEIGHT
    return (
        f'<rect class="run {style}" x="{index * RUN_WIDTH + 1}" y="{y}" width="{RUN_WIDTH - 2}" '
        f'height="{height}"/>'
    )


def _describe_run(run: Row, now: int, is_slow: bool) -> str:
    parts = [f"Job {run['jobid']}", str(run["state"]).replace("_", " ").lower()]
    for title, value_of, format_value in _QUANTITIES:
        value = value_of(run, now)
        if value is not None:
            parts.append(f"{title.lower()} {format_value(value)}")
    return ", ".join([*parts, *(["slower than usual"] if is_slow else [])])

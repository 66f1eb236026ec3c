"""The last runs of a name side by side: duration, memory and energy."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from batchjob_stats_server.pages.rendering import fragments, links, template_filters
from batchjob_stats_server.pages.rendering.charts import Box
from batchjob_stats_server.report.explain import elapsed

WIDTH, HEIGHT = 14, 30.0  # width of a run; height of its bars
_ROW, _TITLE = 48, 14  # height of a row; of the title above the bars
_SLOW = 1.5  # multiple of the median
_FEWEST = 3  # minimum completed runs for a median

Row = Mapping[Any, Any]


class StripRow(NamedTuple):
    """One quantity of all runs; None where it is unknown."""

    title: str
    bars: list[Box | None]
    highest: str  # highest value as text


READ = (
    "cluster", "jobid", "submit_time", "run", "state", "start_time", "end_time",
    "elapsed_seconds", "suspended_seconds", "usage_samples", "usage_until_time",
    "memory_used_bytes", "energy_used_joules",
)  # fmt: skip
"""What is shown of a run."""


class RunStrip(NamedTuple):
    """Runs, the oldest first, and their bars."""

    runs: Sequence[Row]
    rows: list[StripRow]
    slow: list[bool]  # whether a run took clearly longer than usual
    words: list[str]  # text for a run, for the pointer and screen readers

    @property
    def height(self) -> int:
        """The height of the drawing."""
        return len(self.rows) * _ROW

    def marks(self, here: int) -> Markup:
        """A link with the bars of each run; `here` is the number of the displayed job."""
        return fragments.html("".join(_marks(self, n, here) for n in range(len(self.runs))))


_Of = Callable[[Row, int], float | None]
_ROWS: tuple[tuple[str, _Of, Callable[..., str]], ...] = (
    ("Elapsed", elapsed, template_filters.lasting),
    ("Peak memory", lambda row, _: row["memory_used_bytes"], template_filters.size),
    ("Energy", lambda row, _: row["energy_used_joules"], template_filters.energy),
)


def strip(runs: Sequence[Row], now: int) -> RunStrip | None:
    """None if there are too few to compare."""
    if len(runs) < 2:
        return None
    rows = [row for each in _ROWS if (row := _row(runs, now, *each))]
    times = [elapsed(run, now) or 0.0 for run in runs]
    ended_well = [
        time for run, time in zip(runs, times, strict=True) if run["state"] == "COMPLETED"
    ]
    usual = median(ended_well) if len(ended_well) >= _FEWEST else None
    slow = [usual is not None and time > _SLOW * usual for time in times]
    words = [_words(run, now, late) for run, late in zip(runs, slow, strict=True)]
    return RunStrip(runs, rows, slow, words)


def _row(
    runs: Sequence[Row], now: int, title: str, of: _Of, write: Callable[..., str]
) -> StripRow | None:
    values = [of(run, now) for run in runs]
    top = max((value for value in values if value is not None), default=0.0)
    if top <= 0:
        return None
    bars = [
        None if value is None else _bar(place, value / top) for place, value in enumerate(values)
    ]
    return StripRow(title, bars, write(top))


def _marks(strip: RunStrip, place: int, here: int) -> str:
    run = strip.runs[place]
    state, looked_at = escape(run["state"].lower()), " here" if run["id"] == here else ""
    bars = "".join(
        f'<rect class="run {state}{" slow" if strip.slow[place] and not number else ""}" '
        f'x="{bar.x}" y="{bar.y + number * _ROW + _TITLE}" width="{bar.width}" '
        f'height="{bar.height}"/>'
        for number, row in enumerate(strip.rows)
        if (bar := row.bars[place])
    )
    return (
        f'<a href="{escape(links.job(run))}"><title>{escape(strip.words[place])}</title>\n'
        f'<rect class="hit{looked_at}" x="{place * WIDTH}" y="0" width="{WIDTH}" '
        f'height="{strip.height}"/>{bars}</a>\n'
    )


def _bar(place: int, part: float) -> Box:
    tall = round(max(HEIGHT * part, 0.5), 2)
    return Box(place * WIDTH + 1, round(HEIGHT - tall, 2), WIDTH - 2, tall)


def _words(run: Row, now: int, slow: bool) -> str:
    parts = [f"Job {run['jobid']}", str(run["state"]).replace("_", " ").lower()]
    for title, of, write in _ROWS:
        value = of(run, now)
        if value is not None:
            parts.append(f"{title.lower()} {write(value)}")
    return ", ".join([*parts, *(["slower than usual"] if slow else [])])

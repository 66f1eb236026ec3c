"""The last runs with the same name, side by side: duration, memory and energy."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from markupsafe import Markup, escape

from batchjob.judgements import SLOW_RUN
from batchjob_stats_server.pages.rendering import links, template_filters
from batchjob_stats_server.report.explain import elapsed_seconds
from batchjob_stats_server.report.model import Row

BAR_HEIGHT, RUN_WIDTH = 30.0, 14
ROW_HEIGHT, _TITLE_HEIGHT = 48, 14  # height of a row; of the title above the bars
_MIN_COMPLETED_RUNS = 3  # minimum completed runs for a median


_RunValue = Callable[[Row, int], float | None]
_QUANTITIES: tuple[tuple[str, _RunValue, Callable[..., str]], ...] = (
    ("Elapsed", elapsed_seconds, template_filters.duration),
    ("Peak memory", lambda row, _: row["memory_used_bytes"], template_filters.size),
    ("Energy", lambda row, _: row["energy_used_joules"], template_filters.energy),
)


def build_strip(runs: Sequence[Row], now: int) -> dict[str, Any] | None:
    """The bars of each run, the oldest first, and the title of each quantity; None for one run."""
    if len(runs) < 2:
        return None
    times = [elapsed_seconds(run, now) or 0.0 for run in runs]
    completed_times = [
        time for run, time in zip(runs, times, strict=True) if run["state"] == "COMPLETED"
    ]
    usual_time = median(completed_times) if len(completed_times) >= _MIN_COMPLETED_RUNS else None
    slow = [usual_time is not None and time > SLOW_RUN * usual_time for time in times]
    titles: list[str] = []
    bars: list[list[tuple[float, float]]] = [[] for _ in runs]  # y and height, of each run
    for title, value_of, format_value in _QUANTITIES:
        values = [value_of(run, now) for run in runs]
        top = max((value for value in values if value is not None), default=0.0)
        if top <= 0:
            continue
        bottom = len(titles) * ROW_HEIGHT + _TITLE_HEIGHT + BAR_HEIGHT
        titles.append(f"{title}, at most {format_value(top)}")
        for of_run, value in zip(bars, values, strict=True):
            if value is not None:
                height = round(max(BAR_HEIGHT * value / top, 0.5), 2)
                of_run.append((round(bottom - height, 2), height))
    described = [_describe_run(run, now, is_slow) for run, is_slow in zip(runs, slow, strict=True)]
    return {
        "runs": list(zip(runs, described, slow, bars, strict=True)),
        "titles": titles,
        "height": len(titles) * ROW_HEIGHT,
    }


def run_links(strip: Mapping[str, Any], here: int) -> Markup:
    """A link with the bars of each run; a template takes much longer. `here`: the job's row."""
    links_of_runs = []
    for index, (run, description, is_slow, bars) in enumerate(strip["runs"]):
        x, state = index * RUN_WIDTH, escape(run["state"].lower())
        rectangles = "".join(
            f'<rect class="run {state}{" slow" if is_slow and not number else ""}" x="{x + 1}" '
            f'y="{y}" width="{RUN_WIDTH - 2}" height="{height}"/>'
            for number, (y, height) in enumerate(bars)
        )
        links_of_runs.append(
            f'<a href="{escape(links.job_path(run))}"><title>{escape(description)}</title>\n'
            f'<rect class="hit{" here" if run["id"] == here else ""}" x="{x}" y="0" '
            f'width="{RUN_WIDTH}" height="{strip["height"]}"/>{rectangles}</a>\n'
        )
    return template_filters.trusted_html("".join(links_of_runs))


def _describe_run(run: Row, now: int, is_slow: bool) -> str:
    parts = [f"Job {run['jobid']}", str(run["state"]).replace("_", " ").lower()]
    for title, value_of, format_value in _QUANTITIES:
        value = value_of(run, now)
        if value is not None:
            parts.append(f"{title.lower()} {format_value(value)}")
    return ", ".join([*parts, *(["slower than usual"] if is_slow else [])])

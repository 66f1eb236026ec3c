"""The start page: a person's jobs at present, and what they used in the last day."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from fastapi import APIRouter, Depends, Response
from markupsafe import Markup

from batchjob.judgements import FAILED_STATES
from batchjob_stats_db.measure.current_use import CurrentUse
from batchjob_stats_server.api import now, present
from batchjob_stats_server.api.answers import run_in_thread
from batchjob_stats_server.api.me import refuse_simple_json
from batchjob_stats_server.api.params import InQuery, QueryParams
from batchjob_stats_server.api.present import HOUR, HOURS, Present
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.pages.rendering import charts, fragments, template_filters
from batchjob_stats_server.pages.rendering.frame import PageRenderer, Reckoned, RequestPage
from batchjob_stats_server.pages.rendering.template_filters import absent
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import Row

router = APIRouter(include_in_schema=False)

_KEPT_SECONDS, _MOST_KEPT = 300, 200  # a report takes as long as the rest of the page
_MOST_GROUPS = 8  # of jobs that wait, and that failed
_SEGMENTS = {"used": "main", "not used, or not measured": "rest"}
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "CPUs": template_filters.number,
    "Memory": template_filters.size,
    "GPUs": template_filters.number,
    "Power": lambda watts: f"{template_filters.number(watts)}\u202fW",
}


@router.get("/", dependencies=[Depends(refuse_simple_json)])
async def start(page: RequestPage, _query: InQuery[QueryParams]) -> Response:
    """The caller's own jobs."""
    found = await now.gather(page, page.principal.user)
    log_jobs_seen(page.principal, "jobs", [*found.running, *found.ended])
    kept = page.environment.reckoned.get(page.principal.person_key())
    if kept is not None and kept[0] < page.now:
        kept = None
    return await run_in_thread(page, partial(_render, page, found, kept), costly=kept is None)


def _render(page: PageRenderer, found: Present, kept: Reckoned | None) -> Response:
    """Changes and charts are computed again only after some minutes."""
    if kept is None:
        changes = present.find_changes(page.services, page.access, found.ended)
        kept = page.now + _KEPT_SECONDS, changes, list(_charts(found))
        of_all = page.environment.reckoned
        of_all[page.principal.person_key()] = kept
        while len(of_all) > _MOST_KEPT:
            of_all.pop(next(iter(tuple(of_all))), None)
    _, changes, shown_charts = kept
    rows = (_running_row(row, found) for row in found.running)  # a template takes much longer
    return page.render(
        "start.html", present=found, changes=changes, charts=shown_charts,
        failed=found.failed(), failed_states=FAILED_STATES, most=_MOST_GROUPS,
        running_rows=template_filters.trusted_html("".join(rows)),
    )  # fmt: skip


def _running_row(row: Row, found: Present) -> str:
    use = found.use.get(row["id"])
    ran = explain.elapsed_seconds(row, found.now)
    cpus, memory, gpu = (use.cpus, use.memory_bytes, use.gpu_ratio) if use else (None,) * 3
    held = row["allocated_memory_bytes"]
    cells = (
        ("Elapsed", absent() if ran is None else template_filters.duration(ran)),
        ("CPU used", _amount(cpus, row["allocated_cpus"], template_filters.number)),
        ("Memory used", _amount(memory, held, template_filters.size)),
        ("GPU used", _amount(gpu, 1.0, template_filters.percent) if row["gpus_held"] else ""),
        ("Last sample", _ago(found.now, use)),
    )
    ending = {"Elapsed": ' class="n"', "Last sample": ' class="n"'}
    return (
        f'<tr role="row"><th role="rowheader" scope="row">{fragments.job_link(row)}</th>'
        f'<td role="cell" class="name">{fragments.job_name(row)}</td>'
        + "".join(
            f'<td role="cell" data-label="{label}"{ending.get(label, "")}>{cell}</td>'
            for label, cell in cells
        )
        + "</tr>\n"
    )


def _amount(used: float | None, held: float | None, write: Callable[[float], str]) -> str:
    """What is used now, as a bar of what the job holds if that is known; nobody is blamed."""
    if used is None:
        return absent("no sample in the last three minutes")
    if not held:
        return write(used)
    words = write(round(used, 2)) + ("" if held == 1.0 else f" of {write(held)}")
    return fragments.amount_bar(used, held, words)


def _ago(now: int, use: CurrentUse | None) -> str:
    if use is None:
        return absent("no sample in the last three minutes")
    return f"{template_filters.duration(max(0, now - use.sample_time))} ago"


def _charts(found: Present) -> Iterator[Markup]:
    first = found.now // HOUR * HOUR - (HOURS - 1) * HOUR
    for what, by_hour in found.by_hour().items():
        segments = {"measured": "main"} if what == "Power" else _SEGMENTS
        values = {
            at: (used,) if what == "Power" else (used, max(0.0, held - used))
            for at, (used, held) in by_hour.items()
        }
        most = max((sum(each) for each in values.values()), default=0.0)
        unit = 1024.0 ** int(math.log(max(most, 1.0), 1024)) if what == "Memory" else 1.0
        chart = charts.day_chart(
            "h-day", what, segments, values, first, first + HOURS * HOUR, _FORMATS[what], unit,
            by="hour",
        )  # fmt: skip
        if chart is not None:
            yield chart

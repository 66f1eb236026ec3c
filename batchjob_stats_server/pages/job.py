"""The page of a job: usage and efficiency, over time, by node and GPU, and advice."""

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob.quantities.curves import plots_for
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import scripts
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.queries import ids
from batchjob_stats_db.queries import nodes as queries
from batchjob_stats_db.queries.similar import same_name
from batchjob_stats_server.api import windows
from batchjob_stats_server.api.jobs import JobId
from batchjob_stats_server.api.params import Query as Form
from batchjob_stats_server.api.params import Time, Word
from batchjob_stats_server.api.reports import material_of, report_from
from batchjob_stats_server.api.runs import runs_of
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.auth.rights import script_access
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.local_output import last_errors
from batchjob_stats_server.pages.rendering import plot_zones, run_strip, usage_bars
from batchjob_stats_server.pages.rendering.frame import PageRenderer, Shown
from batchjob_stats_server.pages.rendering.links import Reference
from batchjob_stats_server.report.facts import values
from batchjob_stats_server.services import Given, Services

router = APIRouter(include_in_schema=False)

_SIBLINGS = 12
_RUNS = 50
_SHADED = 40


class JobForm(Form):
    """Selects a run if the id alone is ambiguous."""

    cluster: Word | None = None
    submitted: Time | None = None
    run: int | None = Field(None, ge=1, lt=2**31)


class RunWindow(NamedTuple):
    """The time of the run; epoch seconds."""

    since: int | None
    until: int | None


@router.get("/jobs/{jobid}")
def job(
    services: Given, page: Shown, access: Caller, jobid: JobId, which: Annotated[JobForm, Query()]
) -> Response:
    """One run, or a list if the id matches several jobs."""
    wanted = Reference(jobid, which.cluster, which.submitted, which.run)
    with services.reader.connect() as db:
        runs = find(db, access, wanted)
        if len({(row["cluster"], row["jobid"]) for row in runs}) > 1:
            audit.seen(page.known, f"job {jobid}", runs)
            return page.show("runs.html", jobid=jobid, runs=runs)
        run = next((row for row in runs if wanted.means(row)), None)
        if run is None:
            raise Problem(404, f"there is no job {jobid} that you may see")
        siblings = _siblings(db, access, run)
        runs_of_name = same_name(db, access, run, _RUNS, run_strip.READ)
        kept = scripts.of_jobs(db, script_access(page.known, access), [run["id"]])
        neighbours = queries.neighbours(db, run, page.now)
    material = material_of(services, access, run)
    report = report_from(services, material)
    audit.seen(page.known, f"job {jobid}", [run])
    return page.show(
        "job.html", plots=True, job=run, runs=runs, siblings=siblings[:_SIBLINGS],
        strip=run_strip.strip(runs_of_name, page.now), neighbours=neighbours,
        errors=_errors(services, page, run), script=kept[0] if kept else None,
        own_script=run["username"] == page.known.user and not page.known.on_behalf,
        more_siblings=len(siblings) > _SIBLINGS, report=report,
        efficiency=[(each, usage_bars.shown(each)) for each in report.efficiency],
        nodes=_nodes(material.shares, report.nodes), steps=material.steps,
        shaded=_shaded(material.steps),
        gpus=_gpus(report.gpus), drawings=plots_for(run["allocated_gpus"] or run["usage_gpus"]),
        zones=plot_zones.of_job(services.rules, values(material)),
        samples=bool(services.settings.samples.directory) and run["start_time"] is not None,
        measured=services.histories is not None and run["start_time"] is not None,
        window=window(run, page.now), grafana=_grafana(page, run),
        help_url=services.settings.report.help_url,
    )  # fmt: skip


def _errors(services: Services, page: PageRenderer, run: RowMapping) -> list[str]:
    """The last lines of standard error of a failed run of this machine, for its user alone."""
    failed = run["end_time"] is not None and run["state"] != JobState.COMPLETED
    if services.local_data is None or not failed or run["username"] != page.known.user:
        return []
    return last_errors(services.local_data, run["jobid"], run["uid"])


def find(db: Connection, access: Access, wanted: Reference) -> Sequence[RowMapping]:
    """All runs with the id; else the tasks of an array, or the parts of a het job."""
    runs = runs_of(db, access, wanted.jobid, wanted.cluster)
    return runs or [
        row
        for row in ids.parts_of(db, access, wanted.jobid)
        if wanted.cluster in (None, row["cluster"])
    ]


def _siblings(db: Connection, access: Access, run: RowMapping) -> list[RowMapping]:
    """The other tasks of its array, or parts of its het job."""
    whole = run["array_jobid"] or run["het_jobid"]
    if not whole:
        return []
    found = ids.parts_of(db, access, whole)
    return [row for row in found if row["cluster"] == run["cluster"] and row["id"] != run["id"]]


def _nodes(held: Sequence[Any], used: Sequence[Any]) -> list[dict[str, Any]]:
    """Each node with the job's share and usage, which shows nodes that do less than the others."""
    by_node = {each.node: each for each in used}
    cpu = usage_bars.compared({node: each.cpu_seconds for node, each in by_node.items()})
    memory = usage_bars.compared({node: each.memory_peak_bytes for node, each in by_node.items()})
    bars = {one.name: (one, other) for one, other in zip(cpu, memory, strict=True)}
    return [
        {"held": row, "cpu": bars.get(row["node"], (None, None))[0],
         "memory": bars.get(row["node"], (None, None))[1]}
        for row in held
    ]  # fmt: skip


def _gpus(used: Sequence[Any]) -> list[tuple[Any, usage_bars.ComparedBar, usage_bars.ComparedBar]]:
    ratios = {str(place): each.utilization_ratio for place, each in enumerate(used)}
    peaks = {str(place): each.memory_peak_bytes for place, each in enumerate(used)}
    whole = max((each.memory_total_bytes or 0 for each in used), default=0)
    return list(
        zip(
            used,
            usage_bars.compared(ratios, 1.0),
            usage_bars.compared(peaks, float(whole) or None),
            strict=True,
        )
    )


def _shaded(steps: Sequence[Any]) -> str:
    """Steps to be shaded in plots, as JSON: those shorter than the job."""
    told = [
        (step["step"], step["start_time"], step["end_time"])
        for step in steps
        if step["start_time"] is not None and step["step"] not in ("batch", "extern", "interactive")
    ]
    return json.dumps(sorted(told, key=lambda step: step[1])[:_SHADED])


def window(run: RowMapping, now: int) -> RunWindow:
    """When a run's plots begin and end."""
    if run["start_time"] is None:
        return RunWindow(None, None)
    return RunWindow(int(run["start_time"]), math.ceil(run["end_time"] or now))


def _grafana(page: PageRenderer, run: RowMapping) -> str:
    start, end = run["start_time"], run["end_time"]
    return page.in_grafana(
        page.grafana.job, windows.begin(start), windows.end(start, end),
        cluster=run["cluster"], job=run["jobid"],
    )  # fmt: skip

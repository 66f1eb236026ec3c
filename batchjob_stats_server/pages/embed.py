"""Small pages for frames in other sites' pages: the caller's jobs, and one job."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from batchjob.quantities.curves import CPU, GPU_MEMORY, GPU_UTILIZATION, MEMORY, plots_for
from batchjob_stats_db.queries import jobs as queries
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_rows import numbered
from batchjob_stats_db.queries.paging import numbers
from batchjob_stats_server.api.jobs import JobId
from batchjob_stats_server.api.reports import material_of, report_from
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.clusters import NoForm
from batchjob_stats_server.pages.job import JobForm, find, window
from batchjob_stats_server.pages.jobs import ENDED
from batchjob_stats_server.pages.rendering import plot_zones, usage_bars
from batchjob_stats_server.pages.rendering.frame import Shown
from batchjob_stats_server.pages.rendering.job_table import READ
from batchjob_stats_server.pages.rendering.links import Reference
from batchjob_stats_server.report.facts import values
from batchjob_stats_server.services import Given, live_columns

router = APIRouter(include_in_schema=False)

_ROWS = 10
_DRAWN = {CPU, MEMORY, GPU_UTILIZATION, GPU_MEMORY}


@router.get("/embed/jobs")
def jobs(
    services: Given, page: Shown, access: Caller, _which: Annotated[NoForm, Query()]
) -> Response:
    """The caller's own jobs: running, waiting, and the last ended ones."""
    own = Filter(user=page.known.user)
    with services.reader.connect() as db:
        running = live_columns(services, db, queries.running(db, access, _ROWS, own, READ))
        waiting = queries.pending(db, access, _ROWS, own, READ)
        over = own._replace(states=ENDED)
        ended = numbered(db, numbers(db, access, _ROWS, over).ids, READ)
    return page.show("embed_jobs.html", rows=[*running, *waiting, *ended])


@router.get("/embed/jobs/{jobid}")
def job(
    services: Given, page: Shown, access: Caller, jobid: JobId, which: Annotated[JobForm, Query()]
) -> Response:
    """One run: its state, efficiency, first advice and main plots."""
    wanted = Reference(jobid, which.cluster, which.submitted, which.run)
    with services.reader.connect() as db:
        runs = find(db, access, wanted)
    run = next((row for row in runs if wanted.means(row)), None)
    if run is None:
        raise Problem(404, f"there is no job {jobid} that you may see")
    material = material_of(services, access, run)
    report = report_from(services, material)
    audit.seen(page.known, f"job {jobid}", [run])
    return page.show(
        "embed_job.html", plots=True, job=run, report=report, window=window(run, page.now),
        efficiency=[(each, usage_bars.shown(each)) for each in report.efficiency],
        zones=plot_zones.of_job(services.rules, values(material)),
        measured=services.histories is not None and run["start_time"] is not None,
        drawings=[
            plot
            for plot in plots_for(run["allocated_gpus"] or run["usage_gpus"])
            if _DRAWN & set(plot.curves)
        ],
    )  # fmt: skip

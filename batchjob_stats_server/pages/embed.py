"""Small pages for frames in other sites' pages: the caller's jobs, and one job."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from batchjob.quantities.curves import CPU, GPU_MEMORY, GPU_UTILIZATION, MEMORY, plots_for
from batchjob_stats_db.queries import jobs as queries
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_rows import rows_by_ids
from batchjob_stats_db.queries.paging import find_ids
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.jobs import JobId
from batchjob_stats_server.api.reports import gather_report_input, report_from_input
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import CurrentAccess
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.clusters import NoForm
from batchjob_stats_server.pages.job import JobForm, find_runs, plot_window
from batchjob_stats_server.pages.jobs import ENDED_STATES
from batchjob_stats_server.pages.rendering import plot_zones, usage_bars
from batchjob_stats_server.pages.rendering.frame import RequestPage
from batchjob_stats_server.pages.rendering.job_table import JOB_COLUMNS
from batchjob_stats_server.pages.rendering.links import Reference
from batchjob_stats_server.report.facts import evaluate_quantities
from batchjob_stats_server.services import CurrentServices

router = APIRouter(include_in_schema=False, route_class=TurnRoute)

_MAX_ROWS = 10
_MAIN_CURVES = {CPU, MEMORY, GPU_UTILIZATION, GPU_MEMORY}


@router.get("/embed/jobs")
def jobs(
    services: CurrentServices,
    page: RequestPage,
    access: CurrentAccess,
    _form: Annotated[NoForm, Query()],
) -> Response:
    """The caller's own jobs: running, waiting, and the last ended ones."""
    own_filter = Filter(user=page.principal.user)
    with services.reader.connect() as db:
        running = queries.running(db, access, _MAX_ROWS, own_filter, JOB_COLUMNS)
        waiting = queries.pending(db, access, _MAX_ROWS, own_filter, JOB_COLUMNS)
        ended_filter = own_filter._replace(states=ENDED_STATES)
        ended = rows_by_ids(db, find_ids(db, access, _MAX_ROWS, ended_filter).ids, JOB_COLUMNS)
    return page.render("embed_jobs.html", rows=[*running, *waiting, *ended])


@router.get("/embed/jobs/{jobid}")
def job(
    services: CurrentServices,
    page: RequestPage,
    access: CurrentAccess,
    jobid: JobId,
    form: Annotated[JobForm, Query()],
) -> Response:
    """One run: its state, efficiency, first advice and main plots."""
    reference = Reference(jobid, form.cluster, form.submitted, form.run)
    with services.reader.connect() as db:
        runs = find_runs(db, access, reference)
    run = next((row for row in runs if reference.matches(row)), None)
    if run is None:
        raise Problem(404, f"there is no job {jobid} that you may see")
    inputs = gather_report_input(services, access, run)
    report = report_from_input(services, inputs)
    audit.log_jobs_seen(page.principal, f"job {jobid}", [run])
    return page.render(
        "embed_job.html", uses_plotly=True, job=run, report=report,
        window=plot_window(run, page.now),
        efficiency=[(each, usage_bars.efficiency_bar(each)) for each in report.efficiency],
        zones=plot_zones.job_zones(services.rules, evaluate_quantities(inputs)),
        has_measurements=services.histories is not None and run["start_time"] is not None,
        plots=[
            plot
            for plot in plots_for(run["allocated_gpus"] or run["usage_gpus"])
            if _MAIN_CURVES & set(plot.curves)
        ],
    )  # fmt: skip

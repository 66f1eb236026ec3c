"""Jobs side by side."""

from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob.judgements import AT_LEAST
from batchjob.quantities.curves import COMPARED_CURVES, PLOTS
from batchjob_stats_db.database.access import Access
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import QueryParams, Word
from batchjob_stats_server.api.runs import runs_of
from batchjob_stats_server.auth import audit
from batchjob_stats_server.pages.rendering import links, template_filters
from batchjob_stats_server.pages.rendering.frame import RequestPage
from batchjob_stats_server.report.explain import elapsed_seconds

router = APIRouter(include_in_schema=False, route_class=TurnRoute)

MAX_JOBS = 24


class CompareForm(QueryParams):
    """Names the jobs to compare."""

    job: list[Word] = Field([], description="Job ids or CLUSTER:ID.")


_FACTS: Mapping[str, tuple[Callable[..., str], str]] = {
    "Submitted": (template_filters.moment, "submit_time"),
    "Started": (template_filters.moment, "start_time"),
    "Ran": (template_filters.duration, "elapsed_seconds"),
    "Time limit": (template_filters.duration, "time_limit_seconds"),
    "Nodes": (template_filters.number, "allocated_nodes"),
    "CPUs": (template_filters.number, "allocated_cpus"),
    "Memory": (template_filters.size, "allocated_memory_bytes"),
    "GPUs": (template_filters.number, "gpus_held"),
    "CPU time": (template_filters.hours, "cpu_used_seconds"),
    "Peak memory": (template_filters.size, "memory_used_bytes"),
    "Peak GPU memory": (template_filters.size, "usage_gpu_memory_peak_bytes"),
    "Read from files, at least": (template_filters.size, "usage_process_io_read_bytes"),
    "Written to files, at least": (template_filters.size, "usage_process_io_written_bytes"),
    "Major page faults": (template_filters.number, "usage_major_page_faults"),
    "OOM kills": (template_filters.number, "usage_oom_kills"),
    "Energy": (template_filters.energy, "energy_used_joules"),
}
"""What is compared: the formatter and the column of each quantity."""
_BASES = {"cpu_used_seconds": "cpu_basis"}  # the column of what a value is


@router.get("/compare")
def compare(page: RequestPage, form: Annotated[CompareForm, Query()]) -> Response:
    """The first of the requested jobs that the caller may see, and a way to the others."""
    chosen = list(dict.fromkeys(form.job))
    with page.services.reader.connect() as db:
        runs = [(text, _find_run(db, page.access, text)) for text in chosen[:MAX_JOBS]]
    rows = [row for _, row in runs if row is not None]
    audit.log_jobs_seen(page.principal, "jobs", rows)
    return page.render(
        "compare.html", uses_plotly=True, jobs=rows,
        missing=[text for text, row in runs if not row],
        chosen=chosen, others=tuple(chosen[MAX_JOBS:]),
        facts=[(name, _compare_fact(*fact, rows, page.now)) for name, fact in _FACTS.items()],
        plots=[plot for plot in PLOTS if set(plot.curves) & set(COMPARED_CURVES)],
        has_measurements=page.services.histories.has_store,
    )  # fmt: skip


def _find_run(db: Connection, access: Access, text: str) -> RowMapping | None:
    reference = links.parse_reference(text)
    return reference.find(runs_of(db, access, reference.jobid, reference.cluster))


def _compare_fact(
    format_value: Callable[..., str], column: str, rows: list[RowMapping], now: int
) -> list[tuple[str, float | None]]:
    """The value of each job as text, and its fraction of the largest, for a bar."""
    values: list[float | None] = [
        elapsed_seconds(row, now) if column == "elapsed_seconds" else row[column] for row in rows
    ]
    format_or_absent = template_filters.or_absent(format_value)
    known_values = [value for value in values if value is not None]
    largest = 0 if format_value is template_filters.moment else max(known_values, default=0)
    basis = _BASES.get(column)
    return [
        (
            f"{AT_LEAST} {text}" if basis and row[basis] == AT_LEAST else text,
            value / largest if largest and value is not None else None,
        )
        for row, value, text in zip(rows, values, map(format_or_absent, values), strict=True)
    ]

"""Jobs side by side."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob.judgements import AT_LEAST
from batchjob.quantities.curves import COMPARED_CURVES, PLOTS
from batchjob_stats_db.database.access import Access
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import Query as Form
from batchjob_stats_server.api.params import Word
from batchjob_stats_server.api.runs import runs_of
from batchjob_stats_server.auth import audit
from batchjob_stats_server.pages.rendering import links, template_filters
from batchjob_stats_server.pages.rendering.frame import RequestPage
from batchjob_stats_server.pages.rendering.usage_bars import Row
from batchjob_stats_server.report.explain import elapsed_seconds

router = APIRouter(include_in_schema=False, route_class=TurnRoute)

MAX_JOBS = 8


class CompareForm(Form):
    """The jobs."""

    job: list[Word] = Field([], max_length=MAX_JOBS, description="Job ids or CLUSTER:ID.")


class Fact(NamedTuple):
    """A quantity that is compared."""

    name: str
    format_value: Callable[..., str]
    value_of: Callable[[Row, int], Any]
    basis: str = ""  # key of what the value is


FACTS = (
    Fact("Submitted", template_filters.moment, lambda row, _: row["submit_time"]),
    Fact("Started", template_filters.moment, lambda row, _: row["start_time"]),
    Fact("Ran", template_filters.duration, elapsed_seconds),
    Fact("Time limit", template_filters.duration, lambda row, _: row["time_limit_seconds"]),
    Fact("Nodes", template_filters.number, lambda row, _: row["allocated_nodes"]),
    Fact("CPUs", template_filters.number, lambda row, _: row["allocated_cpus"]),
    Fact("Memory", template_filters.size, lambda row, _: row["allocated_memory_bytes"]),
    Fact("GPUs", template_filters.number, lambda row, _: row["allocated_gpus"]),
    Fact("CPU time", template_filters.hours, lambda row, _: row["cpu_used_seconds"], "cpu_basis"),
    Fact("Peak memory", template_filters.size, lambda row, _: row["memory_used_bytes"]),
    Fact(
        "Peak GPU memory", template_filters.size, lambda row, _: row["usage_gpu_memory_peak_bytes"]
    ),
    Fact(
        "Read from files, at least",
        template_filters.size,
        lambda row, _: row["usage_process_io_read_bytes"],
    ),
    Fact(
        "Written to files, at least",
        template_filters.size,
        lambda row, _: row["usage_process_io_written_bytes"],
    ),
    Fact(
        "Major page faults", template_filters.number, lambda row, _: row["usage_major_page_faults"]
    ),
    Fact("OOM kills", template_filters.number, lambda row, _: row["usage_oom_kills"]),
    Fact("Energy", template_filters.energy, lambda row, _: row["energy_used_joules"]),
)


class ComparedFact(NamedTuple):
    """One line of the table: a value of each job, and its fraction of the largest, for a bar."""

    name: str
    texts: list[str]
    fractions: list[float | None]


@router.get("/compare")
def compare(page: RequestPage, form: Annotated[CompareForm, Query()]) -> Response:
    """The requested jobs that the caller may see."""
    with page.services.reader.connect() as db:
        runs = [(text, _find_run(db, page.access, text)) for text in dict.fromkeys(form.job)]
    rows = [row for _, row in runs if row is not None]
    audit.log_jobs_seen(page.principal, "jobs", rows)
    return page.render(
        "compare.html", uses_plotly=True, jobs=rows,
        missing=[text for text, row in runs if not row],
        facts=[_compare_fact(fact, rows, page.now) for fact in FACTS],
        plots=[plot for plot in PLOTS if set(plot.curves) & set(COMPARED_CURVES)],
        has_measurements=page.services.histories is not None,
    )  # fmt: skip


def _find_run(db: Connection, access: Access, text: str) -> RowMapping | None:
    reference = links.parse_reference(text)
    return reference.find(runs_of(db, access, reference.jobid, reference.cluster))


def _compare_fact(fact: Fact, rows: list[RowMapping], now: int) -> ComparedFact:
    values = [fact.value_of(row, now) for row in rows]
    format_value = template_filters.or_absent(fact.format_value)
    known_values = [value for value in values if value is not None]
    largest = 0 if fact.format_value is template_filters.moment else max(known_values, default=0)
    fractions = [value / largest if largest and value is not None else None for value in values]
    texts = [
        f"{AT_LEAST} {text}" if fact.basis and row[fact.basis] == AT_LEAST else text
        for row, text in zip(rows, map(format_value, values), strict=True)
    ]
    return ComparedFact(fact.name, texts, fractions)

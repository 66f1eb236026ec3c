"""Jobs side by side."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob.quantities.curves import COMPARED, PLOTS
from batchjob_stats_db.database.access import Access
from batchjob_stats_server.api.params import Query as Form
from batchjob_stats_server.api.params import Word
from batchjob_stats_server.api.runs import runs_of
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.pages.rendering import links, template_filters
from batchjob_stats_server.pages.rendering.frame import Shown
from batchjob_stats_server.pages.rendering.usage_bars import Row
from batchjob_stats_server.report.explain import elapsed
from batchjob_stats_server.services import Given, live_rows

router = APIRouter(include_in_schema=False)

MOST = 8


class CompareForm(Form):
    """The jobs."""

    job: list[Word] = Field([], max_length=MOST, description="Job ids or CLUSTER:ID.")


class Fact(NamedTuple):
    """A line of the table."""

    name: str
    write: Callable[..., str]
    of: Callable[[Row, int], Any]


FACTS = (
    Fact("Submitted", template_filters.moment, lambda row, _: row["submit_time"]),
    Fact("Started", template_filters.moment, lambda row, _: row["start_time"]),
    Fact("Ran", template_filters.lasting, elapsed),
    Fact("Time limit", template_filters.lasting, lambda row, _: row["time_limit_seconds"]),
    Fact("Nodes", template_filters.number, lambda row, _: row["allocated_nodes"]),
    Fact("CPUs", template_filters.number, lambda row, _: row["allocated_cpus"]),
    Fact("Memory", template_filters.size, lambda row, _: row["allocated_memory_bytes"]),
    Fact("GPUs", template_filters.number, lambda row, _: row["allocated_gpus"]),
    Fact("CPU time", template_filters.hours, lambda row, _: row["cpu_used_seconds"]),
    Fact("Peak memory", template_filters.size, lambda row, _: row["memory_used_bytes"]),
    Fact(
        "Peak GPU memory", template_filters.size, lambda row, _: row["usage_gpu_memory_peak_bytes"]
    ),
    Fact(
        "Read from files", template_filters.size, lambda row, _: row["usage_process_io_read_bytes"]
    ),
    Fact(
        "Written to files",
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
    """A fact of all jobs; each with its fraction of the largest, for a bar."""

    name: str
    texts: list[str]
    parts: list[float | None]


@router.get("/compare")
def compare(
    services: Given, page: Shown, access: Caller, which: Annotated[CompareForm, Query()]
) -> Response:
    """The named jobs that may be seen."""
    with services.reader.connect() as db:
        found = [(word, _found(db, access, word)) for word in dict.fromkeys(which.job)]
    rows = live_rows(services, [row for _, row in found if row is not None])
    audit.seen(page.known, "jobs", rows)
    return page.show(
        "compare.html", plots=True, jobs=rows, missing=[word for word, row in found if not row],
        lines=[_line(fact, rows, page.now) for fact in FACTS],
        drawings=[plot for plot in PLOTS if set(plot.curves) & set(COMPARED)],
        measured=services.histories is not None,
    )  # fmt: skip


def _found(db: Connection, access: Access, word: str) -> RowMapping | None:
    wanted = links.referred(word)
    runs = runs_of(db, access, wanted.jobid, wanted.cluster)
    return next((row for row in runs if wanted.means(row)), None)


def _line(fact: Fact, rows: list[RowMapping], now: int) -> ComparedFact:
    values = [fact.of(row, now) for row in rows]
    write = template_filters.or_absent(fact.write)
    numbers = [value for value in values if value is not None]
    top = 0 if fact.write is template_filters.moment else max(numbers, default=0)
    parts = [value / top if top and value is not None else None for value in values]
    return ComparedFact(fact.name, [write(value) for value in values], parts)

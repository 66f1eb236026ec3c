"""Jobs side by side."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.access import Access
from batchjob_stats_server import audit
from batchjob_stats_server.identity import Caller
from batchjob_stats_server.pages import addresses, written
from batchjob_stats_server.pages.frame import Shown
from batchjob_stats_server.pages.plots import COMPARED, PLOTS
from batchjob_stats_server.pages.shares import Row
from batchjob_stats_server.parameters import Query as Form
from batchjob_stats_server.parameters import Word
from batchjob_stats_server.report.efficiency import cpu_seconds, elapsed, peak_memory
from batchjob_stats_server.report.similar import energy
from batchjob_stats_server.runs import runs_of
from batchjob_stats_server.services import Given

router = APIRouter(include_in_schema=False)

MOST = 8


class CompareForm(Form):
    """The jobs."""

    job: list[Word] = Field(
        [], max_length=MOST, description="Ids, CLUSTER:ID, or as the lists of jobs have them."
    )


class Fact(NamedTuple):
    """A line of the table."""

    name: str
    write: Callable[..., str]
    of: Callable[[Row, int], Any]


FACTS = (
    Fact("Submitted", written.moment, lambda row, _: row["submit_time"]),
    Fact("Started", written.moment, lambda row, _: row["start_time"]),
    Fact("Ran", written.lasting, elapsed),
    Fact("Time limit", written.lasting, lambda row, _: row["time_limit_seconds"]),
    Fact("Nodes", written.number, lambda row, _: row["allocated_nodes"]),
    Fact("CPUs", written.number, lambda row, _: row["allocated_cpus"]),
    Fact("Memory", written.size, lambda row, _: row["allocated_memory_bytes"]),
    Fact("GPUs", written.number, lambda row, _: row["allocated_gpus"]),
    Fact("CPU time", written.hours, lambda row, _: cpu_seconds(row)),
    Fact("Peak memory", written.size, lambda row, _: peak_memory(row)),
    Fact("Peak GPU memory", written.size, lambda row, _: row["usage_gpu_memory_peak_bytes"]),
    Fact("Read from files", written.size, lambda row, _: row["usage_process_io_read_bytes"]),
    Fact("Written to files", written.size, lambda row, _: row["usage_process_io_written_bytes"]),
    Fact("Major page faults", written.number, lambda row, _: row["usage_major_page_faults"]),
    Fact("OOM kills", written.number, lambda row, _: row["usage_oom_kills"]),
    Fact("Energy", written.energy, lambda row, _: energy(row)),
)


class Line(NamedTuple):
    """A fact of all jobs; each with its part of the largest, for a bar."""

    name: str
    texts: list[str]
    parts: list[float | None]


@router.get("/compare")
def compare(
    services: Given, page: Shown, access: Caller, which: Annotated[CompareForm, Query()]
) -> Response:
    """The jobs that are named and may be seen."""
    with services.reader.connect() as db:
        found = [(word, _found(db, access, word)) for word in dict.fromkeys(which.job)]
    rows = [row for _, row in found if row is not None]
    audit.seen(page.known, "jobs", rows)
    return page.show(
        "compare.html", plots=True, jobs=rows, missing=[word for word, row in found if not row],
        lines=[_line(fact, rows, page.now) for fact in FACTS],
        drawings=[plot for plot in PLOTS if set(plot.curves) & set(COMPARED)],
        measured=services.histories is not None,
    )  # fmt: skip


def _found(db: Connection, access: Access, word: str) -> RowMapping | None:
    wanted = addresses.referred(word)
    runs = runs_of(db, access, wanted.jobid, wanted.cluster)
    return next((row for row in runs if wanted.means(row)), None)


def _line(fact: Fact, rows: list[RowMapping], now: int) -> Line:
    values = [fact.of(row, now) for row in rows]
    write = written.or_absent(fact.write)
    numbers = [value for value in values if value is not None]
    top = 0 if fact.write is written.moment else max(numbers, default=0)
    parts = [value / top if top and value is not None else None for value in values]
    return Line(fact.name, [write(value) for value in values], parts)

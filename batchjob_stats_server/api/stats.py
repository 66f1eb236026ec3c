"""Statistics for operators; users see those of the jobs that they may see."""

from collections.abc import Sequence
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.queries import operators, stats, usage
from batchjob_stats_db.queries.waste import RESOURCES, unused_key
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.answers import looked_up, table, users_table
from batchjob_stats_server.api.params import Days, Duration, Ratio, RowsParams, Word
from batchjob_stats_server.api.rows import Rows, answer, chosen, listed, model
from batchjob_stats_server.api.usage import KEYS, By
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller, Known
from batchjob_stats_server.services import Given, Services, live_gpus, live_rows

router = APIRouter(prefix=f"{PREFIX}/stats")

Resource = Annotated[str, Field(pattern=f"^({'|'.join(RESOURCES)})$")]
Limit = Annotated[int, Field(ge=1, le=1000)]


def _number(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float)


_daily = schema.daily_usage.c
_WHOSE = (_daily.cluster, _daily.day, _daily.account, _daily.username)
WasteRow = model(
    "WasteRow",
    (
        *_WHOSE,
        *(_daily[name] for pair in RESOURCES.values() for name in pair),
        *(_number(unused_key(name)) for name in RESOURCES),
        *(_number(f"{name}_efficiency") for name in RESOURCES),
    ),
)
FailureRow = model(
    "FailureRow", (*_WHOSE, _daily.jobs_ended, _daily.jobs_failed, _number("failed_ratio"))
)
WaitRow = model("WaitRow", schema.daily_wait.columns)
IdleGpuRow = model("IdleGpuRow", operators.IDLE_COLUMNS)
UnfinishedRow = model(
    "UnfinishedRow", (schema.job.c.cluster, schema.job.c.state, sa.Column("jobs", sa.Integer))
)


class SumsQuery(Days):
    """Which days, and what is told apart."""

    by: By = Field("user", description="Key to group by.")
    account: Word | None = None
    user: Word | None = None
    limit: Limit = 20


class WasteQuery(SumsQuery):
    """Of what most was unused."""

    of: Resource = Field("cpu", description="Key to sort by.")


@router.get("/waste", response_model=listed(WasteRow))
async def waste(
    services: Given, known: Known, access: Caller, which: Annotated[WasteQuery, Query()]
) -> Response:
    """Who left most of what they were given unused; of jobs that were measured alone."""
    columns = [name for pair in RESOURCES.values() for name in pair]

    def ask(db: Connection) -> Rows:
        return operators.wasted(_sums(services, access, which, db, columns), which.of, which.limit)

    return await users_table(services, known, which, WasteRow, ask, "waste", which.user)


@router.get("/failures", response_model=listed(FailureRow))
async def failures(
    services: Given, known: Known, access: Caller, which: Annotated[SumsQuery, Query()]
) -> Response:
    """Whose jobs failed most often: also by time-out, lack of memory and nodes that failed."""

    def ask(db: Connection) -> Rows:
        sums = _sums(services, access, which, db, ["jobs_ended", "jobs_failed"])
        return operators.failing(sums, which.limit)

    return await users_table(services, known, which, FailureRow, ask, "failures", which.user)


def _sums(
    services: Services, access: Access, which: SumsQuery, db: Connection, columns: Sequence[str]
) -> Sequence[RowMapping]:
    return usage.summed(
        db, access, [KEYS[which.by]], *which.window(services.clock()),
        cluster=which.cluster, account=which.account, user=which.user, columns=columns,
    )  # fmt: skip


class WaitsQuery(Days):
    """Which days and partition."""

    partition: Word | None = None


@router.get("/waits", response_model=listed(WaitRow))
async def waits(
    services: Given, known: Known, access: Caller, which: Annotated[WaitsQuery, Query()]
) -> Response:
    """How long the jobs that started on a day had waited, by partition: percentiles."""
    window = which.window(services.clock())
    return await table(services, known, which, WaitRow, lambda db: operators.waited(
        db, access, *window, which.cluster, which.partition
    ))  # fmt: skip


class IdleQuery(RowsParams):
    """What is idle."""

    cluster: Word | None = None
    utilization_at_most: Ratio = Field(0.01, description="Mean over the time allocated, 0 to 1.")
    held_at_least: Duration = Field(1800, description="Seconds.")
    limit: Limit = 100


@router.get("/idle-gpus", response_model=listed(IdleGpuRow))
async def idle_gpus(
    services: Given, known: Known, access: Caller, which: Annotated[IdleQuery, Query()]
) -> Response:
    """Running jobs that hold GPUs and do not use them, by what they used until now."""
    keys = chosen(which.fields, IdleGpuRow)
    rows = await looked_up(services, known, lambda db: operators.idle_gpus(
        db, access, which.utilization_at_most, which.held_at_least, which.limit, which.cluster,
        lambda found: live_rows(services, found), lambda found: live_gpus(services, found),
    ))  # fmt: skip
    audit.seen(known, "idle GPUs", rows)
    return answer(rows, keys, which.format)


class ClusterQuery(RowsParams):
    """On which cluster."""

    cluster: Word | None = None


@router.get("/unfinished", response_model=listed(UnfinishedRow))
async def unfinished(
    services: Given, known: Known, access: Caller, which: Annotated[ClusterQuery, Query()]
) -> Response:
    """How many jobs wait, run and are suspended."""
    return await table(services, known, which, UnfinishedRow, lambda db: stats.unfinished_by_state(
        db, access, which.cluster
    ))  # fmt: skip

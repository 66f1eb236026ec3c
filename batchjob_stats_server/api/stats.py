"""Statistics for operators; users see those of the jobs that they may see."""

from collections.abc import Sequence
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob.judgements import FAILED_MEANS, USED_MEMORY_MEANS, WASTE_MEANS, thresholds
from batchjob_stats_db.database import schema
from batchjob_stats_db.queries import operators, stats, usage
from batchjob_stats_db.queries.operators import RESOURCES, unused_key
from batchjob_stats_server.api.answers import (
    answer,
    list_type,
    query_database,
    row_model,
    select_keys,
    table,
)
from batchjob_stats_server.api.params import (
    PREFIX,
    ClusterRows,
    Days,
    Duration,
    Ratio,
    SumsParams,
    Word,
)
from batchjob_stats_server.api.rows import Rows
from batchjob_stats_server.api.usage import KEYS, GroupKey
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller, CurrentCaller

router = APIRouter(prefix=f"{PREFIX}/stats")

Resource = Annotated[str, Field(pattern=f"^({'|'.join(RESOURCES)})$")]
Limit = Annotated[int, Field(ge=1, le=1000)]


def _number(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float)


_WASTE = f"Users with the most unused resources. {WASTE_MEANS} {USED_MEMORY_MEANS}"
_FAILURES = f"Users with the most failed jobs. {FAILED_MEANS}"
_daily = schema.daily_usage.c
_WHOSE = (_daily.cluster, _daily.day, _daily.account, _daily.username)
WasteRow = row_model(
    "WasteRow",
    (
        *_WHOSE,
        *(_daily[name] for pair in RESOURCES.values() for name in pair),
        *(_number(unused_key(name)) for name in RESOURCES),
        *(_number(f"{name}_efficiency") for name in RESOURCES),
    ),
)
FailureRow = row_model(
    "FailureRow", (*_WHOSE, _daily.jobs_ended, _daily.jobs_failed, _number("failed_ratio"))
)
WaitRow = row_model("WaitRow", schema.daily_wait.columns)
IdleGpuRow = row_model("IdleGpuRow", operators.IDLE_COLUMNS)
UnfinishedRow = row_model(
    "UnfinishedRow", (schema.job.c.cluster, schema.job.c.state, sa.Column("jobs", sa.Integer))
)


class SumsQuery(SumsParams):
    """Selects the days to sum, and the column to group by."""

    by: GroupKey = Field("user", description="Key to group by.")
    limit: Limit = 20


class WasteQuery(SumsQuery):
    """Ranks by the unused part of one resource."""

    of: Resource = Field("cpu", description="Key to sort by.")


@router.get("/waste", response_model=list_type(WasteRow), description=_WASTE)
async def waste(
    caller: CurrentCaller,
    params: Annotated[WasteQuery, Query()],
) -> Response:
    """Users with the most unused resources; only measured jobs are counted."""
    columns = [name for pair in RESOURCES.values() for name in pair]

    def query(db: Connection) -> Rows:
        return operators.most_wasteful(_sums(caller, params, db, columns), params.limit, params.of)

    return await table(caller, params, WasteRow, query)


@router.get("/failures", response_model=list_type(FailureRow), description=_FAILURES)
async def failures(
    caller: CurrentCaller,
    params: Annotated[SumsQuery, Query()],
) -> Response:
    """Users with the most failed jobs."""

    def query(db: Connection) -> Rows:
        sums = _sums(caller, params, db, ["jobs_ended", "jobs_failed"])
        return operators.most_failures(sums, params.limit)

    return await table(caller, params, FailureRow, query)


def _sums(
    caller: Caller, params: SumsQuery, db: Connection, columns: Sequence[str]
) -> Sequence[RowMapping]:
    return usage.sum_usage(
        db, caller.access, [KEYS[params.by]], *params.window(caller.services.clock()),
        columns=columns, **params.owners(),
    )  # fmt: skip


class WaitsQuery(Days):
    """Selects the days, and a partition."""

    partition: Word | None = None


@router.get("/waits", response_model=list_type(WaitRow))
async def waits(
    caller: CurrentCaller,
    params: Annotated[WaitsQuery, Query()],
) -> Response:
    """Percentiles of the waiting times of the jobs that started on each day, by partition."""
    window = params.window(caller.services.clock())
    return await table(
        caller, params, WaitRow,
        lambda db: operators.waits_by_partition(
            db, caller.access, *window, params.cluster, params.partition
        ),
    )  # fmt: skip


class IdleQuery(ClusterRows):
    """Sets the thresholds below which a running job counts as idle."""

    utilization_at_most: Ratio | None = Field(
        None, description="Mean over the time allocated, 0 to 1; default: the threshold idle-gpu."
    )
    held_at_least: Duration | None = Field(
        None, description="Seconds; default: the threshold idle-after."
    )
    limit: Limit = 100


@router.get("/idle-gpus", response_model=list_type(IdleGpuRow))
async def idle_gpus(
    caller: CurrentCaller,
    params: Annotated[IdleQuery, Query()],
) -> Response:
    """Running jobs that leave allocated GPUs unused, as last measured."""
    keys, limits = select_keys(params.fields, IdleGpuRow), thresholds()
    ratio, seconds = params.utilization_at_most, params.held_at_least
    at_most = limits.idle_gpu if ratio is None else ratio
    held = limits.idle_after if seconds is None else seconds
    rows = await query_database(caller, lambda db: operators.idle_gpus(
        db, caller.access, at_most, held, params.limit, params.cluster,
    ))  # fmt: skip
    audit.log_jobs_seen(caller.principal, "idle GPUs", rows)
    return answer(rows, keys, params.format)


@router.get("/unfinished", response_model=list_type(UnfinishedRow))
async def unfinished(
    caller: CurrentCaller,
    params: Annotated[ClusterRows, Query()],
) -> Response:
    """Numbers of pending, running and suspended jobs."""
    return await table(
        caller, params, UnfinishedRow,
        lambda db: stats.unfinished_by_state(db, caller.access, params.cluster),
    )  # fmt: skip

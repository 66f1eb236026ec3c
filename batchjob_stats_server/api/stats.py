"""Sums of usage over days, and statistics for operators; users see those of their own jobs."""

from collections.abc import Sequence
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Response
from pydantic import Field
from sqlalchemy.engine import RowMapping

from batchjob.judgements import (
    BASIS_MEANS,
    ENERGY_MEANS,
    FAILED_MEANS,
    USED_MEMORY_MEANS,
    WASTE_MEANS,
    thresholds,
)
from batchjob_stats_db.database import schema
from batchjob_stats_db.queries import operators, stats, usage
from batchjob_stats_db.queries.operators import RESOURCES, unused_key
from batchjob_stats_server.api.answers import CostlyRoute, answer, list_type, row_model, select_keys
from batchjob_stats_server.api.params import (
    PREFIX,
    ClusterRows,
    Days,
    Duration,
    InQuery,
    OneOrMore,
    Ratio,
    RowsParams,
    SumsParams,
    Word,
)
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.auth.rights import log_jobs_seen

router = APIRouter(prefix=PREFIX, route_class=CostlyRoute)

KEYS: dict[str, usage.By] = {
    "cluster": "cluster",
    "account": "account",
    "user": "username",
    "day": "day",
}
GroupKey = Annotated[str, Field(pattern=f"^({'|'.join(KEYS)})$")]
Resource = Annotated[str, Field(pattern=f"^({'|'.join(RESOURCES)})$")]
Limit = Annotated[int, Field(ge=1, le=1000)]


def _number(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float)


_USAGE = (
    "Sums of the caller's jobs, or of all they may see; keys not grouped by are null. "
    f"{FAILED_MEANS} {BASIS_MEANS} {ENERGY_MEANS}"
)
_WASTE = f"Users with the most unused resources. {WASTE_MEANS} {USED_MEMORY_MEANS}"
_FAILURES = f"Users with the most failed jobs. {FAILED_MEANS}"
_daily, _account, _state = schema.daily_usage.c, schema.account.c, schema.poll_state.c
_WHOSE = (_daily.cluster, _daily.day, _daily.account, _daily.username)
_WASTE_COLUMNS = [name for pair in RESOURCES.values() for name in pair]
UsageRow = row_model("UsageRow", schema.daily_usage.columns)
EmissionsRow = row_model("EmissionsRow", schema.daily_emissions.columns)
AccountRow = row_model(
    "AccountRow", (_daily.cluster, _daily.account, _account.parent, _account.limits)
)
ClusterRow = row_model(
    "ClusterRow", (*schema.cluster.columns, _state.source, _state.success_time, _state.error_time)
)
WasteRow = row_model(
    "WasteRow",
    (
        *_WHOSE,
        *(_daily[name] for name in _WASTE_COLUMNS),
        *(_number(unused_key(name)) for name in RESOURCES),
        *(_number(f"{name}_efficiency") for name in RESOURCES),
    ),
)
FailureRow = row_model(
    "FailureRow", (*_WHOSE, _daily.jobs_ended, _daily.jobs_failed, _number("failed_ratio"))
)
WaitRow = row_model("WaitRow", schema.daily_wait.columns)
UsualWaitRow = row_model("UsualWaitRow", schema.usual_wait.columns)
IdleGpuRow = row_model("IdleGpuRow", operators.IDLE_COLUMNS)
UnfinishedRow = row_model(
    "UnfinishedRow", (schema.job.c.cluster, schema.job.c.state, sa.Column("jobs", sa.Integer))
)


class UsageQuery(SumsParams):
    """Selects the days, accounts and users to sum, and the columns to group by."""

    by: Annotated[list[GroupKey], OneOrMore] = Field(
        ["cluster"], description="Key to group by.", max_length=4
    )

    def keys(self) -> list[usage.By]:
        """Columns to group by, each once."""
        return [KEYS[name] for name in dict.fromkeys(self.by)]


def _sums(
    caller: Caller, params: SumsParams, by: Sequence[usage.By], **what: Any
) -> Sequence[RowMapping]:
    """Sums of the selected days and owners."""
    since, until = params.window(caller.services.clock())
    with caller.services.reader.connect() as db:
        return usage.sum_usage(db, caller.access, by, since, until, **params.owners(), **what)


@router.get("/usage", response_model=list_type(UsageRow), description=_USAGE, name="usage")
def sums(caller: CurrentCaller, params: InQuery[UsageQuery]) -> Response:
    """Sums of the jobs that the caller may see."""
    keys = select_keys(params, UsageRow)
    columns = [name for name in schema.DAILY_SUMS if name in keys]
    rows = _sums(caller, params, params.keys(), columns=columns, most=usage.MAX_ROWS)
    return answer(rows, params, UsageRow)


@router.get("/usage/emissions", response_model=list_type(EmissionsRow))
def usage_emissions(caller: CurrentCaller, params: InQuery[UsageQuery]) -> Response:
    """Grams of CO2 equivalent by provider; figures of different providers must not be added."""
    what = {"sums": schema.EMISSIONS, "most": usage.MAX_ROWS}
    rows = _sums(caller, params, params.keys(), **what)
    return answer(rows, params, EmissionsRow)


@router.get("/accounts", response_model=list_type(AccountRow))
def accounts(caller: CurrentCaller, params: InQuery[Days]) -> Response:
    """Accounts with jobs on these days that the caller may see."""
    window = params.window(caller.services.clock())
    with caller.services.reader.connect() as db:
        rows = stats.accounts(db, caller.access, *window, params.cluster)
    return answer(rows, params, AccountRow)


@router.get("/clusters", response_model=list_type(ClusterRow))
def clusters(caller: CurrentCaller, params: InQuery[RowsParams]) -> Response:
    """All clusters, with one row for each source of job records and the time it was last read."""
    with caller.services.reader.connect() as db:
        return answer(stats.clusters(db), params, ClusterRow)


class SumsQuery(SumsParams):
    """Selects the days to sum, and the column to group by."""

    by: GroupKey = Field("user", description="Key to group by.")
    limit: Limit = 20


class WasteQuery(SumsQuery):
    """Ranks by the unused part of one resource."""

    of: Resource = Field("cpu", description="Key to sort by.")


@router.get("/stats/waste", response_model=list_type(WasteRow), description=_WASTE)
def waste(caller: CurrentCaller, params: InQuery[WasteQuery]) -> Response:
    """Users with the most unused resources; only measured jobs are counted."""
    rows = _sums(caller, params, [KEYS[params.by]], columns=_WASTE_COLUMNS)
    return answer(operators.most_wasteful(rows, params.limit, params.of), params, WasteRow)


@router.get("/stats/failures", response_model=list_type(FailureRow), description=_FAILURES)
def failures(caller: CurrentCaller, params: InQuery[SumsQuery]) -> Response:
    """Users with the most failed jobs."""
    columns = ["jobs_ended", "jobs_failed"]
    rows = _sums(caller, params, [KEYS[params.by]], columns=columns)
    return answer(operators.most_failures(rows, params.limit), params, FailureRow)


class WaitsQuery(Days):
    """Selects the days, and a partition."""

    partition: Word | None = None


@router.get("/stats/waits", response_model=list_type(WaitRow))
def waits(caller: CurrentCaller, params: InQuery[WaitsQuery]) -> Response:
    """Percentiles of the waiting times of the jobs that started on each day, by partition."""
    window = params.window(caller.services.clock())
    with caller.services.reader.connect() as db:
        rows = operators.waits_by_partition(
            db, caller.access, *window, params.cluster, params.partition
        )
    return answer(rows, params, WaitRow)


class IdleQuery(ClusterRows):
    """Sets the thresholds below which a running job counts as idle."""

    utilization_at_most: Ratio | None = Field(
        None, description="Mean over the time allocated, 0 to 1; default: the threshold idle-gpu."
    )
    held_at_least: Duration | None = Field(
        None, description="Seconds; default: the threshold idle-after."
    )
    limit: Limit = 100


@router.get("/stats/usual-waits", response_model=list_type(UsualWaitRow))
def usual_waits(caller: CurrentCaller, params: InQuery[ClusterRows]) -> Response:
    """Percentiles of the waits of the last 30 days, by partition, by user and by account."""
    with caller.services.reader.connect() as db:
        rows = stats.usual_waits(db, caller.access, params.cluster, int(caller.services.clock()))
    return answer(rows, params, UsualWaitRow)


@router.get("/stats/idle-gpus", response_model=list_type(IdleGpuRow))
def idle_gpus(caller: CurrentCaller, params: InQuery[IdleQuery]) -> Response:
    """Running jobs that leave allocated GPUs unused, as last measured."""
    limits = thresholds()
    ratio, seconds = params.utilization_at_most, params.held_at_least
    at_most = limits.idle_gpu if ratio is None else ratio
    held = limits.idle_after if seconds is None else seconds
    with caller.services.reader.connect() as db:
        rows = operators.idle_gpus(db, caller.access, at_most, held, params.limit, params.cluster)
    log_jobs_seen(caller.principal, "idle GPUs", rows)
    return answer(rows, params, IdleGpuRow)


@router.get("/stats/unfinished", response_model=list_type(UnfinishedRow))
def unfinished(caller: CurrentCaller, params: InQuery[ClusterRows]) -> Response:
    """Numbers of pending, running and suspended jobs."""
    with caller.services.reader.connect() as db:
        rows = stats.unfinished_by_state(db, caller.access, params.cluster)
    return answer(rows, params, UnfinishedRow)

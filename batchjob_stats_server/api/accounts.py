"""Clusters, and the users and accounts that had jobs on them."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries import stats
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.answers import table, users_table
from batchjob_stats_server.api.params import Days, RowsParams
from batchjob_stats_server.api.rows import listed, model
from batchjob_stats_server.auth.identity import Caller, Known
from batchjob_stats_server.services import Given

router = APIRouter(prefix=PREFIX)

_daily, _account, _state = schema.daily_usage.c, schema.account.c, schema.poll_state.c
UserRow = model("UserRow", (_daily.cluster, _daily.username, _daily.account))
AccountRow = model(
    "AccountRow",
    (_daily.cluster, _daily.account, _account.parent, _account.limits),
)
ClusterRow = model(
    "ClusterRow",
    (*schema.cluster.columns, _state.source, _state.success_time, _state.error_time),
)


@router.get("/users", response_model=listed(UserRow))
async def users(
    services: Given, known: Known, access: Caller, which: Annotated[Days, Query()]
) -> Response:
    """Who had jobs on these days, once for each account; only what the caller may see."""
    return await users_table(services, known, which, UserRow, lambda db: stats.users(
        db, access, *which.window(services.clock()), which.cluster
    ), "users")  # fmt: skip


@router.get("/accounts", response_model=listed(AccountRow))
async def accounts(
    services: Given, known: Known, access: Caller, which: Annotated[Days, Query()]
) -> Response:
    """Which accounts had jobs on these days; only those of jobs that the caller may see."""
    return await table(services, known, which, AccountRow, lambda db: stats.accounts(
        db, access, *which.window(services.clock()), which.cluster
    ))  # fmt: skip


@router.get("/clusters", response_model=listed(ClusterRow))
async def clusters(
    services: Given, known: Known, _: Caller, which: Annotated[RowsParams, Query()]
) -> Response:
    """All clusters, once for each source of job records, and when it was last read."""
    return await table(services, known, which, ClusterRow, stats.clusters)

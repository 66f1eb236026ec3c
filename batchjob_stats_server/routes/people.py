"""Clusters, and who had jobs on them."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from batchjob_stats_db import schema
from batchjob_stats_db.queries import stats
from batchjob_stats_server.identity import Caller
from batchjob_stats_server.keys import listed, model
from batchjob_stats_server.parameters import Days, Table
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.routes.tables import table
from batchjob_stats_server.services import Given

router = APIRouter(prefix=PREFIX)

_daily, _account, _state = schema.daily_usage.c, schema.account.c, schema.poll_state.c
UserRow = model("UserRow", (_daily.cluster, _daily.username, _daily.account))
AccountRow = model(
    "AccountRow",
    (_daily.cluster, _daily.account, _account.parent),
)
ClusterRow = model(
    "ClusterRow",
    (*schema.cluster.columns, _state.source, _state.success_time, _state.error_time),
)


@router.get("/users", response_model=listed(UserRow))
async def users(services: Given, access: Caller, which: Annotated[Days, Query()]) -> Response:
    """Who had jobs on these days, once for each account; only what the caller may see."""
    return await table(services, access, which, UserRow, lambda db: stats.users(
        db, access, *which.window(services.clock()), which.cluster
    ))  # fmt: skip


@router.get("/accounts", response_model=listed(AccountRow))
async def accounts(services: Given, access: Caller, which: Annotated[Days, Query()]) -> Response:
    """Which accounts had jobs on these days; only those of jobs that the caller may see."""
    return await table(services, access, which, AccountRow, lambda db: stats.accounts(
        db, access, *which.window(services.clock()), which.cluster
    ))  # fmt: skip


@router.get("/clusters", response_model=listed(ClusterRow))
async def clusters(services: Given, access: Caller, which: Annotated[Table, Query()]) -> Response:
    """All clusters, once for each source of job records, and when it was last read."""
    return await table(services, access, which, ClusterRow, stats.clusters)

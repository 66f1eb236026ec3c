"""Clusters, and the users and accounts that had jobs on them."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries import stats
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.answers import list_type, row_model, table
from batchjob_stats_server.api.params import Days, RowsParams
from batchjob_stats_server.auth.identity import CurrentCaller

router = APIRouter(prefix=PREFIX)

_daily, _account, _state = schema.daily_usage.c, schema.account.c, schema.poll_state.c
UserRow = row_model("UserRow", (_daily.cluster, _daily.username, _daily.account))
AccountRow = row_model(
    "AccountRow",
    (_daily.cluster, _daily.account, _account.parent, _account.limits),
)
ClusterRow = row_model(
    "ClusterRow",
    (*schema.cluster.columns, _state.source, _state.success_time, _state.error_time),
)


@router.get("/users", response_model=list_type(UserRow))
async def users(
    caller: CurrentCaller,
    params: Annotated[Days, Query()],
) -> Response:
    """Users with jobs on these days that the caller may see, one row for each account."""
    return await table(caller, params, UserRow, lambda db: stats.users(
        db, caller.access, *params.window(caller.services.clock()), params.cluster
    ))  # fmt: skip


@router.get("/accounts", response_model=list_type(AccountRow))
async def accounts(
    caller: CurrentCaller,
    params: Annotated[Days, Query()],
) -> Response:
    """Accounts with jobs on these days that the caller may see."""
    return await table(caller, params, AccountRow, lambda db: stats.accounts(
        db, caller.access, *params.window(caller.services.clock()), params.cluster
    ))  # fmt: skip


@router.get("/clusters", response_model=list_type(ClusterRow))
async def clusters(
    caller: CurrentCaller,
    params: Annotated[RowsParams, Query()],
) -> Response:
    """All clusters, with one row for each source of job records and the time it was last read."""
    return await table(caller, params, ClusterRow, stats.clusters)

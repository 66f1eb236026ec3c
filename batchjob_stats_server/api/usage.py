"""Sums of usage over days, and the clusters and accounts of which they are."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from batchjob.judgements import BASIS_MEANS, ENERGY_MEANS, FAILED_MEANS
from batchjob_stats_db.database import schema
from batchjob_stats_db.queries import stats
from batchjob_stats_db.queries import usage as queries
from batchjob_stats_server.api.answers import list_type, row_model, select_keys, table
from batchjob_stats_server.api.params import PREFIX, Days, OneOrMore, RowsParams, SumsParams
from batchjob_stats_server.auth.identity import CurrentCaller

router = APIRouter(prefix=PREFIX)

KEYS: dict[str, queries.By] = {
    "cluster": "cluster",
    "account": "account",
    "user": "username",
    "day": "day",
}
GroupKey = Annotated[str, Field(pattern=f"^({'|'.join(KEYS)})$")]
_USAGE = (
    "Sums of the caller's jobs, or of all they may see; keys not grouped by are null. "
    f"{FAILED_MEANS} {BASIS_MEANS} {ENERGY_MEANS}"
)
UsageRow = row_model("UsageRow", schema.daily_usage.columns)
EmissionsRow = row_model("EmissionsRow", schema.daily_emissions.columns)


class UsageQuery(SumsParams):
    """Selects the days, accounts and users to sum, and the columns to group by."""

    by: Annotated[list[GroupKey], OneOrMore] = Field(
        ["cluster"], description="Key to group by.", max_length=4
    )

    def keys(self) -> list[queries.By]:
        """Columns to group by, each once."""
        return [KEYS[name] for name in dict.fromkeys(self.by)]


@router.get("/usage", response_model=list_type(UsageRow), description=_USAGE)
async def usage(
    caller: CurrentCaller,
    params: Annotated[UsageQuery, Query()],
) -> Response:
    """Sums of the jobs that the caller may see."""
    keys = select_keys(params.fields, UsageRow)
    columns = [name for name in schema.DAILY_SUMS if name in keys]
    return await table(caller, params, UsageRow, lambda db: queries.sum_usage(
        db, caller.access, params.keys(), *params.window(caller.services.clock()),
        columns=columns or schema.DAILY_SUMS, most=queries.MAX_ROWS, **params.owners(),
    ))  # fmt: skip


@router.get("/usage/emissions", response_model=list_type(EmissionsRow))
async def usage_emissions(
    caller: CurrentCaller,
    params: Annotated[UsageQuery, Query()],
) -> Response:
    """Grams of CO2 equivalent by provider; figures of different providers must not be added."""
    return await table(
        caller, params, EmissionsRow,
        lambda db: queries.sum_emissions(
            db, caller.access, params.keys(), *params.window(caller.services.clock()),
            most=queries.MAX_ROWS, **params.owners(),
        ),
    )  # fmt: skip


_daily, _account, _state = schema.daily_usage.c, schema.account.c, schema.poll_state.c
AccountRow = row_model(
    "AccountRow",
    (_daily.cluster, _daily.account, _account.parent, _account.limits),
)
ClusterRow = row_model(
    "ClusterRow",
    (*schema.cluster.columns, _state.source, _state.success_time, _state.error_time),
)


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

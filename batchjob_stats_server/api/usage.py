"""Sums of usage over days."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries import usage as queries
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.answers import users_table
from batchjob_stats_server.api.params import Days, OneOrMore, Word
from batchjob_stats_server.api.rows import chosen, listed, model
from batchjob_stats_server.auth.identity import Caller, Known
from batchjob_stats_server.services import Given

router = APIRouter(prefix=PREFIX)

KEYS: dict[str, queries.By] = {
    "cluster": "cluster",
    "account": "account",
    "user": "username",
    "day": "day",
}
By = Annotated[str, Field(pattern=f"^({'|'.join(KEYS)})$")]
UsageRow = model("UsageRow", schema.daily_usage.columns)
EmissionsRow = model("EmissionsRow", schema.daily_emissions.columns)


class UsageQuery(Days):
    """Which days, whose, and what is told apart."""

    by: Annotated[list[By], OneOrMore] = Field(
        ["cluster"], description="Key to group by.", max_length=4
    )
    account: Word | None = None
    user: Word | None = None

    def keys(self) -> list[queries.By]:
        """Columns to tell apart, each once."""
        return [KEYS[name] for name in dict.fromkeys(self.by)]


@router.get("/usage", response_model=listed(UsageRow))
async def usage(
    services: Given, known: Known, access: Caller, which: Annotated[UsageQuery, Query()]
) -> Response:
    """Sums of the caller's jobs, or of all they may see; keys that are not told apart are null."""
    wanted = chosen(which.fields, UsageRow)
    columns = [name for name in schema.DAILY_SUMS if name in wanted]
    return await users_table(services, known, which, UsageRow, lambda db: queries.summed(
        db, access, which.keys(), *which.window(services.clock()),
        cluster=which.cluster, account=which.account, user=which.user,
        columns=columns or schema.DAILY_SUMS, most=queries.MOST,
    ), "usage", which.user)  # fmt: skip


@router.get("/usage/emissions", response_model=listed(EmissionsRow))
async def usage_emissions(
    services: Given, known: Known, access: Caller, which: Annotated[UsageQuery, Query()]
) -> Response:
    """Grams of CO2 equivalent by provider, whose figures are not to be added up."""
    return await users_table(services, known, which, EmissionsRow, lambda db: queries.emissions(
        db, access, which.keys(), *which.window(services.clock()),
        cluster=which.cluster, account=which.account, user=which.user, most=queries.MOST,
    ), "emissions", which.user)  # fmt: skip

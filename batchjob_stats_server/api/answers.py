"""Answers in rows, read in threads; costly requests have threads of their own."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from anyio import to_thread
from fastapi import Response
from pydantic import BaseModel
from sqlalchemy.engine import Connection

from batchjob_stats_db.queries.index_walk import After
from batchjob_stats_db.queries.paging import TooManyError
from batchjob_stats_db.queries.usage import TooManyRowsError
from batchjob_stats_server.api.params import Days, RowsParams
from batchjob_stats_server.api.rows import Rows, answer, select_keys
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
from batchjob_stats_server.services import Services

T = TypeVar("T")


class RowsPage(NamedTuple):
    """Rows that name jobs, as they are sent."""

    response: Response
    more: After | None  # where the next page begins
    users: frozenset[str]  # users whose jobs are named


async def query_database(
    services: Services,
    principal: Principal,
    query: Callable[[Connection], T],
    *,
    costly: bool = True,
) -> T:
    """The result of a database query."""

    def work() -> T:
        try:
            with services.reader.connect() as db:
                return query(db)
        except (TooManyError, TooManyRowsError) as error:
            raise Problem(422, str(error)) from error

    return await run_in_thread(services, principal, work, costly=costly)


async def run_in_thread(
    services: Services, principal: Principal, work: Callable[[], T], *, costly: bool = True
) -> T:
    """Do the work in a thread; costly requests wait in a queue that is fair to users."""
    if not costly:
        return await to_thread.run_sync(services.threads.run_short, work)
    try:
        return await services.threads.heavy.run(principal.person_key(), work)
    except TooMany as error:
        raise Problem(429, str(error)) from error
    except Unavailable as error:
        raise Problem(503, str(error)) from error


async def table(
    services: Services,
    principal: Principal,
    params: RowsParams,
    row: type[BaseModel],
    query: Callable[[Connection], Rows],
) -> Response:
    """Rows that name nobody: waits, accounts, clusters."""
    keys = select_keys(params.fields, row)
    return await query_database(
        services, principal, lambda db: answer(query(db), keys, params.format)
    )


async def sums_table(
    services: Services,
    caller: Caller,
    params: Days,
    row: type[BaseModel],
    query: Callable[[Connection], Rows],
    what: str,
) -> Response:
    """Sums of jobs; the audit log records the question, since rows need not name those in them."""
    filters = params.model_dump(exclude={"fields", "format", "limit"})
    audit.log_sums_requested(*caller, what, filters)
    return await table(services, caller.principal, params, row, query)

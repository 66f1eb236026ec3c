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
from batchjob_stats_server.api.params import RowsParams
from batchjob_stats_server.api.rows import Rows, answer, chosen
from batchjob_stats_server.auth import audit
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


async def looked_up(
    services: Services, known: Principal, ask: Callable[[Connection], T], *, costly: bool = True
) -> T:
    """The result of a database query."""

    def work() -> T:
        try:
            with services.reader.connect() as db:
                return ask(db)
        except (TooManyError, TooManyRowsError) as error:
            raise Problem(422, str(error)) from error

    return await in_turn(services, known, work, costly=costly)


async def in_turn(
    services: Services, known: Principal, work: Callable[[], T], *, costly: bool = True
) -> T:
    """Do the work in a thread; costly requests wait in a queue that is fair to users."""
    if not costly:
        return await to_thread.run_sync(services.threads.short, work)
    try:
        return await services.threads.heavy.run(known.who(), work)
    except TooMany as error:
        raise Problem(429, str(error)) from error
    except Unavailable as error:
        raise Problem(503, str(error)) from error


async def table(
    services: Services,
    known: Principal,
    which: RowsParams,
    row: type[BaseModel],
    ask: Callable[[Connection], Rows],
) -> Response:
    """Rows that name nobody: waits, accounts, clusters."""
    keys = chosen(which.fields, row)
    return await looked_up(services, known, lambda db: answer(ask(db), keys, which.format))


async def users_table(
    services: Services,
    known: Principal,
    which: RowsParams,
    row: type[BaseModel],
    ask: Callable[[Connection], Rows],
    what: str,
    user: str | None = None,
) -> Response:
    """Rows that may name users, whom the audit log records; `user`: the only one requested."""
    keys = chosen(which.fields, row)

    def make(db: Connection) -> tuple[Response, frozenset[str]]:
        rows = list(ask(db))
        users = {name for each in rows if (name := each.get("username"))}
        return answer(rows, keys, which.format), frozenset(users | ({user} if user else set()))

    response, users = await looked_up(services, known, make)
    audit.saw(known, what, users)
    return response

"""Answers in rows, read in threads; costly requests have threads of their own."""

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sqlalchemy.engine import Connection

from batchjob_stats_db.queries.index_walk import After
from batchjob_stats_db.queries.paging import TooManyError
from batchjob_stats_db.queries.usage import TooManyRowsError
from batchjob_stats_server.api.params import Days, RowsParams
from batchjob_stats_server.api.rows import Rows, answer, select_keys
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
from batchjob_stats_server.services import CurrentServices, Services
from batchjob_stats_server.turns import Turns

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
    """Do the work in a thread, in turn with other users; costly work in threads of its own."""
    threads = services.threads
    if costly:
        return await run_in_turn(threads.heavy, principal, work)
    return await run_in_turn(threads.light, principal, partial(threads.run_short, work))


async def run_in_turn(queue: Turns, principal: Principal, work: Callable[[], T]) -> T:
    """Do the work when a thread is free for this user; raises Problem 429 or 503."""
    try:
        return await queue.run(principal.person_key(), work)
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


class TurnRoute(APIRoute):
    """A route whose function runs in a thread, in turn with requests of other users.

    FastAPI alone would start such functions in the order in which they arrive, so that one user's
    requests could take all threads.
    """

    queue: ClassVar[Literal["light", "files"]] = "light"

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        in_turn = endpoint if inspect.iscoroutinefunction(endpoint) else self._in_turn(endpoint)
        super().__init__(path, in_turn, **options)

    @classmethod
    def _in_turn(cls, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(endpoint)
        async def queued(turn_services: Services, turn_caller: Caller, **arguments: Any) -> Any:
            queue: Turns = getattr(turn_services.threads, cls.queue)
            return await run_in_turn(queue, turn_caller.principal, partial(endpoint, **arguments))

        signature = inspect.signature(endpoint)
        added = {"turn_services": CurrentServices, "turn_caller": CurrentCaller}
        parameters = [
            *signature.parameters.values(),
            *(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
                for name, kind in added.items()
            ),
        ]
        queued.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by FastAPI
        return queued


class FilesRoute(TurnRoute):
    """The same for work on users' files: a file system that hangs takes no other threads."""

    queue = "files"

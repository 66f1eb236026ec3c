"""Answers in rows; those that cost something are made once for all who ask the same at a time.

Many look at one dashboard, which asks for all of them again and again.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fastapi import Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sqlalchemy.engine import Connection

from batchjob_stats_db.access import Access
from batchjob_stats_db.queries.pages import After, TooManyError
from batchjob_stats_db.queries.usage import TooManyRowsError
from batchjob_stats_server.keys import Keys, chosen
from batchjob_stats_server.parameters import Table
from batchjob_stats_server.problems import Problem
from batchjob_stats_server.rows import Rows, framed, lines
from batchjob_stats_server.services import Services


class Found(NamedTuple):
    """What the database says."""

    lines: Sequence[bytes]  # a row is one as soon as it is read
    more: After | None = None  # where the next page begins
    users: frozenset[str] = frozenset()  # whose jobs are named


class Answer(NamedTuple):
    """The same as it is sent."""

    text: bytes
    media_type: str
    more: After | None
    users: frozenset[str]

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """For the one who asked."""
        return Response(self.text, media_type=self.media_type, headers=headers)


async def answered(
    services: Services,
    access: Access,
    which: Table,
    keys: Keys,
    ask: Callable[[Connection], Found],
) -> Answer:
    """What `ask` finds, with all who ask the same at a time and may see the same.

    The route's function `ask` and its parameters are the question: `ask` depends on nothing else.
    """

    question = ask.__module__, ask.__qualname__, which.model_dump_json()
    make = _reading(services, which, keys, ask)
    return await services.recent.of((question, access), make)


async def answered_alone(
    services: Services, which: Table, keys: Keys, ask: Callable[[Connection], Found]
) -> Answer:
    """The same for one who asks for so little that to share it would cost more."""
    if services.quick:
        answer = services.quick.ask(lambda db: _answer(db, which, keys, ask))
        if answer:
            return answer
    return await run_in_threadpool(_reading(services, which, keys, ask))


def _reading(
    services: Services, which: Table, keys: Keys, ask: Callable[[Connection], Found]
) -> Callable[[], Answer]:
    def make() -> Answer:
        with services.reader.connect() as db:
            return _answer(db, which, keys, ask)

    return make


def _answer(db: Connection, which: Table, keys: Keys, ask: Callable[[Connection], Found]) -> Answer:
    try:
        written, more, users = ask(db)
    except (TooManyError, TooManyRowsError) as error:
        raise Problem(422, str(error)) from error
    return Answer(*framed(written, keys, which.format), more, users)


async def table(
    services: Services,
    access: Access,
    which: Table,
    row: type[BaseModel],
    ask: Callable[[Connection], Rows],
) -> Response:
    """Rows in which nobody's jobs are named: sums, waits, who had jobs."""

    keys = chosen(which.fields, row)

    @functools.wraps(ask)
    def found(db: Connection) -> Found:
        return Found(lines(ask(db), keys, which.format))

    answer = await answered(services, access, which, keys, found)
    return answer.response()

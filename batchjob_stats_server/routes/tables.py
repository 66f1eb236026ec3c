"""Tables in which nobody's jobs are named: sums, waits, who had jobs."""

from collections.abc import Callable

from fastapi import Response
from pydantic import BaseModel
from sqlalchemy.engine import Connection

from batchjob_stats_db.access import Access
from batchjob_stats_db.queries.pages import TooManyError
from batchjob_stats_db.queries.usage import TooManyRowsError
from batchjob_stats_server.parameters import Table
from batchjob_stats_server.problems import Problem
from batchjob_stats_server.rows import Rows, chosen, written
from batchjob_stats_server.services import Services


def table(
    services: Services,
    access: Access,
    which: Table,
    row: type[BaseModel],
    ask: Callable[[Connection], Rows],
) -> Response:
    """The rows that `ask` finds; made once for all who ask the same at a time and may see the same.

    Many look at one dashboard, which asks for all of them again and again. The route's function
    `ask` and its parameters are the question: `ask` depends on nothing else.
    """
    keys = chosen(which.fields, row)

    def made() -> tuple[bytes, str]:
        try:
            with services.reader.connect() as db:
                return written(ask(db), keys, which.format)
        except (TooManyError, TooManyRowsError) as error:
            raise Problem(422, str(error)) from error

    question = ask.__module__, ask.__qualname__, which.model_dump_json()
    text, media_type = services.recent.of((question, access), made)
    return Response(text, media_type=media_type)

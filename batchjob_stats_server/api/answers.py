"""Answers in rows, read in threads; costly requests have threads of their own."""

import contextlib
import functools
import inspect
import operator
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from types import GenericAlias
from typing import Any, Literal, TypeVar, cast

import anyio
import sqlalchemy as sa
from fastapi import Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, create_model
from sqlalchemy.sql.elements import ColumnElement
from starlette.types import Receive, Scope, Send

from batchjob.runtime.times import to_milliseconds
from batchjob_stats_server.api.params import RowsParams
from batchjob_stats_server.api.rows import Keys, KeySources, Rows, in_rfc3339, keys_of, write_rows
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.turns import Turns

T = TypeVar("T")

# Keys of an answer, for the OpenAPI document and for `fields`

_TYPES: Mapping[type[Any], type] = {sa.Text: str, sa.Integer: int, object: float}
_CONVERTED_TYPES: Mapping[Any, type] = {in_rfc3339: str, to_milliseconds: int}


def row_model(name: str, columns: Iterable[ColumnElement[Any]]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for column in columns:
        kind = next(kind for sql, kind in _TYPES.items() if isinstance(column.type, sql))
        # Not all column expressions of SQLAlchemy have a `name`, but all of ours do.
        for key, source in keys_of(str(cast(Any, column).name)).items():
            fields[key] = (_CONVERTED_TYPES.get(source.make, kind) | None, None)
    return create_model(name, **fields)


def list_type(row: type[Any]) -> Any:
    return GenericAlias(list, (row,))


def union_of_lists(rows: Iterable[type[Any]]) -> Any:
    return functools.reduce(operator.or_, map(list_type, rows))


def select_keys(params: RowsParams, row: type[Any]) -> Keys:
    """The requested keys of a model or dataclass, by default all; raises Problem for others."""
    all_keys = tuple(getattr(row, "model_fields", None) or row.__dataclass_fields__)
    if params.fields is None:
        return all_keys
    names = tuple(dict.fromkeys(name.strip() for name in params.fields.split(",")))
    if unknown := [name for name in names if name not in all_keys]:
        raise Problem(
            422, f"fields: unknown key {unknown[0]!r}; expected one of {', '.join(all_keys)}"
        )
    return names


# Answers


def answer(rows: Rows, params: RowsParams, row: type[Any], computed: KeySources = ()) -> Response:
    """The requested keys of rows that have the same columns; see `write_rows`."""
    body, media_type = write_rows(rows, select_keys(params, row), params.format, computed)
    return Response(body, media_type=media_type)


async def run_in_thread(caller: Caller, work: Callable[[], T], *, costly: bool) -> T:
    """Do the work in a thread, in turn with other users; costly work in threads of its own."""
    threads, person = caller.services.threads, caller.principal.person_key()
    if costly:
        return await threads.heavy.run(person, work)
    return await threads.light.run(person, partial(threads.run_short, work))


class OpenStream(StreamingResponse):
    """A streamed answer, of which there is a limited number: each holds a connection.

    `end` is called however it ends.
    """

    def __init__(
        self,
        lines: AsyncIterator[bytes],
        turns: Turns,
        user: Hashable,
        end: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        super().__init__(lines, **options)
        self._turns, self._user, self._end = turns, user, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines as they arrive; raises TooMany, Unavailable."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            self._turns.take_now(self._user)
            stack.callback(self._turns.release, self._user)
            await super().__call__(scope, receive, send)


_END = object()


async def follow(
    caller: Caller, chunks: Iterator[bytes | None], pause_seconds: float
) -> AsyncIterator[bytes]:
    """The chunks of files, each read in a thread for files, in turn with other users.

    None among them: nothing more has been written yet.
    """
    in_turn = partial(caller.services.threads.files.run, caller.principal.person_key())
    next_chunk: Callable[[], Any] = partial(next, chunks, _END)
    try:
        while (chunk := await in_turn(next_chunk)) is not _END:
            if chunk is None:
                await anyio.sleep(pause_seconds)
            elif chunk:
                yield chunk
    except OSError:  # the headers have been sent, so the answer ends here
        return


def turn_route(name: Literal["light", "heavy", "files"]) -> type[APIRoute]:
    """Routes whose functions run in these threads, in turn with requests of other users.

    FastAPI alone would start such functions in the order in which they arrive, so that one user's
    requests could take all threads.
    """

    def in_turn(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(endpoint)
        async def queued(turn_caller: Caller, **arguments: Any) -> Any:
            turns: Turns = getattr(turn_caller.services.threads, name)
            person = turn_caller.principal.person_key()
            return await turns.run(person, partial(endpoint, **arguments))

        signature = inspect.signature(endpoint)
        added = inspect.Parameter(
            "turn_caller", inspect.Parameter.KEYWORD_ONLY, annotation=CurrentCaller
        )
        parameters = [*signature.parameters.values(), added]
        queued.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by FastAPI
        return queued

    class TurnRoute(APIRoute):
        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
            is_async = inspect.iscoroutinefunction(endpoint)
            super().__init__(path, endpoint if is_async else in_turn(endpoint), **options)

    return TurnRoute


TurnRoute = turn_route("light")
CostlyRoute = turn_route("heavy")  # expensive queries, so that others need not wait for them
FilesRoute = turn_route("files")  # users' files: a file system that hangs takes no other threads

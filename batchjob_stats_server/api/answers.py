"""Answers in rows, read in threads; costly requests have threads of their own."""

import base64
import binascii
import functools
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import GenericAlias
from typing import Any, ClassVar, Literal, TypeVar, cast
from urllib.parse import quote, urlencode

import sqlalchemy as sa
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, create_model
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.times import to_milliseconds
from batchjob_stats_db.queries.job_list import After, TooManyError
from batchjob_stats_server.api.params import JobGroupParams, RowsParams
from batchjob_stats_server.api.rows import (
    Keys,
    KeySources,
    RowFormat,
    Rows,
    in_rfc3339,
    keys_of,
    write_rows,
)
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
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


def list_type(row: type[BaseModel]) -> Any:
    return GenericAlias(list, (row,))


def select_keys(fields: str | None, row: type[BaseModel]) -> Keys:
    """The requested keys, by default all; an unknown name raises Problem."""
    all_keys = tuple(row.model_fields)
    if fields is None:
        return all_keys
    names = tuple(dict.fromkeys(name.strip() for name in fields.split(",")))
    unknown = [name for name in names if name not in all_keys]
    if unknown:
        raise Problem(
            422, f"fields: unknown key {unknown[0]!r}; expected one of {', '.join(all_keys)}"
        )
    return names


# Answers


def answer(rows: Rows, keys: Keys, form: RowFormat, computed: KeySources = ()) -> Response:
    """An answer with rows that have the same columns; see `write_rows`."""
    body, media_type = write_rows(rows, keys, form, computed)
    return Response(body, media_type=media_type)


async def query_database(
    caller: Caller, query: Callable[[Connection], T], *, costly: bool = True
) -> T:

    def work() -> T:
        try:
            with caller.services.reader.connect() as db:
                return query(db)
        except TooManyError as error:
            raise Problem(422, str(error)) from error

    return await run_in_thread(caller, work, costly=costly)


async def run_in_thread(caller: Caller, work: Callable[[], T], *, costly: bool = True) -> T:
    """Do the work in a thread, in turn with other users; costly work in threads of its own."""
    threads = caller.services.threads
    if costly:
        return await run_in_turn(threads.heavy, caller, work)
    return await run_in_turn(threads.light, caller, partial(threads.run_short, work))


async def run_in_turn(queue: Turns, caller: Caller, work: Callable[[], T]) -> T:
    """Do the work when a thread is free for this user; raises Problem 429 or 503."""
    try:
        return await queue.run(caller.principal.person_key(), work)
    except TooMany as error:
        raise Problem(429, str(error)) from error
    except Unavailable as error:
        raise Problem(503, str(error)) from error


async def table(
    caller: Caller,
    params: RowsParams,
    row: type[BaseModel],
    query: Callable[[Connection], Rows],
) -> Response:
    """Rows that name no jobs: sums, waits, accounts, clusters."""
    keys = select_keys(params.fields, row)
    return await query_database(caller, lambda db: answer(query(db), keys, params.format))


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
        async def queued(turn_caller: Caller, **arguments: Any) -> Any:
            queue: Turns = getattr(turn_caller.services.threads, cls.queue)
            return await run_in_turn(queue, turn_caller, partial(endpoint, **arguments))

        signature = inspect.signature(endpoint)
        added = inspect.Parameter(
            "turn_caller", inspect.Parameter.KEYWORD_ONLY, annotation=CurrentCaller
        )
        parameters = [*signature.parameters.values(), added]
        queued.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by FastAPI
        return queued


class FilesRoute(TurnRoute):
    """The same for work on users' files: a file system that hangs takes no other threads."""

    queue = "files"


# Cursors: the end of a page as an opaque text that fits only the query it came from

_LARGEST = 2**63


def encode_cursor(query_key: str, after: After) -> str:
    text = json.dumps([_digest(query_key), *after])
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_cursor(query_key: str, text: str, kind: type) -> After:
    """The end of the previous page; raises Problem for an invalid text or one of another query."""
    try:
        digest, value, number, part = parse_json(base64.b64decode(text, b"-_", validate=True))
    except (binascii.Error, ValueError, TypeError) as error:
        raise Problem(
            422, "cursor: expected the value from the `next` link of an answer"
        ) from error
    valid = isinstance(part, str) and _is_valid(value, number, kind)
    if digest != _digest(query_key) or not valid:
        raise Problem(422, "cursor: it belongs to another query")
    return After(value, number, part)


def next_page_link(request: Request, params: JobGroupParams, more: After | None) -> dict[str, str]:
    if more is None:
        return {}
    given = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
    query = urlencode([*given, ("cursor", encode_cursor(params.query_key(), more))])
    return {"Link": f'<{quote(request.scope["path"])}?{query}>; rel="next"'}


def _is_valid(value: Any, number: Any, kind: type) -> bool:
    """Whether every database accepts the values, which a client may have made up."""
    if type(number) is not int or not 0 <= number < _LARGEST:
        return False
    if isinstance(value, str):
        return kind is str and value.isprintable()
    if value is None:
        return True
    numeric = type(value) in (int, float) and kind is not str
    return numeric and math.isfinite(value) and abs(value) < _LARGEST


def _digest(query_key: str) -> str:
    return hashlib.sha256(query_key.encode()).hexdigest()[:16]

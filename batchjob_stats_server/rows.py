"""Rows of the database as flat rows of an answer, in JSON, JSON lines or CSV."""

import csv
import functools
import io
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from types import GenericAlias
from typing import Any, NamedTuple, cast

import orjson
import sqlalchemy as sa
from fastapi import Response
from pydantic import BaseModel, create_model
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_server.problems import Problem

_RENAMED = {"username": "user", "groupname": "group"}
_INTERNAL = {"usage_due_time"}
_RFC3339 = "_rfc3339"

Row = dict[str, Any]
Rows = Sequence[Mapping[Any, Any]]
Values = Iterable[Sequence[Any]]
Made = Mapping[str, Callable[[Mapping[Any, Any]], Any]]
_NONE: Made = {}


class Format(StrEnum):
    """How rows are written."""

    JSON = "json"  # a list
    NDJSON = "ndjson"  # an object on each line
    CSV = "csv"  # with a header


def _is_time(name: str) -> bool:
    return name.endswith("_time") or name == "day"


def model(name: str, columns: Iterable[ColumnElement[Any]]) -> type[BaseModel]:
    """The type of `flat` rows of these columns, for the OpenAPI document."""
    fields: dict[str, Any] = {}
    for column in columns:
        # Columns of an expression have no `name` in SQLAlchemy's types; all of ours do.
        own = str(cast(Any, column).name)
        key = _RENAMED.get(own, own)
        if own in _INTERNAL:
            continue
        if isinstance(column.type, sa.Text):
            fields[key] = (str | None, None)
        else:
            fields[key] = (
                int | None if isinstance(column.type, sa.Integer) else float | None,
                None,
            )
        if _is_time(own):
            fields[key + _RFC3339] = (str | None, None)
    return create_model(name, **fields)


def listed(row: type[BaseModel]) -> Any:
    """The type of an answer with such rows, for `response_model`."""
    return GenericAlias(list, (row,))


def flat(row: Mapping[Any, Any]) -> Row:
    """Every key of the row; times in epoch milliseconds, and in RFC 3339 beside."""
    keys = tuple(key for name in row for key in _keys(name))
    return dict(zip(keys, next(_values([row], keys)), strict=True))


def _keys(name: str) -> Sequence[str]:
    """The keys that a column of the database has in an answer."""
    if name in _INTERNAL:
        return ()
    key = _RENAMED.get(name, name)
    return (key, key + _RFC3339) if _is_time(name) else (key,)


class _Plan(NamedTuple):
    """Where the values of some keys are in a row, and which of them are times."""

    pick: Callable[[Sequence[Any]], Sequence[Any]]
    milliseconds: Sequence[int]
    rfc3339: Sequence[int]


@functools.lru_cache(256)
def _plan(names: tuple[str, ...], keys: tuple[str, ...]) -> _Plan:
    """Rows have the same names over and over: what to do with each is found out once."""
    places = {key: place for place, name in enumerate(names) for key in _keys(name)}
    nothing = len(names)  # one more value, for keys that the row does not have
    timed = {key for name in names if _is_time(name) for key in _keys(name)}
    return _Plan(
        # With one place alone it would give a value instead of a tuple.
        operator.itemgetter(*(places.get(key, nothing) for key in keys), nothing),
        [n for n, key in enumerate(keys) if key in timed and not key.endswith(_RFC3339)],
        [n for n, key in enumerate(keys) if key in timed and key.endswith(_RFC3339)],
    )


def _values(rows: Rows, keys: Sequence[str], more: Made = _NONE) -> Iterator[list[Any]]:
    """The values of the keys, row by row."""
    if not rows:
        return
    pick, milliseconds, texts = _plan((*rows[0], *more), tuple(keys))
    for row in rows:
        made = list(pick((*row.values(), *(make(row) for make in more.values()), None)))
        del made[-1]
        for place in texts:
            if made[place] is not None:
                made[place] = _rfc3339(made[place])
        for place in milliseconds:
            if made[place] is not None:
                made[place] *= 1000
        yield made


def _rfc3339(seconds: int) -> str | None:
    second = seconds % 86400
    day = _date(seconds - second)
    return day and f"{day}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


@functools.lru_cache(10_000)
def _date(midnight: int) -> str | None:
    try:
        return datetime.fromtimestamp(midnight, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return None  # beyond the year 9999


def chosen(fields: str | None, row: type[BaseModel]) -> tuple[str, ...]:
    """The wanted keys, all by default; a name nobody knows is a problem."""
    known = tuple(row.model_fields)
    if fields is None:
        return known
    names = tuple(name.strip() for name in fields.split(","))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Problem(422, f"fields: {unknown[0]!r} is none of {', '.join(known)}")
    return names


def answer(
    rows: Sequence[Mapping[Any, Any]],
    keys: Sequence[str],
    form: Format,
    headers: Mapping[str, str] | None = None,
    made: Made = _NONE,
) -> Response:
    """The rows with these keys, of which some are made of others; no rows are an empty list."""
    text, media_type = _FORMATS[form](_values(rows, keys, made), keys)
    return Response(text, media_type=media_type, headers=headers)


def _objects(values: Values, keys: Sequence[str]) -> Iterator[Row]:
    return (dict(zip(keys, each, strict=True)) for each in values)


def _json(values: Values, keys: Sequence[str]) -> tuple[bytes, str]:
    return orjson.dumps(list(_objects(values, keys))), "application/json"


def _ndjson(values: Values, keys: Sequence[str]) -> tuple[bytes, str]:
    lines = (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in _objects(values, keys))
    return b"".join(lines), "application/x-ndjson"


def _csv(values: Values, keys: Sequence[str]) -> tuple[bytes, str]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(keys)
    writer.writerows(map(harmless, each) for each in values)
    return out.getvalue().encode(), "text/csv"


def harmless(value: Any) -> Any:
    """A job's name is not to be a formula in somebody's spreadsheet (OWASP, "CSV Injection")."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value


_FORMATS: Mapping[Format, Callable[[Values, Sequence[str]], tuple[bytes, str]]] = {
    Format.JSON: _json,
    Format.NDJSON: _ndjson,
    Format.CSV: _csv,
}

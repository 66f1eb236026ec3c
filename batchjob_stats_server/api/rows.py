"""Rows of the database as an answer: columns become keys, written as JSON, JSON lines or CSV.

A job has more than a hundred keys, so what a set of keys needs is settled once: values that are
columns are taken in one go, and msgspec writes a struct in a quarter of the time of a dict.
"""

import csv
import functools
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from types import GenericAlias
from typing import Any, NamedTuple, cast

import msgspec
import sqlalchemy as sa
from fastapi import Response
from pydantic import BaseModel, create_model
from sqlalchemy.sql.elements import ColumnElement

from batchjob.runtime.cells import harmless
from batchjob.runtime.times import rfc3339
from batchjob_stats_db.queries.job_rows import Names
from batchjob_stats_server.http.problems import Problem

_RENAMED = {"username": "user", "groupname": "group"}
_INTERNAL = {"usage_due_time"}

Keys = tuple[str, ...]
Values = Sequence[Any]
Rows = Sequence[Mapping[Any, Any]]


class RowFormat(StrEnum):
    """How rows are written."""

    JSON = "json"  # a list
    NDJSON = "ndjson"  # an object on each line
    CSV = "csv"  # with a header


class KeySource(NamedTuple):
    """The columns that a key is made of; without `make` it is the column's own value."""

    columns: Names
    make: Callable[..., Any] | None = None


KeySources = tuple[tuple[str, KeySource], ...]


def _milliseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


_rfc3339 = functools.lru_cache(20_000)(rfc3339)  # times of jobs are alike


def _keys_of(column: str) -> Mapping[str, KeySource]:
    """The keys that a column of the database has in an answer."""
    if column in _INTERNAL:
        return {}
    key = _RENAMED.get(column, column)
    if column.endswith("_time") or column == "day":
        return {
            key: KeySource((column,), _milliseconds),
            f"{key}_rfc3339": KeySource((column,), _rfc3339),
        }
    return {key: KeySource((column,))}


# What an answer has: for the OpenAPI document, and for `fields`


_TYPES: Mapping[type[Any], type] = {sa.Text: str, sa.Integer: int, object: float}


def model(name: str, columns: Iterable[ColumnElement[Any]]) -> type[BaseModel]:
    """The type of an answer's rows with these columns, for the OpenAPI document."""
    fields: dict[str, Any] = {}
    for column in columns:
        kind = next(kind for known, kind in _TYPES.items() if isinstance(column.type, known))
        # Columns of an expression have no `name` in SQLAlchemy's types; all of ours do.
        for key, source in _keys_of(str(cast(Any, column).name)).items():
            fields[key] = ((str if source.make is _rfc3339 else kind) | None, None)
    return create_model(name, **fields)


def listed(row: type[BaseModel]) -> Any:
    """The type of an answer with such rows, for `response_model`."""
    return GenericAlias(list, (row,))


def chosen(fields: str | None, row: type[BaseModel]) -> Keys:
    """The wanted keys, all by default; an unknown name is a problem."""
    known = tuple(row.model_fields)
    if fields is None:
        return known
    names = tuple(dict.fromkeys(name.strip() for name in fields.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Problem(422, f"fields: {unknown[0]!r} is none of {', '.join(known)}")
    return names


def behind(keys: Keys, columns: Names) -> Names:
    """Which of these columns the keys are made of."""
    return tuple(name for name in columns if not _keys_of(name).keys().isdisjoint(keys))


# Rows


def answer(rows: Rows, keys: Keys, form: RowFormat, made: KeySources = ()) -> Response:
    """Rows, which have the same columns, as an answer; no rows are an empty list.

    `made`: keys that are no columns. A key that the rows know nothing of is null.
    """
    lines: list[bytes] = []
    if rows:
        take, write = _writer(tuple(rows[0]), keys, form, made)
        lines = [write(take(tuple(row.values()))) for row in rows]
    if form is RowFormat.CSV:
        return Response(_csv_line(keys) + b"".join(lines), media_type="text/csv")
    if form is RowFormat.NDJSON:
        return Response(b"".join(line + b"\n" for line in lines), media_type="application/x-ndjson")
    return Response(b"[" + b",".join(lines) + b"]", media_type="application/json")


def flat(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Every key of one row; times in epoch milliseconds, and in RFC 3339 beside."""
    names = tuple(row)
    keys = tuple(key for name in names for key in _keys_of(name))
    return dict(zip(keys, _taker(names, keys, ())(tuple(row.values())), strict=True))


Take = Callable[[Values], Values]
Write = Callable[[Values], bytes]


@functools.lru_cache(256)
def _writer(columns: Names, keys: Keys, form: RowFormat, made: KeySources) -> tuple[Take, Write]:
    """What takes the values of the keys from a row with these columns, and what writes them."""
    return _taker(columns, keys, made), _csv_line if form is RowFormat.CSV else _json_object(keys)


def _taker(columns: Names, keys: Keys, made: KeySources) -> Take:
    known = {key: source for name in columns for key, source in _keys_of(name).items()}
    known |= dict(made)
    unknown = KeySource(columns[:1], lambda _: None)
    sources = [known.get(key, unknown) for key in keys]
    take = _items([columns.index(source.columns[0]) for source in sources])
    makers = [
        (place, source.make, _items([columns.index(name) for name in source.columns]))
        for place, source in enumerate(sources)
        if source.make
    ]

    def take_and_make(row: Values) -> Values:
        values = list(take(row))
        for place, make, arguments in makers:
            values[place] = make(*arguments(row))
        return values

    return take_and_make


def _items(places: Sequence[int]) -> Callable[[Values], tuple[Any, ...]]:
    """`itemgetter`, which gives no tuple for one place."""
    if len(places) == 1:
        (place,) = places
        return lambda row: (row[place],)
    return itemgetter(*places)


def _json_object(keys: Keys) -> Write:
    kind, encode = msgspec.defstruct("Row", keys, gc=False), msgspec.json.Encoder().encode
    return lambda values: encode(kind(*values))


def _csv_line(values: Values) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(map(harmless, values))
    return out.getvalue().encode()

"""Rows of the database as an answer: columns become keys, written as JSON, JSON lines or CSV.

A job has more than a hundred keys, so the work for a set of keys is done once: values that are
columns are taken in one go, and msgspec writes a struct in a quarter of the time of a dict.
"""

import csv
import functools
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import GenericAlias
from typing import Any, cast

import msgspec
import sqlalchemy as sa
from fastapi import Response
from pydantic import BaseModel, create_model
from sqlalchemy.sql.elements import ColumnElement

from batchjob.runtime.formatting import escape_formula
from batchjob.runtime.times import to_milliseconds
from batchjob_stats_server.api.row_keys import (
    GetValues,
    Keys,
    KeySources,
    Names,
    Values,
    in_rfc3339,
    keys_of,
    value_getter,
)
from batchjob_stats_server.http.problems import Problem

Rows = Sequence[Mapping[Any, Any]]


class RowFormat(StrEnum):
    """The format of rows."""

    JSON = "json"  # a list
    NDJSON = "ndjson"  # one object per line
    CSV = "csv"  # with a header line


# Keys of an answer, for the OpenAPI document and for `fields`


_TYPES: Mapping[type[Any], type] = {sa.Text: str, sa.Integer: int, object: float}
_CONVERTED_TYPES: Mapping[Any, type] = {in_rfc3339: str, to_milliseconds: int}


def row_model(name: str, columns: Iterable[ColumnElement[Any]]) -> type[BaseModel]:
    """The type of rows with these columns, for the OpenAPI document."""
    fields: dict[str, Any] = {}
    for column in columns:
        kind = next(kind for sql, kind in _TYPES.items() if isinstance(column.type, sql))
        # Not all column expressions of SQLAlchemy have a `name`, but all of ours do.
        for key, source in keys_of(str(cast(Any, column).name)).items():
            fields[key] = (_CONVERTED_TYPES.get(source.make, kind) | None, None)
    return create_model(name, **fields)


def list_type(row: type[BaseModel]) -> Any:
    """The type of an answer with such rows, for `response_model`."""
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


# Rows


def answer(rows: Rows, keys: Keys, form: RowFormat, computed: KeySources = ()) -> Response:
    """An answer with rows that have the same columns; without rows, an empty list.

    `computed`: keys that are not columns. A key that the rows do not have is null.
    """
    lines: list[bytes] = []
    if rows:
        take, write = _writer(tuple(rows[0]), keys, form, computed)
        lines = [write(take(tuple(row.values()))) for row in rows]
    if form is RowFormat.CSV:
        return Response(_csv_line(keys) + b"".join(lines), media_type="text/csv")
    if form is RowFormat.NDJSON:
        return Response(b"".join(line + b"\n" for line in lines), media_type="application/x-ndjson")
    return Response(b"[" + b",".join(lines) + b"]", media_type="application/json")


Write = Callable[[Values], bytes]


@functools.lru_cache(256)
def _writer(
    columns: Names, keys: Keys, form: RowFormat, computed: KeySources
) -> tuple[GetValues, Write]:
    """Functions that take the values of the keys from a row with these columns, and write them."""
    return value_getter(
        columns, keys, computed
    ), _csv_line if form is RowFormat.CSV else _json_object(keys)


def _json_object(keys: Keys) -> Write:
    kind, encode = msgspec.defstruct("Row", keys, gc=False), msgspec.json.Encoder().encode
    return lambda values: encode(kind(*values))


def _csv_line(values: Values) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(map(escape_formula, values))
    return out.getvalue().encode()

"""Rows of the database as flat rows of an answer, in JSON, JSON lines or CSV."""

import csv
import functools
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from types import GenericAlias
from typing import Any, cast

import msgspec
import sqlalchemy as sa
from fastapi import Response
from pydantic import BaseModel, create_model
from sqlalchemy.sql.elements import ColumnElement

from batchjob.cells import harmless
from batchjob_stats_server.problems import Problem

_RENAMED = {"username": "user", "groupname": "group"}
_INTERNAL = {"usage_due_time"}

Rows = Sequence[Mapping[Any, Any]]
Keys = tuple[str, ...]
Column = Sequence[Any]
Shown = Callable[[Column], Column]
Made = Mapping[str, Callable[[Mapping[Any, Any]], Any]]
NOTHING_MADE: Made = {}


class Format(StrEnum):
    """How rows are written."""

    JSON = "json"  # a list
    NDJSON = "ndjson"  # an object on each line
    CSV = "csv"  # with a header


def _same(values: Column) -> Column:
    return values


def _milliseconds(values: Column) -> Column:
    return [None if seconds is None else seconds * 1000 for seconds in values]


def _rfc3339(values: Column) -> Column:
    return list(map(_moment, values))


@functools.lru_cache(20_000)  # a job's times are alike, and those of one array
def _moment(seconds: int | None) -> str | None:
    if seconds is None or not (date := _date(seconds // 86400)):
        return None
    return f"{date}{_MINUTES[seconds // 60 % 1440]}{_SECONDS[seconds % 60]}"


_MINUTES = tuple(f"T{minute // 60:02}:{minute % 60:02}:" for minute in range(1440))
_SECONDS = tuple(f"{second:02}Z" for second in range(60))


@functools.lru_cache(10_000)
def _date(days: int) -> str | None:
    try:
        return datetime.fromtimestamp(days * 86400, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return None  # beyond the year 9999


def _shown(name: str) -> Mapping[str, Shown]:
    """The keys that a column of the database has in an answer, and what its values are there."""
    if name in _INTERNAL:
        return {}
    key = _RENAMED.get(name, name)
    if name.endswith("_time") or name == "day":
        return {key: _milliseconds, f"{key}_rfc3339": _rfc3339}
    return {key: _same}


def model(name: str, columns: Iterable[ColumnElement[Any]]) -> type[BaseModel]:
    """The type of an answer's rows with these columns, for the OpenAPI document."""
    fields: dict[str, Any] = {}
    for column in columns:
        kind = next((kind for known, kind in _KINDS.items() if isinstance(column.type, known)))
        # Columns of an expression have no `name` in SQLAlchemy's types; all of ours do.
        for key, shown in _shown(str(cast(Any, column).name)).items():
            fields[key] = ((str if shown is _rfc3339 else kind) | None, None)
    return create_model(name, **fields)


_KINDS: Mapping[type[Any], type] = {sa.Text: str, sa.Integer: int, object: float}


@functools.lru_cache(256)
def behind(keys: Keys, names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of these columns of the database the keys are made of."""
    return tuple(name for name in names if not _shown(name).keys().isdisjoint(keys))


def listed(row: type[BaseModel]) -> Any:
    """The type of an answer with such rows, for `response_model`."""
    return GenericAlias(list, (row,))


def flat(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Every key of the row; times in epoch milliseconds, and in RFC 3339 beside."""
    keys = tuple(key for name in row for key in _shown(name))
    return {key: value for key, (value,) in zip(keys, _columns([row], keys), strict=True)}


def _columns(rows: Rows, keys: Keys, made: Made = NOTHING_MADE) -> list[Column]:
    """The values of each key, of one row after the other; null where rows do not have the key."""
    if not rows:
        return []
    there: list[Column] = list(zip(*(row.values() for row in rows), strict=True))
    there += [[make(row) for row in rows] for make in made.values()]
    there.append([None] * len(rows))
    return [shown(there[place]) for place, shown in _plan((*rows[0], *made), keys)]


@functools.lru_cache(256)
def _plan(names: tuple[str, ...], keys: Keys) -> Sequence[tuple[int, Shown]]:
    """At which place each key's values are: found out once, for rows alike come over and over."""
    places = {
        key: (place, shown)
        for place, name in enumerate(names)
        for key, shown in _shown(name).items()
    }
    return [places.get(key, (len(names), _same)) for key in keys]


def chosen(fields: str | None, row: type[BaseModel]) -> tuple[str, ...]:
    """The wanted keys, all by default; a name nobody knows is a problem."""
    known = tuple(row.model_fields)
    if fields is None:
        return known
    names = tuple(dict.fromkeys(name.strip() for name in fields.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Problem(422, f"fields: {unknown[0]!r} is none of {', '.join(known)}")
    return names


def written(rows: Rows, keys: Keys, form: Format, made: Made = NOTHING_MADE) -> tuple[bytes, str]:
    """The rows with these keys, of which some are made of others, and their media type.

    No rows are an empty list.
    """
    return _FORMATS[form](keys, _columns(rows, keys, made))


def answer(
    rows: Rows,
    keys: Keys,
    form: Format,
    headers: Mapping[str, str] | None = None,
    made: Made = NOTHING_MADE,
) -> Response:
    """The same as an answer."""
    text, media_type = written(rows, keys, form, made)
    return Response(text, media_type=media_type, headers=headers)


@functools.lru_cache(256)
def _object(keys: Keys) -> Callable[..., Any]:
    """An object with these keys: made in a tenth of a dict's time, and written in half."""
    return msgspec.defstruct("Row", keys, gc=False)


def _objects(keys: Keys, columns: Sequence[Column]) -> list[Any]:
    return list(map(_object(keys), *columns)) if columns else []


_ENCODER = msgspec.json.Encoder()


def _json(keys: Keys, columns: Sequence[Column]) -> tuple[bytes, str]:
    return _ENCODER.encode(_objects(keys, columns)), "application/json"


def _ndjson(keys: Keys, columns: Sequence[Column]) -> tuple[bytes, str]:
    return _ENCODER.encode_lines(_objects(keys, columns)), "application/x-ndjson"


def _csv(keys: Keys, columns: Sequence[Column]) -> tuple[bytes, str]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(keys)
    writer.writerows(map(harmless, each) for each in zip(*columns, strict=True))
    return out.getvalue().encode(), "text/csv"


_FORMATS: Mapping[Format, Callable[[Keys, Sequence[Column]], tuple[bytes, str]]] = {
    Format.JSON: _json,
    Format.NDJSON: _ndjson,
    Format.CSV: _csv,
}

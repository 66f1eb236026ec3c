"""Rows of the database as flat rows of an answer, in JSON, JSON lines or CSV."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from types import GenericAlias
from typing import Any, cast

import sqlalchemy as sa
from fastapi import Response
from pydantic import BaseModel, create_model
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_server.problems import Problem

_RENAMED = {"username": "user", "groupname": "group"}
_INTERNAL = {"usage_due_time"}
_RFC3339 = "_rfc3339"

Row = dict[str, Any]


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
    made: Row = {}
    for name, value in row.items():
        if name in _INTERNAL:
            continue
        key = _RENAMED.get(name, name)
        if _is_time(name):
            made[key] = None if value is None else value * 1000
            made[key + _RFC3339] = None if value is None else _rfc3339(value)
        else:
            made[key] = value
    return made


def _rfc3339(seconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError):  # a clock far out: RFC 3339 ends with the year 9999
        return None


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
) -> Response:
    """The rows with these keys; no rows are an empty list."""
    made = [flat(row) for row in rows]
    text, media_type = _FORMATS[form]([{key: row.get(key) for key in keys} for row in made], keys)
    return Response(text, media_type=media_type, headers=headers)


def _json(rows: Sequence[Row], _keys: Sequence[str]) -> tuple[str, str]:
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")), "application/json"


def _ndjson(rows: Sequence[Row], _keys: Sequence[str]) -> tuple[str, str]:
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    return "".join(lines), "application/x-ndjson"


def _csv(rows: Sequence[Row], keys: Sequence[str]) -> tuple[str, str]:
    out = io.StringIO()
    writer = csv.DictWriter(out, keys)
    writer.writeheader()
    writer.writerows({key: harmless(value) for key, value in row.items()} for row in rows)
    return out.getvalue(), "text/csv"


def harmless(value: Any) -> Any:
    """A job's name is not to be a formula in somebody's spreadsheet (OWASP, "CSV Injection")."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value


_FORMATS: Mapping[Format, Callable[[Sequence[Row], Sequence[str]], tuple[str, str]]] = {
    Format.JSON: _json,
    Format.NDJSON: _ndjson,
    Format.CSV: _csv,
}

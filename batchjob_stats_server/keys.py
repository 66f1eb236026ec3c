"""The keys of an answer's rows, and what their values are made of."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from types import GenericAlias
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from pydantic import BaseModel, create_model
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.queries.whole import Names
from batchjob_stats_server.problems import Problem

_RENAMED = {"username": "user", "groupname": "group"}
_INTERNAL = {"usage_due_time"}

Keys = tuple[str, ...]


class Made(NamedTuple):
    """What a key's value is made of; with nothing that makes it, it is the column's own."""

    columns: Names
    make: Callable[..., Any] | None = None


MadeKeys = tuple[tuple[str, Made], ...]


def _milliseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


@functools.lru_cache(20_000)  # a job's times are alike, and those of one array
def _rfc3339(seconds: int | None) -> str | None:
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


def _shown(name: str) -> Mapping[str, Made]:
    """The keys that a column of the database has in an answer."""
    if name in _INTERNAL:
        return {}
    key = _RENAMED.get(name, name)
    if name.endswith("_time") or name == "day":
        return {
            key: Made((name,), _milliseconds),
            f"{key}_rfc3339": Made((name,), _rfc3339),
        }
    return {key: Made((name,))}


def model(name: str, columns: Iterable[ColumnElement[Any]]) -> type[BaseModel]:
    """The type of an answer's rows with these columns, for the OpenAPI document."""
    fields: dict[str, Any] = {}
    for column in columns:
        kind = next((kind for known, kind in _KINDS.items() if isinstance(column.type, known)))
        # Columns of an expression have no `name` in SQLAlchemy's types; all of ours do.
        for key, made in _shown(str(cast(Any, column).name)).items():
            fields[key] = ((str if made.make is _rfc3339 else kind) | None, None)
    return create_model(name, **fields)


_KINDS: Mapping[type[Any], type] = {sa.Text: str, sa.Integer: int, object: float}


def listed(row: type[BaseModel]) -> Any:
    """The type of an answer with such rows, for `response_model`."""
    return GenericAlias(list, (row,))


def chosen(fields: str | None, row: type[BaseModel]) -> Keys:
    """The wanted keys, all by default; a name nobody knows is a problem."""
    known = tuple(row.model_fields)
    if fields is None:
        return known
    names = tuple(dict.fromkeys(name.strip() for name in fields.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Problem(422, f"fields: {unknown[0]!r} is none of {', '.join(known)}")
    return names


@functools.lru_cache(256)
def behind(keys: Keys, names: Names) -> Names:
    """Which of these columns of the database the keys are made of."""
    return tuple(name for name in names if not _shown(name).keys().isdisjoint(keys))


def flat(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Every key of the row; times in epoch milliseconds, and in RFC 3339 beside."""
    names = tuple(row)
    keys = tuple(key for name in names for key in _shown(name))
    return dict(zip(keys, values(names, keys)(tuple(row.values())), strict=True))


Row = Sequence[Any]  # values of columns


@functools.lru_cache(256)
def values(names: Names, keys: Keys, made: MadeKeys = ()) -> Callable[[Row], list[Any]]:
    """What gives the values of these keys for a row with these columns; null for unknown keys.

    Most values are the columns' own: they are taken in one go, and the others put in their places.
    """
    known = {key: each for name in names for key, each in _shown(name).items()} | dict(made)
    nothing = Made(names[:1], lambda _: None)
    parts = [known.get(key, nothing) for key in keys]
    taken = _at([names.index(part.columns[0]) for part in parts])
    makers = [
        (place, part.make, [names.index(column) for column in part.columns])
        for place, part in enumerate(parts)
        if part.make
    ]
    of_one = [(place, make, there[0]) for place, make, there in makers if len(there) == 1]
    of_several = [(place, make, _at(there)) for place, make, there in makers if len(there) > 1]

    def make_all(row: Row) -> list[Any]:
        found = list(taken(row))
        for place, make, there in of_one:
            found[place] = make(row[there])
        for place, make, several in of_several:
            found[place] = make(*several(row))
        return found

    return make_all


def _at(places: Sequence[int]) -> Callable[[Row], tuple[Any, ...]]:
    """`itemgetter`, whose answer for one place is no tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda row: tuple(row[place] for place in places)

"""Jobs with all there is of them: which ones is asked first, for their numbers alone.

So the statement with all columns is always the same one, made and compiled once: of a hundred
columns SQLAlchemy makes a statement more slowly than SQLite answers it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db import schema
from batchjob_stats_db.fetching import turn
from batchjob_stats_db.queries.derived import columns

Names = tuple[str, ...]

NAMES: Names = tuple(str(column.name) for column in columns())
"""What there is of a job."""

T = TypeVar("T")
Shape = Callable[[Names], Callable[[tuple[Any, ...]], T]]
"""What makes something of a row, whose values have these names."""


class _Among(NamedTuple):
    """How a database is asked for many numbers."""

    condition: ColumnElement[bool]
    value: Callable[[Sequence[int]], object]  # all as one: the statement is never written anew


_each = sa.func.json_each(sa.bindparam("ids", type_=sa.Text)).table_valued("value")
_AMONG: Mapping[str, _Among] = {
    "sqlite": _Among(schema.job.c.id.in_(sa.select(_each.c.value)), str),
    "postgresql": _Among(
        schema.job.c.id == sa.any_(sa.bindparam("ids", type_=sa.ARRAY(sa.BigInteger))),
        list,
    ),
}


@functools.lru_cache(256)
def _statement(names: Names, among: _Among) -> sa.Select[Any]:
    return (
        sa.select(*(column for column in columns() if column.name in {"id", *names}))
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(among.condition)
    )


def numbered(db: Connection, ids: Sequence[int]) -> list[RowMapping]:
    """The jobs with these numbers, in this order; the caller found that they may be seen."""
    if not ids:
        return []
    found = {row["id"]: row for row in _read(db, ids, NAMES).mappings().all()}
    return [found[each] for each in ids if each in found]


def shaped(db: Connection, ids: Sequence[int], names: Names, shape: Shape[T]) -> list[T]:
    """The same, each as `shape` makes it of these columns, and of the number.

    A job is shaped as soon as it is read: one after the other they pass through the processor's
    caches, in which all of them together have no room.
    """
    if not ids:
        return []
    # What is left of an answer that was not read to its end would hold the connection back.
    in_turn = turn() if db.dialect.name == "sqlite" else nullcontext()
    with closing(_read(db, ids, names)) as rows, in_turn:
        there = tuple(rows.keys())
        made, number = shape(there), there.index("id")
        found = {row[number]: made(row) for row in map(tuple, rows)}
    return [found[each] for each in ids if each in found]


def _read(db: Connection, ids: Sequence[int], names: Names) -> sa.CursorResult[Any]:
    among = _AMONG[db.dialect.name]
    return db.execute(_statement(names, among), {"ids": among.value(ids)})


def whole(db: Connection, which: sa.Select[Any]) -> list[RowMapping]:
    """The jobs whose numbers this selects, in its order."""
    return numbered(db, db.scalars(which).all())

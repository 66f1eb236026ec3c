"""Rows of jobs with all columns, by numbers that another query has found.

So the statement with all columns is always the same, and compiled once: with a hundred columns,
SQLAlchemy compiles a statement more slowly than SQLite runs it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.efficiency import columns

Names = tuple[str, ...]

NAMES: Names = tuple(str(column.name) for column in columns())
"""What there is of a job."""


class Among(NamedTuple):
    """How many numbers are passed to a database."""

    condition: ColumnElement[bool]
    value: Callable[[Sequence[int]], object]  # makes the value of the one parameter `ids`


@functools.cache
def among(dialect: str, column: sa.Column[int]) -> Among:
    """Rows with one of these numbers; the statement is the same, however many there are."""
    if dialect == "postgresql":
        numbers = sa.bindparam("ids", type_=sa.ARRAY(sa.BigInteger))
        return Among(column == sa.any_(numbers), list)
    each = sa.func.json_each(sa.bindparam("ids", type_=sa.Text)).table_valued("value")
    return Among(column.in_(sa.select(each.c.value)), str)


@functools.lru_cache(256)
def _statement(names: Names, which: Among) -> sa.Select[Any]:
    return (
        sa.select(*(column for column in columns() if column.name in {"id", *names}))
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(which.condition)
    )


def numbered(db: Connection, ids: Sequence[int], names: Names = NAMES) -> list[RowMapping]:
    """The jobs with these numbers, in this order, with their columns of these names.

    The caller must have checked that they may be seen.
    """
    if not ids:
        return []
    which = among(db.dialect.name, schema.job.c.id)
    found = db.execute(_statement(names, which), {"ids": which.value(ids)})
    keys = tuple(found.keys())
    # Dictionaries, since lookups in a RowMapping are several times slower.
    rows = [dict(zip(keys, row, strict=True)) for row in found.all()]
    by_id = {row["id"]: row for row in rows}
    return cast(list[RowMapping], [by_id[each] for each in ids if each in by_id])


def whole(db: Connection, which: sa.Select[Any], names: Names = NAMES) -> list[RowMapping]:
    """The jobs whose numbers this selects, in its order."""
    return numbered(db, db.scalars(which).all(), names)

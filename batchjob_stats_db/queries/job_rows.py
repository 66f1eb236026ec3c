"""Rows of jobs with all columns, by ids that another query has found.

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

ColumnNames = tuple[str, ...]

COLUMN_NAMES: ColumnNames = tuple(str(column.name) for column in columns())
"""All columns of a job."""


class IdCondition(NamedTuple):
    """A condition on ids that are passed as one parameter, `ids`."""

    clause: ColumnElement[bool]
    value: Callable[[Sequence[int]], object]  # converts ids to the parameter's value


@functools.cache
def id_condition(dialect: str, column: sa.Column[int]) -> IdCondition:
    """The column is one of the ids; the statement is the same, however many there are."""
    if dialect == "postgresql":
        numbers = sa.bindparam("ids", type_=sa.ARRAY(sa.BigInteger))
        return IdCondition(column == sa.any_(numbers), list)
    each = sa.func.json_each(sa.bindparam("ids", type_=sa.Text)).table_valued("value")
    return IdCondition(column.in_(sa.select(each.c.value)), str)


@functools.lru_cache(256)
def _statement(names: ColumnNames, condition: IdCondition) -> sa.Select[Any]:
    return (
        sa.select(*(column for column in columns() if column.name in {"id", *names}))
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(condition.clause)
    )


def rows_by_ids(
    db: Connection, ids: Sequence[int], names: ColumnNames = COLUMN_NAMES
) -> list[RowMapping]:
    """The jobs with these ids, in this order, with the columns of these names.

    The caller must have checked that they may be seen.
    """
    if not ids:
        return []
    condition = id_condition(db.dialect.name, schema.job.c.id)
    found = db.execute(_statement(names, condition), {"ids": condition.value(ids)})
    keys = tuple(found.keys())
    # Dictionaries, since lookups in a RowMapping are several times slower.
    rows = [dict(zip(keys, row, strict=True)) for row in found.all()]
    by_id = {row["id"]: row for row in rows}
    return cast(list[RowMapping], [by_id[each] for each in ids if each in by_id])


def selected_rows(
    db: Connection, which: sa.Select[Any], names: ColumnNames = COLUMN_NAMES
) -> list[RowMapping]:
    """The jobs whose ids this selects, in its order."""
    return rows_by_ids(db, db.scalars(which).all(), names)

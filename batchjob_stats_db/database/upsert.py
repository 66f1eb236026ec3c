"""Writes rows in bulk: SQLAlchemy compiles the statement once, the driver takes plain tuples.

This is 2.5 times as fast as executing a Core construct with dictionaries, and the statement is the
same for both databases.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Connection, Dialect

Rows = Sequence[Sequence[Any]]
T = TypeVar("T")

_MAX_PARAMETERS = 900  # maximum per statement; SQLite before 3.32 accepts 999


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in parts that fit into one `IN (...)`."""
    for begin in range(0, len(values), _MAX_PARAMETERS):
        yield values[begin : begin + _MAX_PARAMETERS]


def upsert_statement(dialect: str, table: sa.Table, columns: Sequence[str]) -> str:
    """`INSERT ... ON CONFLICT`, placeholders in the order of `columns`, for a dialect's name.

    An existing row takes the new values; if only its key is given, it is left as it is.
    """
    return _compile_upsert(dialect, table, tuple(columns))


def write_rows(
    db: Connection, table: sa.Table, rows: Rows, columns: Sequence[str] | None = None
) -> None:
    """Insert or update rows; all columns, unless `columns` names some."""
    if rows:
        names = columns or [column.name for column in table.columns]
        db.exec_driver_sql(upsert_statement(db.dialect.name, table, names), list(rows))


@lru_cache(maxsize=100)  # compiling one takes as long as inserting a hundred rows
def _compile_upsert(dialect: str, table: sa.Table, columns: tuple[str, ...]) -> str:
    key = _key_columns(table)
    unchanged = {*key, *(column.name for column in table.primary_key.columns)}
    updated = [column for column in columns if column not in unchanged]
    values: dict[str, Any] = {column: sa.bindparam(column) for column in columns}
    statement: Any
    if dialect == "sqlite":
        statement = sqlite.insert(table).values(values)
    else:
        statement = postgresql.insert(table).values(values)
    if updated:
        statement = statement.on_conflict_do_update(
            index_elements=key, set_={column: statement.excluded[column] for column in updated}
        )
    else:
        statement = statement.on_conflict_do_nothing(index_elements=key)
    compiled = statement.compile(dialect=_positional_dialect(dialect))
    # Placeholders are in the table's column order, not the dictionary's.
    assert list(compiled.positiontup) == list(columns), (compiled.positiontup, columns)
    return str(compiled)


def _key_columns(table: sa.Table) -> list[str]:
    """The columns that identify rows: the unique constraint, else the primary key."""
    for constraint in table.constraints:
        if isinstance(constraint, sa.UniqueConstraint):
            return [column.name for column in constraint.columns]
    return [column.name for column in table.primary_key.columns]


def _positional_dialect(dialect: str) -> Dialect:
    if dialect == "sqlite":
        return SQLiteDialect_pysqlite(paramstyle="qmark")
    return PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]  # SQLAlchemy's

"""Copies a whole database into another one: from SQLite to PostgreSQL, or back."""

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import DatabaseError

_ROWS_PER_BATCH = 2000


def copy_rows(source: Engine, target: Engine, on_progress: Callable[[float, str], None]) -> int:
    """Copy the rows of all tables in one transaction; returns their number.

    Both databases must have the current schema, and no other process may write to the source.
    `on_progress` is called with the progress (0..1) and a table's name. Raises DatabaseError if the
    target has rows.
    """
    tables = schema.metadata.sorted_tables
    with source.connect() as old, target.begin() as new:
        for table in tables:
            if _count_rows(new, table):
                raise DatabaseError(f"--to: expected an empty database, but {table.name} has rows")
        total = sum(_count_rows(old, table) for table in tables)
        done = 0
        for table in tables:
            # In primary-key order, so that a token comes after the one it was created with.
            query = sa.select(table).order_by(*table.primary_key)
            source_rows = old.execution_options(stream_results=True).execute(query)
            for rows in source_rows.mappings().partitions(_ROWS_PER_BATCH):
                new.execute(sa.insert(table), [dict(row) for row in rows])
                done += len(rows)
                on_progress(done / total, table.name)
            if new.dialect.name == "postgresql" and table.autoincrement_column is not None:
                _advance_sequence(new, table.autoincrement_column)
    return done


def _count_rows(db: Connection, table: sa.Table) -> int:
    return db.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def _advance_sequence(db: Connection, column: sa.Column[int]) -> None:
    """Set the sequence of a column to the largest number that was copied."""
    sequence = sa.func.pg_get_serial_sequence(column.table.name, column.name)
    largest = sa.func.max(column)
    following = sa.func.setval(sequence, sa.func.coalesce(largest, 1), largest.is_not(None))
    db.execute(sa.select(following))

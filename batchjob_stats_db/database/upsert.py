"""Writes rows in bulk: SQLAlchemy compiles the statement once, the driver takes plain tuples.

This is 2.5 times as fast as executing a Core construct with dictionaries, and the statement is the
same for both databases.

Records that cannot be stored are put in quarantine: the others are written, and operators see them.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Connection

from batchjob.schedulers.records import RAW_LIMIT, QuarantinedRow
from batchjob_stats_db.database import schema

Rows = Sequence[Sequence[Any]]
T = TypeVar("T")

_MAX_PARAMETERS = 900  # maximum per statement; SQLite before 3.32 accepts 999


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in parts that fit into one `IN (...)`."""
    for begin in range(0, len(values), _MAX_PARAMETERS):
        yield values[begin : begin + _MAX_PARAMETERS]


def write_rows(
    db: Connection,
    table: sa.Table,
    rows: Rows,
    columns: Sequence[str] | None = None,
    keep_existing: bool = False,
) -> None:
    """Insert or update rows; all columns, unless `columns` names some.

    A row of which only the key is given is left as it is if it exists; all are, to keep those that
    exist.
    """
    if rows:
        names = tuple(columns or (column.name for column in table.columns))
        statement = _compile_upsert(db.dialect.name, table, names, keep_existing)
        db.exec_driver_sql(statement, list(rows))


@lru_cache(maxsize=100)  # compiling one takes as long as inserting a hundred rows
def _compile_upsert(
    dialect: str, table: sa.Table, columns: tuple[str, ...], keep_existing: bool
) -> str:
    """`INSERT ... ON CONFLICT`, placeholders in the order of `columns`, for a dialect's name."""
    unique = [each for each in table.constraints if isinstance(each, sa.UniqueConstraint)]
    key = [column.name for column in (unique[0] if unique else table.primary_key).columns]
    unchanged = {*key, *(column.name for column in table.primary_key.columns)}
    updated = [column for column in columns if column not in unchanged]
    values: dict[str, Any] = {column: sa.bindparam(column) for column in columns}
    # psycopg's type is not annotated, and `insert` has the same methods for both databases.
    insert: Any
    positional: Any
    if dialect == "sqlite":
        insert, positional = sqlite.insert, SQLiteDialect_pysqlite(paramstyle="qmark")
    else:
        insert, positional = postgresql.insert, PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
    statement = insert(table).values(values)
    if updated and not keep_existing:
        statement = statement.on_conflict_do_update(
            index_elements=key, set_={column: statement.excluded[column] for column in updated}
        )
    else:
        statement = statement.on_conflict_do_nothing(index_elements=key)
    compiled = statement.compile(dialect=positional)
    # Placeholders are in the table's column order, not the dictionary's.
    assert list(compiled.positiontup) == list(columns), (compiled.positiontup, columns)
    return str(compiled)


# Raised for a value that no column can hold: text with a NUL or a lone surrogate, an integer of
# more than 64 bits, NaN (which SQLite takes for NULL) in a column that needs a value, or a key that
# is too long for an index. A full disk or a lock raises other errors, which propagate.
_UNSTORABLE = (sa.exc.DataError, sa.exc.IntegrityError, OverflowError, UnicodeEncodeError)


def store_quarantined(
    db: Connection, cluster: str, quarantined: Sequence[QuarantinedRow], now: int
) -> None:
    """Store what could not be read or written; the same again changes nothing."""
    rows = [
        (cluster, each.source, _digest(each), now,
         *map(make_storable, (each.reason, each.raw)), each.rule)
        for each in quarantined
    ]  # fmt: skip
    write_rows(db, schema.quarantine, rows)


def write_or_quarantine(
    db: Connection, cluster: str, table: sa.Table, rows: Rows, now: int
) -> set[Any]:
    """Write rows; returns the values of the first column of those that no database accepts.

    What fails together is halved until the row that fails is alone.
    """
    try:
        with db.begin_nested():
            write_rows(db, table, rows)
        return set()
    except _UNSTORABLE as error:
        if len(rows) > 1:
            half = len(rows) // 2
            refused = write_or_quarantine(db, cluster, table, rows[:half], now)
            return refused | write_or_quarantine(db, cluster, table, rows[half:], now)
        storable = tuple(map(make_storable, rows[0]))
        if storable != tuple(rows[0]):
            return write_or_quarantine(db, cluster, table, [storable], now)
        reason = f"{table.name}: {getattr(error, 'orig', error)}"
        raw = repr(rows[0])[:RAW_LIMIT]
        store_quarantined(db, cluster, [QuarantinedRow("store", reason, raw, "unstorable")], now)
        return {rows[0][0]}


def make_storable(value: Any) -> Any:
    """A text that both databases accept: no NUL, no lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return value


_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)


def _digest(quarantined: QuarantinedRow) -> str:
    # Only of an unreadable text is the reason not told by the rule. It quotes values, which may be
    # others at each reading.
    is_unreadable = quarantined.rule == "unreadable"
    reason = _QUOTED.sub("", quarantined.reason) if is_unreadable else quarantined.rule
    text = f"{reason}\0{quarantined.jobid or quarantined.raw}".encode("utf-8", "replace")
    return hashlib.sha256(text).hexdigest()[:32]

"""Lists of jobs from an SQLite file, without the library that asks all else.

To load SQLAlchemy takes longer than a command line's whole list. So the statement that it makes of
the figures' one definition (efficiency.py) is kept beside, as text; a test compares both. Filters
and order are the fewest that a list needs: whoever wants more asks paging.py.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

STATEMENT = Path(__file__).with_suffix(".sql")
"""Made by `python -m batchjob_stats_db.queries.job_list_statement`."""

EQUAL = {
    "cluster": "cluster", "user": "username", "account": "account", "partition": "partition",
    "name": "name", "tool": "tool", "record_id": "record_id", "array_jobid": "array_jobid",
}  # fmt: skip
"""What may be asked for -> its column."""

_WAITS = "end_time IS NULL AND state = 'PENDING' AND start_time IS NULL"
_ORDER = f"""
    ORDER BY CASE WHEN {_WAITS} THEN 0 WHEN start_time IS NOT NULL THEN 1 ELSE 2 END,
    CASE WHEN {_WAITS} THEN submit_time ELSE start_time END DESC, id DESC"""


class ListedRows(NamedTuple):
    """Rows in their order, and the names of their columns."""

    names: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]


class StatementText(NamedTuple):
    """The statement for rows of given numbers (`:ids`, a JSON array), and what it is made for."""

    revision: str  # of the tables
    counts: frozenset[str]  # columns of numbers that are whole as a rule
    text: str


def statement() -> StatementText:
    """As it is kept."""
    head, _, text = STATEMENT.read_text(encoding="utf-8").partition("\n")
    revision, *counts = head.removeprefix("-- ").split()
    return StatementText(revision, frozenset(counts), text)


def listed(
    db: sqlite3.Connection, made: StatementText, which: Mapping[str, Any], most: int
) -> ListedRows:
    """Jobs that wait, then those that started, then the others; the newest first.

    `which` has values of EQUAL, `state` and `state_word` (lists), `running`, `started_from` and
    `started_before`. Raises sqlite3.Error.
    """
    conditions, values = _conditions(which)
    query = f"SELECT id FROM job WHERE {' AND '.join(conditions)} {_ORDER} LIMIT ?"  # noqa: S608 (our own words)
    ids = [number for (number,) in db.execute(query, [*values, most])]
    cursor = db.execute(made.text, {"ids": json.dumps(ids)})
    names = tuple(column[0] for column in cursor.description)
    rows = {row[names.index("id")]: dict(zip(names, row, strict=True)) for row in cursor}
    try:
        for row in rows.values():
            counts = {name: v for name in made.counts if (v := row[name]) is not None}
            row.update({name: int(v) for name, v in counts.items() if v % 1 == 0})
    except TypeError as error:
        raise sqlite3.DatabaseError("malformed: a text where a number must be") from error
    return ListedRows(names, [rows[number] for number in ids])


def _conditions(which: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """Conditions of our own words, with a mark for each value."""
    conditions, values = ["1"], []
    for name, column in EQUAL.items():
        if name in which:
            conditions.append(f"{column} = ?")
            values.append(which[name])
    for name in ("state", "state_word"):
        if which.get(name):
            conditions.append(f"{name} IN ({', '.join('?' * len(which[name]))})")
            values += which[name]
    if which.get("running"):
        conditions.append("end_time IS NULL AND state IN ('RUNNING', 'SUSPENDED')")
    for name, compared in (("started_from", ">="), ("started_before", "<")):
        if name in which:
            conditions.append(f"start_time {compared} ?")
            values.append(which[name])
    return conditions, values


def copy_of_tables(db: sqlite3.Connection) -> sqlite3.Connection:
    """A database in memory with the same tables of jobs and usage, empty."""
    made = sqlite3.connect(":memory:")
    for table in ("job", "job_usage"):
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        made.execute(f"CREATE TABLE {table} ({', '.join(names)})")
    return made


def insert(db: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows of the same keys."""
    for row in rows:
        marks = ", ".join("?" * len(row))
        text = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"  # noqa: S608 (our own words)
        db.execute(text, list(row.values()))

"""Quarantines records that cannot be stored: the others are written, and operators see them."""

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.schedulers.records import RAW_LIMIT, QuarantinedRow
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.upsert import Rows, write_rows

# Raised by both drivers for a value that no column can hold: text with a NUL or a lone surrogate,
# or an integer of more than 64 bits. A full disk or a lock raises other errors, which propagate.
_UNSTORABLE = (sa.exc.DataError, OverflowError, UnicodeEncodeError)


def store_quarantined(
    db: Connection, cluster: str, quarantined: Sequence[QuarantinedRow], now: int
) -> None:
    """Store what could not be read or written; the same again changes nothing."""
    rows = [
        (cluster, each.source, _digest(each), now, *map(_make_storable, each[1:]))
        for each in quarantined
    ]
    write_rows(db, schema.quarantine, rows)


def write_or_quarantine(
    db: Connection, cluster: str, table: sa.Table, rows: Rows, now: int
) -> set[int]:
    """Write rows; returns the values of the first column of those that no database accepts."""
    try:
        with db.begin_nested():
            write_rows(db, table, rows)
        return set()
    except _UNSTORABLE:
        return {row[0] for row in rows if not _write_one(db, cluster, table, row, now)}


def _write_one(db: Connection, cluster: str, table: sa.Table, row: Sequence[Any], now: int) -> bool:
    try:
        with db.begin_nested():
            write_rows(db, table, [tuple(map(_make_storable, row))])
        return True
    except _UNSTORABLE as error:
        quarantined = QuarantinedRow(
            "store", str(getattr(error, "orig", error)), repr(row)[:RAW_LIMIT]
        )
        store_quarantined(db, cluster, [quarantined], now)
        return False


def _make_storable(value: Any) -> Any:
    """A text that both databases accept: no NUL, no lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return value


def _digest(quarantined: QuarantinedRow) -> str:
    text = f"{quarantined.reason}\0{quarantined.raw}".encode("utf-8", "replace")
    return hashlib.sha256(text).hexdigest()[:32]

"""Quarantines records that cannot be stored: the others are written, and operators see them."""

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.schedulers.records import RAW_LIMIT, QuarantinedRow
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.upsert import Rows, write_rows

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
         *map(_make_storable, (each.reason, each.raw)), each.rule)
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
        storable = tuple(map(_make_storable, rows[0]))
        if storable != tuple(rows[0]):
            return write_or_quarantine(db, cluster, table, [storable], now)
        reason = f"{table.name}: {getattr(error, 'orig', error)}"
        raw = repr(rows[0])[:RAW_LIMIT]
        store_quarantined(db, cluster, [QuarantinedRow("store", reason, raw, "unstorable")], now)
        return {rows[0][0]}


def _make_storable(value: Any) -> Any:
    """A text that both databases accept: no NUL, no lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return value


def _digest(quarantined: QuarantinedRow) -> str:
    # Only of an unreadable text is the reason not told by the rule, and the same at each reading.
    reason = quarantined.reason if quarantined.rule == "unreadable" else quarantined.rule
    text = f"{reason}\0{quarantined.jobid or quarantined.raw}".encode("utf-8", "replace")
    return hashlib.sha256(text).hexdigest()[:32]

"""Removes people from the records, and keeps what the site needs for accounting."""

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.days import days_of
from batchjob_stats_db.measure.rollup import mark_days
from batchjob_stats_db.poller.retention import FREE_TEXT_COLUMNS

_FORGOTTEN = "forgotten"
_PSEUDONYM = re.compile(r"u-[0-9a-f]{12}|forgotten")

_CLEARED_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(FREE_TEXT_COLUMNS, ""), "groupname": "", "uid": None, "cancelled_by": "",
    "reservation": "",
}  # fmt: skip


def pseudonym(user: str, key: bytes) -> str:
    """A pseudonym, the same for the same user and key; names cannot be tested without the key."""
    return "u-" + hmac.new(key, user.encode(), hashlib.sha256).hexdigest()[:12]


def anonymise(db: Connection, key: bytes, before: int | None = None) -> int:
    """Replace the users of ended jobs by pseudonyms and clear their texts; returns how many users.

    With `before`, only jobs that ended earlier. Accounts are kept, since they are accounted for. If
    all jobs are anonymised, the users' associations and tokens are deleted.
    """
    job = schema.job.c
    ended: sa.ColumnElement[bool] = job.end_time.is_not(None)
    if before is not None:
        ended &= job.end_time < before
    users = db.execute(sa.select(job.username).where(ended).distinct()).scalars().all()
    changed = [user for user in users if user and not _PSEUDONYM.fullmatch(user)]
    for user in changed:
        _rename_user(db, ended & (job.username == user), pseudonym(user, key))
    if before is None:
        for user in changed:
            _remove_user(db, user)
    _clear_quarantine(db)
    return len(changed)


def forget(db: Connection, user: str, cluster: str | None = None) -> int:
    """Remove one user from all tables; returns how many job records had the name.

    The records are kept without name and free text, under the user "forgotten", so that sums of
    accounts and days remain correct.
    """
    job = schema.job.c
    which = job.username == user
    if cluster is not None:
        which &= job.cluster == cluster
    count = _rename_user(db, which, _FORGOTTEN)
    _remove_user(db, user, cluster)
    db.execute(sa.update(schema.job).where(job.cancelled_by == user).values(cancelled_by=""))
    _clear_quarantine(db)
    return count


def _rename_user(db: Connection, which: sa.ColumnElement[bool], name: str) -> int:
    job = schema.job.c
    days: dict[str, set[int]] = {}
    for row in db.execute(sa.select(job.cluster, job.start_time, job.end_time).where(which)):
        last = row.end_time if row.end_time is not None else row.start_time or 0
        days.setdefault(row.cluster, set()).update(days_of(row.start_time, last))
    ids = sa.select(job.id).where(which)
    step = schema.job_step
    db.execute(sa.update(step).where(step.c.job_id.in_(ids)).values(name="", submit_line=""))
    scripts.delete(db, ids)
    renamed = sa.update(schema.job).where(which).values(username=name, **_CLEARED_COLUMNS)
    count = db.execute(renamed).rowcount
    for cluster, touched in days.items():
        mark_days(db, cluster, touched)
    return count


def _remove_user(db: Connection, user: str, cluster: str | None = None) -> None:
    for table in (schema.association, schema.api_token, schema.subscription, schema.outbox):
        which = table.c.username == user
        if cluster is not None:
            which &= table.c.cluster == cluster
        db.execute(sa.delete(table).where(which))
    if cluster is None:
        db.execute(sa.delete(schema.api_token).where(schema.api_token.c.maker == user))
        for table in (schema.login, schema.login_session):
            db.execute(sa.delete(table).where(table.c.username == user))
    # Sums of days whose jobs are gone cannot be rebuilt, so they are renamed to "forgotten".
    for sums in schema.SUMS:
        for table in (sums.by_user, sums.monthly_by_user):
            _merge_rows(db, table, sums.columns, user, cluster)


def _merge_rows(
    db: Connection, table: sa.Table, sums: Iterable[str], user: str, cluster: str | None
) -> None:
    which = table.c.username == user
    if cluster is not None:
        which &= table.c.cluster == cluster
    keys = [column for column in table.primary_key.columns if column.name != "username"]
    both = which | (table.c.username == _FORGOTTEN)
    merged = (
        sa.select(*keys, *(sa.func.sum(table.c[name]).label(name) for name in sums))
        .where(both)
        .group_by(*keys)
    )
    rows = [dict(row) | {"username": _FORGOTTEN} for row in db.execute(merged).mappings()]
    db.execute(sa.delete(table).where(both))
    if rows:
        db.execute(sa.insert(table), rows)


def _clear_quarantine(db: Connection) -> None:
    db.execute(sa.update(schema.quarantine).values(raw=""))

"""Records as rows: what a job record changes of `job`, and all accounts and associations."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.schedulers.records import (
    Associations,
    JobKey,
    JobRecord,
    is_outdated,
    without_growing,
)
from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY, days_of

_NODES = JobRecord._fields.index("nodes")
_STEPS = JobRecord._fields.index("steps")
_STATE = JobRecord._fields.index("state")
assert JobRecord._fields[-1] == "steps"

_FIELDS = [column.name for column in schema.job.columns if column.name != "id"]
_OURS = 3  # update_time, doubt, usage_due_time: the last columns
_START, _END = _FIELDS.index("start_time"), _FIELDS.index("end_time")
_RUN = _FIELDS.index("run")

Row = Sequence[Any]
"""Values of all columns of `job` but `id`, in their order."""


class UsagePolicy(NamedTuple):
    """When a job is measured."""

    settle_seconds: int = 390  # after the job's end: the exporter's linger time and three scrapes
    refresh_seconds: int = 21600  # interval while the job runs
    horizon_seconds: int = 15 * DAY  # how far back measurements are available; 0: there are none

    def due(self, start: float | None, end: float | None, now: int) -> int | None:
        """When to measure a job; None: there is nothing (left) to measure."""
        if start is None or not self.horizon_seconds:
            return None
        if end is None:
            return max(now, int(start)) + self.refresh_seconds
        due = math.ceil(end) + self.settle_seconds
        return due if due > now - self.horizon_seconds else None


def said(record: JobRecord) -> Row:
    """The row without our own columns; a StrEnum is stored as text.

    Values that grow by themselves while a job runs are not stored: each poll would write each
    running job.
    """
    record = without_growing(record)
    return (
        *record[:_STATE],
        record.state.value,
        *record[_STATE + 1 : _NODES],
        *record[_NODES + 1 : _STEPS],
    )


def new(record: JobRecord, policy: UsagePolicy, now: int) -> Row:
    """The row of a new job."""
    row = said(record)
    return (*row, now, _doubt(row), policy.due(record.start_time, record.end_time, now))


def merged(there: Row, record: JobRecord, policy: UsagePolicy, now: int) -> Row | None:
    """The row updated from the record; None if nothing changes."""
    before, words = there[:-_OURS], said(record)
    if words == before:
        return None
    older, newer = (words, before) if is_outdated(record, before[_END]) else (before, words)
    row = tuple(
        was if word is None or word == "" else word for was, word in zip(older, newer, strict=True)
    )
    if row == before:
        return None
    due = there[-1]
    if (row[_START], row[_END]) != (before[_START], before[_END]):
        due = policy.due(row[_START], row[_END], now)
    return (*row, now, _doubt(row), due)


def _doubt(row: Row) -> str:
    """`times`: according to the scheduler, the job ended before it started."""
    start, end = row[_START], row[_END]
    return "times" if start is not None and end is not None and start > end else ""


def key(row: Row) -> JobKey:
    """The columns that identify the job."""
    return JobKey(row[0], row[1], row[2], row[_RUN])


def days(row: Row, now: int) -> range:
    """The days on which it ran."""
    return days_of(row[_START], row[_END] if row[_END] is not None else now)


ASSOCIATION = schema.association


def write_people(db: Connection, cluster: str, people: Associations, now: int) -> None:
    """Replace a cluster's accounts and associations; members keep their time of arrival."""
    key = (ASSOCIATION.c.account, ASSOCIATION.c.username, ASSOCIATION.c.role)
    there = sa.select(*key, ASSOCIATION.c.since_time).where(ASSOCIATION.c.cluster == cluster)
    since = {tuple(row[:3]): row[3] for row in db.execute(there)}
    rows = {
        (each.account, each.user, each.role.value): int(each.default)
        for each in people.associations
        if each.cluster in ("", cluster)
    }
    rows |= {("", each.user, each.level): 0 for each in people.administrators}
    db.execute(sa.delete(ASSOCIATION).where(ASSOCIATION.c.cluster == cluster))
    if rows:
        names = ("cluster", "account", "username", "role", "is_default", "since_time")
        values = [(cluster, *row, default, since.get(row, now)) for row, default in rows.items()]
        db.execute(sa.insert(ASSOCIATION), [dict(zip(names, each, strict=True)) for each in values])
    account = schema.account
    db.execute(sa.delete(account).where(account.c.cluster == cluster))
    tree = {
        each.account: {**each._asdict(), "cluster": cluster}
        for each in people.accounts
        if each.cluster in ("", cluster)
    }
    if tree:
        db.execute(sa.insert(account), list(tree.values()))

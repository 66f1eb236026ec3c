"""Converts job records to rows of `job`, and writes accounts and associations."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.judgements import MORE_CPU, exceeds_cpus
from batchjob.schedulers.records import (
    Associations,
    JobKey,
    JobRecord,
    dropped_values,
    is_outdated,
    unabridged_name,
    withdraws_allocation,
    without_growing_values,
)
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.upsert import write_or_quarantine
from batchjob_stats_db.days import DAY, days_of

_NODES = JobRecord._fields.index("nodes")
_STEPS = JobRecord._fields.index("steps")
_STATE = JobRecord._fields.index("state")
assert JobRecord._fields[-2:] == ("steps", "reallocations")

_FIELDS = [column.name for column in schema.job.columns if column.name != "id"]
_TOTALS = _FIELDS.index("user_cpu_seconds")  # the last columns of the scheduler
_AT_LEAST = _FIELDS.index("cpu_at_least")
assert _AT_LEAST == _TOTALS - 1
_OWN_COLUMNS = 3  # update_time, caveats, usage_due_time: the last columns
_START, _END = _FIELDS.index("start_time"), _FIELDS.index("end_time")
_NAME = _FIELDS.index("name")
_RUN, _CPUS = _FIELDS.index("run"), _FIELDS.index("allocated_cpus")
_RESIZED = _FIELDS.index("resized_cpu_seconds")
_CPU, _USER_CPU, _SYSTEM_CPU = map(
    _FIELDS.index, ("cpu_seconds", "user_cpu_seconds", "system_cpu_seconds")
)

JobValues = Sequence[Any]
"""Values of all columns of `job` but `id`, in their order."""


class UsagePolicy(NamedTuple):
    """When a job is measured."""

    settle_seconds: int = 390  # after the job's end: the exporter's linger time and three scrapes
    refresh_seconds: int = 21600  # interval while the job runs
    horizon_seconds: int = 15 * DAY  # how far back measurements are available; 0: there are none

    def due_time(self, start: float | None, end: float | None, now: int) -> int | None:
        """When to measure a job; None: there is nothing (left) to measure."""
        if start is None or not self.horizon_seconds:
            return None
        if end is None:
            return max(now, int(start)) + self.refresh_seconds
        due = math.ceil(end) + self.settle_seconds
        return due if due > now - self.horizon_seconds else None


def scheduler_columns(record: JobRecord) -> JobValues:
    """The columns of a row that come from the scheduler; a StrEnum is stored as text.

    Values that grow while a job runs are not stored: each poll would write each running job.
    """
    record = without_growing_values(record)
    return (
        *record[:_STATE],
        record.state.value,
        *record[_STATE + 1 : _NODES],
        *record[_NODES + 1 : _STEPS],
    )


def new_row(record: JobRecord, policy: UsagePolicy, now: int) -> JobValues:
    row = _without_withdrawn(scheduler_columns(record))
    return (*row, now, _caveats(row), policy.due_time(record.start_time, record.end_time, now))


_REQUESTS = frozenset(map(_FIELDS.index, ("requested_memory_bytes", "time_limit_seconds")))


def _without_withdrawn(row: JobValues) -> tuple[Any, ...]:
    """The row with NULL for requests of 0, which are none (any more)."""
    return tuple(None if value == 0 and at in _REQUESTS else value for at, value in enumerate(row))


def merge_row(
    existing: JobValues, record: JobRecord, policy: UsagePolicy, now: int
) -> JobValues | None:
    """The row updated from the record; None if nothing changes."""
    before, after = existing[:-_OWN_COLUMNS], scheduler_columns(record)
    if after == before:
        return None
    older, newer = (after, before) if is_outdated(record, before[_END]) else (before, after)
    is_withdrawn = withdraws_allocation(newer[_CPUS], newer[_RESIZED])
    dropped = dropped_values(older[_STATE], newer[_STATE], is_withdrawn)
    row = tuple(
        (new if name in dropped else old) if new is None or new == "" else new
        for name, old, new in zip(_FIELDS, older, newer, strict=False)
    )
    row = _without_withdrawn(row)
    row = (*row[:_NAME], unabridged_name(older[_NAME], row[_NAME]), *row[_NAME + 1 :])
    # How accounting counted CPU time then does not change with its configuration.
    at_least = 0 if before[_AT_LEAST] == 0 else _larger(before[_AT_LEAST], row[_AT_LEAST])
    row = (*row[:_AT_LEAST], at_least, *map(_larger, before[_TOTALS:], row[_TOTALS:]))
    if row == before:
        return None
    due = existing[-1]
    if (row[_START], row[_END]) != (before[_START], before[_END]):
        due = policy.due_time(row[_START], row[_END], now)
    return (*row, now, _caveats(row), due)


def _larger(before: Any, now: Any) -> Any:
    """A total of one run only grows: a smaller one lacks a part of the run."""
    return now if before is None or now is None else max(before, now)


def _caveats(row: JobValues) -> str:
    """`times`: according to the scheduler, the job ended before it started; or MORE_CPU."""
    start, end, cpus = row[_START], row[_END], row[_CPUS]
    if start is None or end is None:
        return ""
    if start > end:
        return "times"
    used = row[_CPU] if row[_CPU] is not None else (row[_USER_CPU] or 0) + (row[_SYSTEM_CPU] or 0)
    if cpus and row[_RESIZED] and end > start:
        cpus += row[_RESIZED] / (end - start)
    return MORE_CPU if cpus and exceeds_cpus(used, cpus, end - start) else ""


def job_key(row: JobValues) -> JobKey:
    """The columns that identify the job."""
    return JobKey(row[0], row[1], row[2], row[_RUN])


def days_run(row: JobValues, now: int) -> range:
    """The days on which the job ran."""
    return days_of(row[_START], row[_END] if row[_END] is not None else now)


ASSOCIATION = schema.association


def write_associations(db: Connection, cluster: str, associations: Associations, now: int) -> None:
    """Replace a cluster's accounts and associations; existing ones keep their `since_time`."""
    key_columns = (ASSOCIATION.c.account, ASSOCIATION.c.username, ASSOCIATION.c.role)
    existing = sa.select(*key_columns, ASSOCIATION.c.since_time).where(
        ASSOCIATION.c.cluster == cluster
    )
    first_seen = {tuple(row[:3]): row[3] for row in db.execute(existing)}
    rows = {
        (each.account, each.user, each.role.value): int(each.default)
        for each in associations.associations
        if each.cluster in ("", cluster)
    }
    rows |= {("", each.user, each.level): 0 for each in associations.administrators}
    db.execute(sa.delete(ASSOCIATION).where(ASSOCIATION.c.cluster == cluster))
    values = [(cluster, *row, default, first_seen.get(row, now)) for row, default in rows.items()]
    write_or_quarantine(db, cluster, ASSOCIATION, values, now)
    account = schema.account
    db.execute(sa.delete(account).where(account.c.cluster == cluster))
    accounts = {
        each.account: (cluster, *each[1:])
        for each in associations.accounts
        if each.cluster in ("", cluster)
    }
    write_or_quarantine(db, cluster, account, list(accounts.values()), now)

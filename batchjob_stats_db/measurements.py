"""Which jobs are to be measured, and where what was measured goes."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db import schema
from batchjob_stats_db.bulk import parts, upsert
from batchjob_stats_db.days import days_of
from batchjob_stats_db.history.history import History, Span
from batchjob_stats_db.job_row import UsagePolicy
from batchjob_stats_db.rollup import mark_days
from batchjob_stats_db.store import Store
from batchjob_stats_db.usage import Measured, Usage, measure

_USAGE = [column.name for column in schema.job_usage.columns]
_LATE_SECONDS = 6 * 3600  # how long after a job's end samples may still come in
_AGAIN_SECONDS = 1800


WANTED = tuple(
    schema.job.c[name]
    for name in (
        "id", "jobid", "username", "uid", "start_time", "end_time", "allocated_nodes",
        "allocated_cpus",
    )
)  # fmt: skip


def measure_due(
    store: Store,
    history: History,
    policy: UsagePolicy,
    interval: float,
    now: int,
    limit: int = 1000,
) -> list[Usage]:
    """Measure the jobs that are due, at most `limit`; after a HistoryError they are due still."""
    with store.engine.connect() as db:
        jobs = due_jobs(db, store.cluster, policy, now, limit)
    usages = measure(history, jobs, interval)
    with store.transaction() as db:
        write(db, store.cluster, history.source, dict(zip(jobs, usages, strict=True)), policy, now)
    return usages


def due_jobs(
    db: Connection, cluster: str, policy: UsagePolicy, now: int, limit: int
) -> list[Measured]:
    """Jobs whose time to be measured has come, the longest due first."""
    job = schema.job
    query = (
        sa.select(*WANTED)
        .where(
            job.c.cluster == cluster, job.c.usage_due_time <= now, job.c.start_time.is_not(None)
        )
        .order_by(job.c.usage_due_time, job.c.id)
        .limit(limit)
    )  # fmt: skip
    rows = db.execute(query).all()
    runs = runs_of_ids(db, cluster, [row.jobid for row in rows])
    return [measured(cluster, row, runs[row.jobid], policy, now) for row in rows]


def runs_of_ids(
    db: Connection, cluster: str, jobids: Sequence[str]
) -> dict[str, list[tuple[int, int | None]]]:
    """Start and end of all runs of the job ids, whosever they are."""
    job = schema.job
    runs: dict[str, list[tuple[int, int | None]]] = {}
    for part in parts(list(dict.fromkeys(jobids))):
        query = sa.select(job.c.jobid, job.c.start_time, job.c.end_time).where(
            job.c.cluster == cluster, job.c.jobid.in_(part), job.c.start_time.is_not(None)
        )
        for jobid, start, end in db.execute(query):
            runs.setdefault(jobid, []).append((start, end))
    return runs


def measured(
    cluster: str,
    row: Any,
    runs: Sequence[tuple[int, int | None]],
    policy: UsagePolicy,
    now: int,
) -> Measured:
    """How to measure one of the runs of a job; `row` has the columns WANTED."""
    start, end = row.start_time, row.end_time
    until = min(now, end + policy.settle_seconds) if end is not None else now
    later = [other for other, _ in runs if other > start]
    if later:
        until = min(until, min(later) - 1)
    earlier = [(other_end or start) for other, other_end in runs if other < start]
    near = any(other_end + policy.settle_seconds > start for other_end in earlier)
    span = Span(cluster, row.jobid, start, max(until, start + 1), alone=len(runs) > 1, end=end)
    return Measured(
        row.id, cluster, row.jobid, row.username, row.uid, start, end,
        row.allocated_nodes, row.allocated_cpus, span, near,
    )  # fmt: skip


def write(
    db: Connection,
    cluster: str,
    source: str,
    usages: Mapping[Measured, Usage],
    policy: UsagePolicy,
    now: int,
) -> None:
    """Put usages in place of what is there, and say which days they change."""
    dialect = db.dialect.name
    job = schema.job
    rows: list[tuple[Any, ...]] = []
    days: set[int] = set()
    for measured, usage in usages.items():
        known = {
            **usage._asdict(),
            **usage.values,
            "source": source,
            "measured_time": now,
            "until_time": min(measured.end or now, now),
        }
        rows.append(tuple(known.get(name) for name in _USAGE))
        days.update(days_of(measured.start, measured.end if measured.end is not None else now))
        db.execute(
            sa.update(job)
            .where(job.c.id == measured.id)
            .values(usage_due_time=_due_again(measured, usage, policy, now))
        )
    if rows:
        db.exec_driver_sql(upsert(dialect, schema.job_usage, _USAGE), rows)
    _replace(
        db, schema.job_gpu, usages, [(u.job_id, *gpu) for u in usages.values() for gpu in u.devices]
    )
    _replace(
        db,
        schema.job_emissions,
        usages,
        [(u.job_id, *each) for u in usages.values() for each in u.emissions.items()],
    )
    mark_days(db, cluster, days)


def _replace(
    db: Connection, table: sa.Table, usages: Mapping[Measured, Usage], rows: list[tuple[Any, ...]]
) -> None:
    for part in parts([measured.id for measured in usages]):
        db.execute(sa.delete(table).where(table.c.job_id.in_(part)))
    if rows:
        names = [column.name for column in table.columns]
        db.exec_driver_sql(upsert(db.dialect.name, table, names), rows)


def _due_again(measured: Measured, usage: Usage, policy: UsagePolicy, now: int) -> int | None:
    if measured.end is None:
        return now + policy.refresh_seconds
    # A remote-write queue or a poller of its own may be late; what is complete stays.
    late = usage.coverage < 0.999 and now < measured.end + _LATE_SECONDS
    return now + _AGAIN_SECONDS if late else None


def recompute(
    db: Connection, cluster: str, since: int, until: int | None = None, now: int = 0
) -> int:
    """Have the jobs that ended in [since, until) measured anew; returns how many."""
    job = schema.job
    which = (job.c.cluster == cluster) & (job.c.end_time >= since) & job.c.start_time.is_not(None)
    if until is not None:
        which &= job.c.end_time < until
    return db.execute(sa.update(job).where(which).values(usage_due_time=now)).rowcount

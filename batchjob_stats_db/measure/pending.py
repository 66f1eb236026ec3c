"""The jobs that are due to be measured, and the storage of results."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.upsert import chunks, write_rows
from batchjob_stats_db.days import DAY, days_of
from batchjob_stats_db.measure.batches import MeasurementOutcome, measure_isolated
from batchjob_stats_db.measure.job_usage import DOUBTS, NOT_ANSWERED, JobToMeasure, MeasuredUsage
from batchjob_stats_db.measure.rollup import mark_days
from batchjob_stats_db.timeseries.base import JobWindow, TimeSeriesStore
from batchjob_stats_db.timeseries.counters import CARRIED_SECONDS

_USAGE_COLUMNS = [column.name for column in schema.job_usage.columns]
_LATE_SECONDS = 6 * 3600  # how long after a job's end samples may still arrive
_RETRY_SECONDS = 1800


JOB_COLUMNS = tuple(
    schema.job.c[name]
    for name in (
        "id", "jobid", "username", "uid", "start_time", "end_time", "allocated_nodes",
        "allocated_cpus", "tool",
    )
)  # fmt: skip


def measure_due(
    store: Store,
    time_series: TimeSeriesStore,
    policy: UsagePolicy,
    interval: float,
    now: int,
    limit: int = 1000,
    on_progress: Callable[[], None] = lambda: None,
) -> MeasurementOutcome:
    """Measure the jobs that are due, at most `limit`; all stay due after a TimeSeriesError."""
    with store.engine.connect() as db:
        jobs = due_jobs(db, store.cluster, policy, now, limit)
    outcome = measure_isolated(time_series, jobs, interval, on_progress)
    with store.transaction() as db:
        write_usages(db, store.cluster, time_series.source, outcome.usages, policy, now)
        record_failures(db, time_series.source, outcome.failed, policy, now)
    return outcome


def due_jobs(
    db: Connection, cluster: str, policy: UsagePolicy, now: int, limit: int
) -> list[JobToMeasure]:
    """Jobs that are due to be measured, the longest due first."""
    job = schema.job
    query = (
        sa.select(*JOB_COLUMNS)
        .where(
            job.c.cluster == cluster, job.c.usage_due_time <= now, job.c.start_time.is_not(None)
        )
        .order_by(job.c.usage_due_time, job.c.id)
        .limit(limit)
    )  # fmt: skip
    rows = db.execute(query).all()
    runs = runs_by_jobid(db, cluster, [row.jobid for row in rows])
    failed = _previously_failed(db, [row.id for row in rows])
    jobs = (job_to_measure(cluster, row, runs[row.jobid], policy, now) for row in rows)
    return [job._replace(failed_before=job.id in failed) for job in jobs]


def _previously_failed(db: Connection, ids: Sequence[int]) -> set[int]:
    usage = schema.job_usage.c
    found: set[int] = set()
    for part in chunks(ids):
        which = usage.job_id.in_(part) & usage.doubt.contains(NOT_ANSWERED)
        found.update(db.execute(sa.select(usage.job_id).where(which)).scalars())
    return found


def runs_by_jobid(
    db: Connection, cluster: str, jobids: Sequence[str]
) -> dict[str, list[tuple[float, float | None]]]:
    """Start and end of all runs of the job ids, of any user."""
    job = schema.job
    runs: dict[str, list[tuple[float, float | None]]] = {}
    for part in chunks(list(dict.fromkeys(jobids))):
        query = sa.select(job.c.jobid, job.c.start_time, job.c.end_time).where(
            job.c.cluster == cluster, job.c.jobid.in_(part)
        )
        # `start` is checked here: in the query, it makes SQLite without statistics scan all started
        # jobs.
        for jobid, start, end in db.execute(query):
            if start is not None:
                runs.setdefault(jobid, []).append((start, end))
    return runs


def job_to_measure(
    cluster: str,
    row: Any,
    runs: Sequence[tuple[float, float | None]],
    policy: UsagePolicy,
    now: int,
) -> JobToMeasure:
    """The job to measure for one run; `row` has the columns JOB_COLUMNS."""
    # Series are queried in whole seconds, from the start rounded down to the end rounded up.
    start = int(row.start_time)
    end = None if row.end_time is None else math.ceil(row.end_time)
    until = min(now, end + policy.settle_seconds) if end is not None else now
    later = min((other for other, _ in runs if other > row.start_time), default=math.inf)
    earlier = [(other_end or other) for other, other_end in runs if other < row.start_time]
    # By then, the lingering series of the previous run are gone.
    before = max(earlier, default=-math.inf) + policy.settle_seconds
    near = before > start
    last_seen = (end if end is not None else now) + policy.settle_seconds
    span = JobWindow(
        cluster, row.jobid, start, int(max(min(until, later - 1), start + 1)),
        near_other_run=before > start - CARRIED_SECONDS or later <= last_seen,
        end=end, nodes=row.allocated_nodes or 1, free_range=(before, later - 1),
    )  # fmt: skip
    return JobToMeasure(
        row.id, cluster, row.jobid, row.username, row.uid, start, end,
        row.allocated_nodes, row.allocated_cpus, span, near, tool=row.tool,
    )  # fmt: skip


def write_usages(
    db: Connection,
    cluster: str,
    source: str,
    usages: Mapping[JobToMeasure, MeasuredUsage],
    policy: UsagePolicy,
    now: int,
) -> None:
    """Replace the stored usage of jobs, and mark the days that this changes."""
    job = schema.job
    rows: list[tuple[Any, ...]] = []
    due: list[dict[str, int | None]] = []
    days: set[int] = set()
    for target, usage in usages.items():
        columns = {
            **usage._asdict(),
            **usage.values,
            "source": source,
            "measured_time": now,
            "until_time": min(usage.until_time, now),
        }
        rows.append(tuple(columns.get(name) for name in _USAGE_COLUMNS))
        days.update(days_of(target.start, target.end if target.end is not None else now))
        due.append(
            {
                "measured_id": target.id,
                "due": _next_due_time(target, usage, policy, now),
            }
        )
    if rows:
        again = sa.update(job).where(job.c.id == sa.bindparam("measured_id"))
        goes_on = sa.case(
            (job.c.state != JobState.VANISHED.value, sa.bindparam("due", type_=sa.BigInteger))
        )
        db.execute(again.values(usage_due_time=goes_on), due)
        write_rows(db, schema.job_usage, rows)
    _replace_rows(
        db, schema.job_gpu, usages, [(u.job_id, *gpu) for u in usages.values() for gpu in u.devices]
    )
    _replace_rows(
        db,
        schema.job_emissions,
        usages,
        [(u.job_id, *each) for u in usages.values() for each in u.emissions.items()],
    )
    mark_days(db, cluster, days)


def record_failures(
    db: Connection, source: str, failed: Collection[JobToMeasure], policy: UsagePolicy, now: int
) -> None:
    """Record that jobs could not be measured, and when to retry: at twice their age."""
    usage, job = schema.job_usage, schema.job
    for target in failed:
        which = usage.c.job_id == target.id
        old_doubt = db.execute(sa.select(usage.c.doubt).where(which)).scalar()
        doubts = {word for word in (old_doubt or "").split(", ") if word} | {NOT_ANSWERED}
        doubt = ", ".join(word for word in DOUBTS if word in doubts)
        if old_doubt is not None:
            db.execute(sa.update(usage).where(which).values(doubt=doubt))
        else:
            db.execute(
                sa.insert(usage).values(
                    job_id=target.id, source=source, measured_time=now,
                    until_time=target.start, samples=0, dropped_series=0, nodes=0,
                    coverage=0.0, doubt=doubt,
                )
            )  # fmt: skip
        retry_time = now + max(_RETRY_SECONDS, min(now - (target.end or target.start), DAY))
        is_too_late = target.end is not None and retry_time > target.end + policy.horizon_seconds
        due = None if is_too_late else retry_time
        db.execute(sa.update(job).where(job.c.id == target.id).values(usage_due_time=due))


def _replace_rows(
    db: Connection,
    table: sa.Table,
    usages: Mapping[JobToMeasure, MeasuredUsage],
    rows: list[tuple[Any, ...]],
) -> None:
    for part in chunks([target.id for target in usages]):
        db.execute(sa.delete(table).where(table.c.job_id.in_(part)))
    write_rows(db, table, rows)


def _next_due_time(
    target: JobToMeasure, usage: MeasuredUsage, policy: UsagePolicy, now: int
) -> int | None:
    if target.end is None:
        return now + policy.refresh_seconds
    # Samples may be late because of a remote-write queue or a separate poller; complete
    # measurements are not repeated.
    late = usage.coverage < 0.999 and now < target.end + _LATE_SECONDS
    return now + _RETRY_SECONDS if late else None


def mark_for_measurement(
    db: Connection, cluster: str, since: int, until: int | None = None, now: int = 0
) -> int:
    """Mark the jobs that ended in [since, until) to be measured again; returns how many."""
    job = schema.job
    which = (job.c.cluster == cluster) & (job.c.end_time >= since) & job.c.start_time.is_not(None)
    if until is not None:
        which &= job.c.end_time < until
    return db.execute(sa.update(job).where(which).values(usage_due_time=now)).rowcount

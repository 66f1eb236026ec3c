"""Writes measured usage: the one place where measured values enter the database."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.judgements import SEEN_TO_END
from batchjob.schedulers.records import QuarantinedRow
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.upsert import chunks, store_quarantined, write_rows
from batchjob_stats_db.days import DAY, days_of
from batchjob_stats_db.isolation import is_database_failure, isolate_failures
from batchjob_stats_db.measure.job_usage import CAVEATS, NOT_STORABLE, JobToMeasure, MeasuredUsage
from batchjob_stats_db.measure.node_usage import UNIDENTIFIED
from batchjob_stats_db.measure.rollup import mark_days

_USAGE_COLUMNS = [column.name for column in schema.job_usage.columns]
_LATE_SECONDS = 6 * 3600  # how long after a job's end samples may still arrive
_RETRY_SECONDS = 1800


def write_or_set_aside(
    db: Connection,
    cluster: str,
    source: str,
    usages: Mapping[JobToMeasure, MeasuredUsage],
    policy: UsagePolicy,
    now: int,
    *,
    is_live: bool = False,
) -> dict[JobToMeasure, Exception]:
    """Write the usage of jobs; those that no database accepts are set aside.

    `is_live`: the usage is not final, and changes no due time. Returns the jobs that are set aside,
    with the errors; they are measured again later.
    """

    def write(part: Sequence[JobToMeasure]) -> None:
        some = {job: usages[job] for job in part}
        with db.begin_nested():
            if is_live:
                _write_rows(db, source, some.values(), now)
            else:
                write_usages(db, cluster, source, some, policy, now)

    refused = isolate_failures(list(usages), write, is_database_failure)
    if is_live:  # the days of running jobs are rebuilt in any case
        _mark_days_of(db, cluster, [job for job in usages if job.end is not None], now)
    else:
        rows = [
            QuarantinedRow(source, f"left out of job {job.jobid}", f"job {job.jobid}", rule)
            for job, usage in usages.items()
            for rule in set(usage.refused)
        ]
        store_quarantined(db, cluster, rows, now)
    record_failures(db, source, refused, NOT_STORABLE, policy, now)
    return refused


def _write_rows(db: Connection, source: str, usages: Collection[MeasuredUsage], now: int) -> None:
    written = {"source": source, "measured_time": now}
    columns = [
        {**each._asdict(), **each.values, **written, "until_time": min(each.until_time, now)}
        for each in usages
    ]
    write_rows(
        db, schema.job_usage, [tuple(each.get(name) for name in _USAGE_COLUMNS) for each in columns]
    )
    gpu = schema.job_gpu.c
    for part in chunks([each.job_id for each in usages if each.devices]):
        # A GPU that could not be identified at first may be known by now.
        stale = gpu.job_id.in_(part) & gpu.uuid.startswith(UNIDENTIFIED)
        db.execute(sa.delete(schema.job_gpu).where(stale))
    write_rows(db, schema.job_gpu, [(u.job_id, *gpu) for u in usages for gpu in u.devices])
    grams = [(u.job_id, *each) for u in usages for each in u.emissions.items()]
    write_rows(db, schema.job_emissions, grams)
    write_rows(db, schema.job_node_usage, [(u.job_id, *node) for u in usages for node in u.by_node])


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
    if usages:
        again = sa.update(job).where(job.c.id == sa.bindparam("measured_id"))
        due_time = sa.bindparam("due", type_=sa.BigInteger)
        goes_on = sa.case((job.c.state != JobState.VANISHED.value, due_time))
        due = [
            {"measured_id": target.id, "due": _next_due_time(target, usage, policy, now)}
            for target, usage in usages.items()
        ]
        db.execute(again.values(usage_due_time=goes_on), due)
    for part in chunks([target.id for target in usages]):
        for table in (schema.job_gpu, schema.job_emissions, schema.job_node_usage):
            db.execute(sa.delete(table).where(table.c.job_id.in_(part)))
    _write_rows(db, source, usages.values(), now)
    _mark_days_of(db, cluster, usages, now)


def _mark_days_of(db: Connection, cluster: str, jobs: Collection[JobToMeasure], now: int) -> None:
    runs = (days_of(job.start, job.end if job.end is not None else now) for job in jobs)
    mark_days(db, cluster, set(chain.from_iterable(runs)))


def record_failures(
    db: Connection,
    source: str,
    failed: Collection[JobToMeasure],
    caveat: str,
    policy: UsagePolicy,
    now: int,
) -> None:
    """Record why jobs have no new measurement, and when to retry: at twice their age."""
    usage, job = schema.job_usage, schema.job
    for target in failed:
        which = usage.c.job_id == target.id
        before = db.execute(sa.select(usage.c.caveats).where(which)).scalar()
        caveats = {word for word in (before or "").split(", ") if word} | {caveat}
        words = ", ".join(word for word in CAVEATS if word in caveats)
        if before is not None:
            db.execute(sa.update(usage).where(which).values(caveats=words))
        else:
            nothing = MeasuredUsage(target.id, 0, 0, 0, 0.0, target.start, words, {}, (), {})
            _write_rows(db, source, [nothing], now)
        retry_time = now + max(_RETRY_SECONDS, min(now - (target.end or target.start), DAY))
        is_too_late = target.end is not None and retry_time > target.end + policy.horizon_seconds
        due = None if is_too_late else retry_time
        db.execute(sa.update(job).where(job.c.id == target.id).values(usage_due_time=due))


def _next_due_time(
    target: JobToMeasure, usage: MeasuredUsage, policy: UsagePolicy, now: int
) -> int | None:
    if target.end is None:
        return now + policy.refresh_seconds
    # Samples may be late because of a remote-write queue or a separate poller; complete
    # measurements are not repeated.
    late = usage.coverage < SEEN_TO_END and now < target.end + _LATE_SECONDS
    return now + _RETRY_SECONDS if late else None

"""Deletes expired rows, a few thousand in a transaction, so that other writers do not wait long.

Daily sums are kept when their jobs are deleted: a day is rebuilt only while it is due, and a day
whose jobs are gone never becomes due.
"""

from typing import Any

import sqlalchemy as sa

from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.job_writer import LIVE_STATES
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.rollup import drop_days
from batchjob_stats_db.poller.options import RetentionOptions

_ROWS_PER_BATCH = 5000
_YEAR_SECONDS = 366 * 86400

FREE_TEXT_COLUMNS = (
    "name", "submit_line", "work_dir", "stdout_path", "dependencies", "tool", "parameters", "error",
)  # fmt: skip
"""What users themselves write into a job record."""


def delete_expired(store: Store, retention: RetentionOptions, now: int) -> int:
    """Apply the cluster's retention; returns how many rows were deleted or cleared."""
    job, step = schema.job.c, schema.job_step.c
    rows = 0
    if retention.jobs:
        which = _jobs_ended_before(store, now - retention.jobs)
        rows += _execute_in_batches(store, sa.delete(schema.job), which)
    if retention.names:
        with_text = sa.or_(*(job[name] != "" for name in FREE_TEXT_COLUMNS))
        old = _jobs_ended_before(store, now - retention.names)
        blank = sa.update(schema.job).values(dict.fromkeys(FREE_TEXT_COLUMNS, ""))
        rows += _execute_in_batches(store, blank, old.where(with_text))
        steps = sa.select(step.job_id).where((step.name != "") | (step.submit_line != ""))
        blank = sa.update(schema.job_step).values(name="", submit_line="")
        rows += _execute_in_batches(store, blank, old.where(job.id.in_(steps)), step.job_id)
        with store.transaction() as db:
            rows += scripts.delete(db, old)
    if retention.steps:
        which = _jobs_ended_before(store, now - retention.steps)
        which = which.where(job.id.in_(sa.select(step.job_id)))
        rows += _execute_in_batches(store, sa.delete(schema.job_step), which, step.job_id)
    with store.transaction() as db:
        scripts.delete_unused(db)
        # Marks of days more than a year ahead, which records of impossible times have left.
        due = schema.rollup_due
        ahead = (due.c.cluster == store.cluster) & (due.c.day > now + _YEAR_SECONDS)
        rows += db.execute(sa.delete(due).where(ahead)).rowcount
        if retention.daily:
            rows += drop_days(db, store.cluster, int(now - retention.daily))
        if retention.quarantine:
            bad = schema.quarantine
            is_old = bad.c.time < int(now - retention.quarantine)
            expired = sa.delete(bad).where(bad.c.cluster == store.cluster, is_old)
            rows += db.execute(expired).rowcount
        if db.dialect.name == "sqlite":
            db.execute(sa.text("PRAGMA optimize"))
    return rows


def _jobs_ended_before(store: Store, at: float) -> sa.Select[Any]:
    """Ids of jobs that had ended at `at`; those that never started count by their end."""
    job = schema.job.c
    last = sa.func.coalesce(job.end_time, job.start_time, job.submit_time)
    return sa.select(job.id).where(
        job.cluster == store.cluster,
        (job.end_time < int(at)) | (job.end_time.is_(None) & job.state.not_in(LIVE_STATES)),
        last < int(at),
    )


def _execute_in_batches(
    store: Store, statement: Any, which: sa.Select[Any], column: Any = schema.job.c.id
) -> int:
    rows = 0
    while True:
        with store.transaction() as db:
            changed = db.execute(statement.where(column.in_(which.limit(_ROWS_PER_BATCH)))).rowcount
        rows += changed
        if not changed:
            return rows

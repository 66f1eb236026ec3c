"""Deletes rows that have expired, a few thousand at a time, so that nobody waits long.

Daily sums are kept when their jobs are deleted: a day is rebuilt only while it is due, and a day
whose jobs are gone never becomes due.
"""

from typing import Any

import sqlalchemy as sa

from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.job_writer import LIVE
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.rollup import drop_days
from batchjob_stats_db.poller.options import RetentionOptions

_AT_ONCE = 5000

FREE_TEXTS = (
    "name", "submit_line", "work_dir", "stdout_path", "dependencies", "tool", "parameters", "error",
)  # fmt: skip
"""What users themselves write into a job record."""


def drop_old(store: Store, keep: RetentionOptions, now: int) -> int:
    """Apply the cluster's retention; returns how many rows were deleted or cleared."""
    job, step = schema.job.c, schema.job_step.c
    older = _ended_before
    rows = 0
    if keep.jobs:
        rows += _in_pieces(store, sa.delete(schema.job), older(store, now - keep.jobs))
    if keep.names:
        written = sa.or_(*(job[name] != "" for name in FREE_TEXTS))
        which = older(store, now - keep.names).where(written)
        blank = sa.update(schema.job).values(dict.fromkeys(FREE_TEXTS, ""))
        rows += _in_pieces(store, blank, which)
        steps = sa.select(step.job_id).where((step.name != "") | (step.submit_line != ""))
        named = older(store, now - keep.names).where(job.id.in_(steps))
        blank = sa.update(schema.job_step).values(name="", submit_line="")
        rows += _in_pieces(store, blank, named, step.job_id)
        with store.transaction() as db:
            rows += scripts.drop(db, older(store, now - keep.names))
    if keep.steps:
        which = older(store, now - keep.steps).where(job.id.in_(sa.select(step.job_id)))
        rows += _in_pieces(store, sa.delete(schema.job_step), which, step.job_id)
    with store.transaction() as db:
        scripts.drop_unused(db)
        if keep.daily:
            rows += drop_days(db, store.cluster, int(now - keep.daily))
        if keep.quarantine:
            bad = schema.quarantine
            old = (bad.c.cluster == store.cluster) & (bad.c.time < int(now - keep.quarantine))
            rows += db.execute(sa.delete(bad).where(old)).rowcount
        if db.dialect.name == "sqlite":
            db.execute(sa.text("PRAGMA optimize"))
    return rows


def _ended_before(store: Store, at: float) -> sa.Select[Any]:
    """Ids of jobs that had ended at `at`; those that never started count by their end."""
    job = schema.job.c
    last = sa.func.coalesce(job.end_time, job.start_time, job.submit_time)
    return sa.select(job.id).where(
        job.cluster == store.cluster,
        (job.end_time < int(at)) | (job.end_time.is_(None) & job.state.not_in(LIVE)),
        last < int(at),
    )


def _in_pieces(
    store: Store, change: Any, which: sa.Select[Any], column: Any = schema.job.c.id
) -> int:
    rows = 0
    while True:
        with store.transaction() as db:
            done = db.execute(change.where(column.in_(which.limit(_AT_ONCE)))).rowcount
        rows += done
        if not done:
            return rows

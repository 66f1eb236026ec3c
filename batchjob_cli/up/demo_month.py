"""Adds the simulated cluster beside the real jobs, under a name of its own, and removes it."""

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from batchjob.schedulers.accounting import Batch
from batchjob_cli.up import demo_cluster, demo_usage
from batchjob_cli.up.demo_cluster import CLUSTER, MadeJob
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.pending import write
from batchjob_stats_db.measure.rollup import due_days, roll_up
from batchjob_stats_db.samples import folder

_PLOTTED = 250  # the latest jobs have samples
_SOURCE = "demo"


def make(engine: Engine, samples: Path, now: int) -> list[MadeJob]:
    """Recreate it; returns its jobs. Raises OSError."""
    remove(engine, samples)
    jobs = demo_cluster.jobs(now)
    store = Store(engine, CLUSTER, UsagePolicy(), clock=lambda: now)
    store.write(Batch(tuple(job.record for job in jobs), (), "", 0), _SOURCE)
    store.write_people(demo_cluster.people(), _SOURCE)
    with engine.begin() as db:
        _measure(db, jobs, now)
    with engine.begin() as db:
        for day in due_days(db, CLUSTER, 1000):
            roll_up(db, CLUSTER, day, now)
    for job in jobs[-_PLOTTED:]:
        demo_usage.write_samples(job, samples, now)
    return jobs


def _measure(db: Connection, jobs: list[MadeJob], now: int) -> None:
    made = {job.record.jobid: job for job in jobs}
    table = schema.job
    found = db.execute(
        sa.select(table).where(table.c.cluster == CLUSTER, table.c.start_time.is_not(None))
    )
    usages = dict(demo_usage.usage(made[row["jobid"]], row, now) for row in found.mappings())
    write(db, CLUSTER, "samples", usages, UsagePolicy(), now)


def remove(engine: Engine, samples: Path) -> None:
    """Remove all of it, if it exists; raises OSError."""
    with engine.begin() as db:
        job = schema.job.c
        ids = db.scalars(sa.select(job.jobid).where(job.cluster == CLUSTER)).all()
        for table in reversed(schema.metadata.sorted_tables):
            column = table.c.get("name" if table is schema.cluster else "cluster")
            if column is not None and table is not schema.api_token:
                db.execute(sa.delete(table).where(column == CLUSTER))
    for jobid in ids:
        folder.remove(samples, jobid)

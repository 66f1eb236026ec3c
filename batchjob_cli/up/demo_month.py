"""Adds the simulated cluster beside the real jobs, under a name of its own, and removes it."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from batchjob.runtime.background import Loop
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_cli.up import demo_cluster, demo_usage
from batchjob_cli.up.demo_cluster import CLUSTER, DemoJob
from batchjob_cli.up.demo_usage import SampleFiles
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.rollup import due_days, roll_up
from batchjob_stats_db.measure.writer import write_usages
from batchjob_stats_db.samples import folder

log = logging.getLogger(__name__)

_JOBS_WITH_SAMPLES = 250  # the newest jobs, which have samples, like all that did not complete
_SOURCE = "demo"
_PAUSE_SECONDS = 30.0


class DemoMonth:
    """The simulated month; its jobs start and end as time passes."""

    def __init__(self, engine: Engine, samples: Path, started: int) -> None:
        """Generate the cluster again; raises OSError."""
        remove(engine, samples)
        self.plan = demo_cluster.plan_jobs(started)
        self.jobs: list[DemoJob] = []
        self._engine = engine
        self._now = started
        self._store = Store(engine, CLUSTER, UsagePolicy(), clock=lambda: self._now)
        self._files: dict[str, SampleFiles] = {}  # for running jobs
        self._written: set[str] = set()  # jobs that have files
        self._samples = samples
        self._store.write_associations(demo_cluster.demo_associations(), _SOURCE)
        self.advance(started)

    def advance(self, now: int) -> None:
        """Write what has happened by then; raises OSError."""
        self._now = now
        before = {job.record.jobid: job.record for job in self.jobs}
        self.jobs = demo_cluster.jobs_at(self.plan, now)
        changed = [job for job in self.jobs if before.get(job.record.jobid) != job.record]
        if changed:
            self._store.write(Batch(tuple(job.record for job in changed), (), "", 0), _SOURCE)
            with self._engine.begin() as db:
                _write_usages(db, changed, now)
            with self._engine.begin() as db:
                for day in due_days(db, CLUSTER, 1000):
                    roll_up(db, CLUSTER, day, now)
        self._write_samples(changed, now)

    def loop(self) -> Loop:
        """The thread that advances it."""
        return Loop("demo", self._advance_to_now, _PAUSE_SECONDS)

    def _advance_to_now(self) -> float:
        try:
            self.advance(int(time.time()))
        except (OSError, sa.exc.SQLAlchemyError) as error:
            log.warning("the demo's cluster: %s", " ".join(str(error).split()))
        return _PAUSE_SECONDS

    def _write_samples(self, changed: Sequence[DemoJob], now: int) -> None:
        self._files = {jobid: each for jobid, each in self._files.items() if each.advance(now)}
        final = {job.record.jobid: job for job in self.plan}
        latest = len(changed) - _JOBS_WITH_SAMPLES
        for place, job in enumerate(changed):
            jobid, state = job.record.jobid, job.record.state
            if place < latest and state is JobState.COMPLETED:
                continue
            if job.record.start_time is not None and jobid not in self._written:
                self._written.add(jobid)
                files = SampleFiles(final[jobid], self._samples, now)
                if files.advance(now):
                    self._files[jobid] = files


def _write_usages(db: Connection, jobs: Sequence[DemoJob], now: int) -> None:
    made = {job.record.jobid: job for job in jobs}
    table = schema.job
    found = db.execute(
        sa.select(table).where(
            table.c.cluster == CLUSTER,
            table.c.jobid.in_(made),
            table.c.start_time.is_not(None),
        )
    )
    usages = dict(demo_usage.usage(made[row["jobid"]], row, now) for row in found.mappings())
    write_usages(db, CLUSTER, "samples", usages, UsagePolicy(), now)


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
        folder.delete_job(samples, jobid)

"""Writes what sources return, each job once, even if the process is killed at any moment.

One batch is one transaction: rows, days to roll up, quarantine and the watermark.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from batchjob.schedulers.accounting import Batch, UnfinishedJob
from batchjob.schedulers.records import Associations, JobKey, JobRecord
from batchjob_stats_db.database import gate, record_rows, schema
from batchjob_stats_db.database.job_writer import LIVE_STATES, JobWriter, existing_rows
from batchjob_stats_db.database.record_rows import UsagePolicy, write_associations
from batchjob_stats_db.database.upsert import make_storable, store_quarantined, write_rows


class Store:
    """Writes one cluster's records; for one thread."""

    def __init__(
        self,
        engine: Engine,
        cluster: str,
        policy: UsagePolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.engine = engine
        self.cluster = cluster
        self.policy = policy or UsagePolicy()
        self.clock = clock
        self.tell: Callable[[Connection, JobWriter], None] = lambda _db, _jobs: None
        """Writes messages about the jobs of a batch, in its transaction."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that excludes other writers of this cluster."""
        with self.engine.begin() as db:
            if db.dialect.name == "postgresql":
                lock = sa.func.hashtextextended(f"batchjob:{self.cluster}", 0)
                db.execute(sa.select(sa.func.pg_advisory_xact_lock(lock)))
            yield db

    def watermark(self, source: str) -> str:
        """Where the source's last batch ended, "" before the first."""
        state = schema.poll_state
        which = (state.c.cluster == self.cluster) & (state.c.source == source)
        with self.engine.connect() as db:
            return db.scalar(sa.select(state.c.watermark).where(which)) or ""

    def first_time(self) -> int | None:
        """When the cluster was first read; None: never."""
        clusters = schema.cluster.c
        with self.engine.connect() as db:
            return db.scalar(sa.select(clusters.first_time).where(clusters.name == self.cluster))

    def forget_watermark(self, source: str) -> None:
        """Delete a watermark whose reading is complete."""
        state = schema.poll_state
        which = (state.c.cluster == self.cluster) & (state.c.source == source)
        with self.transaction() as db:
            db.execute(sa.delete(state).where(which))

    def changed_keys(self, records: Sequence[JobRecord]) -> set[JobKey]:
        """Keys of the records that have no row, or differ from it."""
        with self.engine.connect() as db:
            records, _, _ = gate.admit(records, self.clock())
            existing = existing_rows(db, self.cluster, records)
        return {
            record.key
            for record in records
            if (old := existing.get(record.key)) is None
            or record_rows.merge_row(old[1:], record, self.policy, 0) is not None
        }

    def unfinished(self) -> dict[str, UnfinishedJob]:
        """Jobs that wait, run or are suspended, by job id; of several runs, the last."""
        job = schema.job
        query = (
            sa.select(job.c.jobid, *(job.c[name] for name in UnfinishedJob._fields))
            .where(
                job.c.cluster == self.cluster,
                job.c.end_time.is_(None),
                job.c.state.in_(LIVE_STATES),
            )
            .order_by(job.c.submit_time, job.c.run)
        )
        with self.engine.connect() as db:
            return {row.jobid: UnfinishedJob(*row[1:]) for row in db.execute(query).all()}

    def write(self, batch: Batch, source: str, seconds: float = 0.0) -> JobWriter:
        """Write a batch and its watermark, or nothing of it; returns what was written."""
        now = int(self.clock())
        with self.transaction() as db:
            self._register_cluster(db, now)
            jobs = JobWriter(db, self.cluster, self.policy, now)
            jobs.write(batch.jobs)
            jobs.quarantine(batch.quarantined)
            jobs.counts["quarantined"] += len(batch.quarantined)
            self.tell(db, jobs)
            jobs.mark_vanished(batch.vanished)
            jobs.mark_runaway(batch.runaway)
            jobs.delete(batch.deleted)
            write_rows(
                db, schema.rollup_due, [(self.cluster, day) for day in sorted(jobs.changed_days)]
            )
            self._record_success(db, source, batch.watermark, len(batch.jobs), seconds, now)
        return jobs

    def write_associations(
        self, associations: Associations, source: str, seconds: float = 0.0
    ) -> None:
        now = int(self.clock())
        with self.transaction() as db:
            self._register_cluster(db, now)
            write_associations(db, self.cluster, associations, now)
            store_quarantined(db, self.cluster, associations.quarantined, now)
            self._record_success(db, source, "", len(associations.associations), seconds, now)

    def record_failure(self, source: str, error: str) -> None:
        """Store the last error of a source, and keep its watermark."""
        columns = ["cluster", "source", "error_time", "error"]
        row = (self.cluster, source, int(self.clock()), make_storable(error))
        with self.transaction() as db:
            write_rows(db, schema.poll_state, [row], columns)

    def _register_cluster(self, db: Connection, now: int) -> None:
        registered = sa.select(schema.cluster.c.name).where(schema.cluster.c.name == self.cluster)
        if db.execute(registered).first() is None:
            db.execute(sa.insert(schema.cluster).values(name=self.cluster, first_time=now))

    def _record_success(
        self, db: Connection, source: str, watermark: str, rows: int, seconds: float, now: int
    ) -> None:
        columns = ["cluster", "source", "watermark", "success_time", "rows", "seconds"]
        row = (self.cluster, source, watermark, now, rows, seconds)
        write_rows(db, schema.poll_state, [row], columns)

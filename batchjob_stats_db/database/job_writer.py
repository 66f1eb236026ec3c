"""Writes job records, each job once.

Values that a record does not state (None, "") are kept from the existing row. Unchanged rows are
not written, so that a poll of 5000 running jobs costs only a comparison.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.local_runs.record import RUN_ID
from batchjob.schedulers.accounting import Deleted
from batchjob.schedulers.records import RAW_LIMIT, JobKey, JobRecord, Quarantined
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import record_rows, schema
from batchjob_stats_db.database.quarantine import set_aside, write_or_set_aside
from batchjob_stats_db.database.record_rows import Row, UsagePolicy
from batchjob_stats_db.database.upsert import parts
from batchjob_stats_db.days import days_of

LIVE = tuple(state.value for state in JobState if state.live)

_END, _UID = map(list(schema.job.c.keys()).index, ("end_time", "uid"))
_CHUNK = 5000  # records whose rows are in memory at the same time


class Written(NamedTuple):
    """The result of writing a batch."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    quarantined: int = 0


class JobWriter:
    """Writes one cluster's records within a transaction."""

    def __init__(self, db: Connection, cluster: str, policy: UsagePolicy, now: int) -> None:
        self._db = db
        self._cluster = cluster
        self._policy = policy
        self._now = now
        self.ended: list[JobRecord] = []
        """Jobs whose end was not on record before."""
        self.days: set[int] = set()
        """Days whose sums have changed."""

    def write(self, records: Sequence[JobRecord]) -> Written:
        """Write records of different jobs."""
        written = Written()
        for begin in range(0, len(records), _CHUNK):
            part = self._write_some(records[begin : begin + _CHUNK])
            written = Written._make(map(sum, zip(written, part, strict=True)))
        return written

    def mark_vanished(self, jobids: Sequence[str]) -> None:
        """Mark jobs that the scheduler no longer knows; their end will never be known.

        They are measured once more, up to their last sample.
        """
        job = schema.job
        for part in parts(jobids):
            gone = (
                (job.c.cluster == self._cluster)
                & job.c.jobid.in_(part)
                & job.c.end_time.is_(None)
                & job.c.state.in_(LIVE)
            )
            for start in self._db.execute(sa.select(job.c.start_time).where(gone)).scalars():
                self.days.update(days_of(start, self._now))
            due = sa.case((job.c.usage_due_time.is_not(None), self._now))
            state = {
                "state": JobState.VANISHED.value, "update_time": self._now, "usage_due_time": due
            }  # fmt: skip
            self._db.execute(sa.update(job).where(gone).values(state))

    def mark_runaway(self, jobids: Sequence[str]) -> None:
        """Mark jobs that run according to accounting, but not according to the scheduler."""
        job = schema.job
        for part in parts(jobids):
            self._db.execute(
                sa.update(job)
                .where(
                    job.c.cluster == self._cluster,
                    job.c.jobid.in_(part),
                    job.c.end_time.is_(None),
                    job.c.doubt == "",
                )
                .values(doubt="runaway", update_time=self._now)
            )

    def delete(self, deleted: Sequence[Deleted]) -> None:
        """Delete records; the sums of the days they ran are rebuilt."""
        job = schema.job
        for each in deleted:
            which = (
                (job.c.cluster == self._cluster)
                & (job.c.jobid == each.jobid)
                & (job.c.source == each.source)
            )
            if each.uid is not None:
                which &= job.c.uid == each.uid
            for row in self._db.execute(sa.select(job.c.start_time, job.c.end_time).where(which)):
                self.days.update(days_of(row.start_time, row.end_time or self._now))
            self._db.execute(sa.delete(job).where(which))

    def _write_some(self, records: Sequence[JobRecord]) -> Written:
        there = rows_there(self._db, self._cluster, records)
        records, forged = _of_their_owners(records, there)
        set_aside(self._db, self._cluster, forged, self._now)
        ids = {key: row[0] for key, row in there.items()}
        new: list[JobRecord] = []
        changed: list[JobRecord] = []
        live: list[JobRecord] = []  # unchanged, but a running job may have new steps
        rows: list[Row] = []
        for record in records:
            old = there.get(record.key)
            if record.end_time is not None and (old is None or old[_END] is None):
                self.ended.append(record)
            if old is None:
                new.append(record)
                continue
            row = record_rows.merged(old[1:], record, self._policy, self._now)
            if row is not None:
                changed.append(record)
                rows.append((old[0], *row))
                self.days.update(record_rows.days(row, self._now))
                self.days.update(record_rows.days(old[1:], self._now))
            elif record.end_time is None and record.steps:
                live.append(record)
        for job_id, record in zip(_new_ids(self._db, len(new)), new, strict=True):
            ids[record.key] = job_id
            row = record_rows.new(record, self._policy, self._now)
            rows.append((job_id, *row))
            self.days.update(record_rows.days(row, self._now))
        refused = self._insert(schema.job, rows)
        ids = {key: job_id for key, job_id in ids.items() if job_id not in refused}
        self._forget_nodes([record for record in changed if record.nodes], ids)
        self._write_parts(_with_ids((*new, *changed), ids), _with_ids(live, ids))
        aside = len(refused) + len(forged)
        return Written(len(new), len(changed), len(records) - len(rows), aside)

    def _insert(self, table: sa.Table, rows: Sequence[Row]) -> set[int]:
        return write_or_set_aside(self._db, self._cluster, table, rows, self._now)

    def _forget_nodes(self, records: Iterable[JobRecord], ids: Mapping[JobKey, int]) -> None:
        table = schema.job_node
        for part in parts([job_id for job_id, _ in _with_ids(records, ids)]):
            self._db.execute(sa.delete(table).where(table.c.job_id.in_(part)))

    def _write_parts(
        self,
        written: Sequence[tuple[int, JobRecord]],
        live: Sequence[tuple[int, JobRecord]],
    ) -> None:
        """Write nodes and steps; a record has all of them or none."""
        nodes = [
            (job_id, *share, record.cluster, record.start_time)
            for job_id, record in written
            for share in record.nodes
        ]
        steps = [
            (job_id, step.step, step.state.value, *step[2:])
            for job_id, record in (*written, *live)
            for step in record.steps
        ]
        if known := _steps_there(self._db, {job_id for job_id, _ in live}):
            steps = [row for row in steps if row not in known]
        self._insert(schema.job_node, nodes)
        self._insert(schema.job_step, steps)


def rows_there(db: Connection, cluster: str, records: Sequence[JobRecord]) -> dict[JobKey, Row]:
    """The existing rows of the records' job ids, `id` first."""
    job = schema.job
    found: dict[JobKey, Row] = {}
    for part in parts([record.jobid for record in records]):
        query = sa.select(job).where(job.c.cluster == cluster, job.c.jobid.in_(part))
        for row in db.execute(query).all():
            found[record_rows.key(row[1:])] = row
    return found


def _with_ids(
    records: Iterable[JobRecord], ids: Mapping[JobKey, int]
) -> list[tuple[int, JobRecord]]:
    """The records that have a row, with its id."""
    found = ((ids.get(record.key), record) for record in records)
    return [(job_id, record) for job_id, record in found if job_id is not None]


def _of_their_owners(
    records: Sequence[JobRecord], there: Mapping[JobKey, Row]
) -> tuple[list[JobRecord], list[Quarantined]]:
    """The records, except those of a run whose id belongs to another user's row.

    Anyone who may write to a shared directory of runs can take the id of a run whose file is gone.
    """
    owners = {key.jobid: row[_UID] for key, row in there.items() if row[_UID] is not None}
    kept: list[JobRecord] = []
    forged: list[Quarantined] = []
    for record in records:
        if (
            record.uid is None
            or not RUN_ID.fullmatch(record.jobid)
            or owners.setdefault(record.jobid, record.uid) == record.uid
        ):
            kept.append(record)
        else:
            reason = f"uid {record.uid} wrote a run of uid {owners[record.jobid]}"
            forged.append(Quarantined(record.source, reason, repr(record)[:RAW_LIMIT]))
    return kept, forged


def _steps_there(db: Connection, job_ids: Collection[int]) -> set[Row]:
    """The existing rows of jobs' steps."""
    step = schema.job_step
    return {
        tuple(row)
        for part in parts(list(job_ids))
        for row in db.execute(sa.select(step).where(step.c.job_id.in_(part)))
    }


def _new_ids(db: Connection, count: int) -> Sequence[int]:
    """Ids for new jobs: to allocate them is cheaper than to read them back."""
    if db.dialect.name == "sqlite":  # this transaction is the only writer
        last = db.execute(sa.select(sa.func.max(schema.job.c.id))).scalar() or 0
        return range(last + 1, last + 1 + count)
    numbers = sa.text("SELECT nextval('job_id_seq') FROM generate_series(1, :count)")
    return db.execute(numbers, {"count": count}).scalars().all()

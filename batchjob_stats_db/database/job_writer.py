"""Writes job records, each job once.

Values that a record does not state (None, "") are kept from the existing row. Unchanged rows are
not written, so that a poll of 5000 running jobs costs only a comparison.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.local_runs.record import RUN_ID
from batchjob.schedulers.accounting import DeletedRecord
from batchjob.schedulers.reallocation import not_known
from batchjob.schedulers.records import (
    RAW_LIMIT,
    JobKey,
    JobRecord,
    NodeShare,
    QuarantinedRow,
    with_known_changes,
    with_returned_nodes,
    withdraws_allocation,
)
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import gate, record_rows, schema
from batchjob_stats_db.database.record_rows import JobValues, UsagePolicy
from batchjob_stats_db.database.upsert import chunks, store_quarantined, write_or_quarantine
from batchjob_stats_db.days import days_of

LIVE_STATES = tuple(state.value for state in JobState if state.is_live)

_START_INDEX, _END_INDEX, _UID_INDEX, _RESIZED_INDEX = map(
    list(schema.job.c.keys()).index, ("start_time", "end_time", "uid", "resized_cpu_seconds")
)
_CHUNK_RECORDS = 5000  # records whose rows are in memory at the same time


class JobWriter:
    """Writes one cluster's records within a transaction."""

    def __init__(self, db: Connection, cluster: str, policy: UsagePolicy, now: int) -> None:
        self._db = db
        self._cluster = cluster
        self._policy = policy
        self._now = now
        self.counts = Counter(new=0, changed=0, unchanged=0, quarantined=0)
        """How many records were new and so on."""
        self.newly_ended: list[JobRecord] = []
        """Jobs whose end was not known before."""
        self.begun_or_ended: list[tuple[int, JobRecord]] = []
        """Jobs whose start or end was not known before, with the ids of their rows."""
        self.ids: dict[JobKey, int] = {}
        """The rows of what was written."""
        self.changed_days: set[int] = set()
        """Days whose sums have changed."""
        self.refused: Counter[gate.Refusal] = Counter()
        """How often a source broke a rule of the gate."""

    def write(self, records: Sequence[JobRecord]) -> None:
        for begin in range(0, len(records), _CHUNK_RECORDS):
            chunk = records[begin : begin + _CHUNK_RECORDS]
            admitted, refused, set_aside = gate.admit(chunk, self._now)
            self.quarantine(refused)
            self.counts["quarantined"] += set_aside
            self._write_chunk(admitted)

    def mark_vanished(self, jobids: Sequence[str]) -> None:
        """Mark jobs that the scheduler no longer knows; their end will never be known.

        They are measured once more, up to their last sample.
        """
        job = schema.job
        for part in chunks(jobids):
            vanished = (
                (job.c.cluster == self._cluster)
                & job.c.jobid.in_(part)
                & job.c.end_time.is_(None)
                & job.c.state.in_(LIVE_STATES)
            )
            for start in self._db.scalars(sa.select(job.c.start_time).where(vanished)):
                self.changed_days.update(days_of(start, self._now))
            due = sa.case((job.c.usage_due_time.is_not(None), self._now))
            state = {"state": JobState.VANISHED.value, "update_time": self._now}
            self._db.execute(sa.update(job).where(vanished).values(**state, usage_due_time=due))

    def mark_runaway(self, jobids: Sequence[str]) -> None:
        """Mark jobs that run according to accounting, but not according to the scheduler."""
        job = schema.job
        running = (
            (job.c.cluster == self._cluster) & job.c.end_time.is_(None) & (job.c.caveats == "")
        )
        for part in chunks(jobids):
            change = sa.update(job).where(running, job.c.jobid.in_(part))
            self._db.execute(change.values(caveats="runaway", update_time=self._now))

    def delete(self, deleted: Sequence[DeletedRecord]) -> None:
        """Delete records; the sums of the days they ran are rebuilt."""
        job = schema.job
        for deletion in deleted:
            condition = (
                (job.c.cluster == self._cluster)
                & (job.c.jobid == deletion.jobid)
                & (job.c.source == deletion.source)
            )
            if deletion.uid is not None:
                condition &= job.c.uid == deletion.uid
            times = sa.select(job.c.start_time, job.c.end_time).where(condition)
            for row in self._db.execute(times):
                self.changed_days.update(days_of(row.start_time, row.end_time or self._now))
            self._db.execute(sa.delete(job).where(condition))

    def _write_chunk(self, records: Sequence[JobRecord]) -> None:
        existing = existing_rows(self._db, self._cluster, records)
        records, forged = _split_forged(records, existing)
        self.quarantine(forged)
        ids = {key: row[0] for key, row in existing.items()}
        new: list[JobRecord] = []
        changed: list[JobRecord] = []
        unchanged: list[JobRecord] = []  # their steps may have changed
        rows: list[JobValues] = []
        for record in records:
            old = existing.get(record.key)
            if record.end_time is not None and (old is None or old[_END_INDEX] is None):
                self.newly_ended.append(record)
            if old is None:
                new.append(record)
                continue
            record = with_known_changes(record, old[_END_INDEX], old[_RESIZED_INDEX])
            if old[_RESIZED_INDEX] and self._was_changed_after_its_end(old[0], record):
                record = not_known(record)
            row = record_rows.merge_row(old[1:], record, self._policy, self._now)
            if row is not None:
                changed.append(record)
                rows.append((old[0], *row))
                self.changed_days.update(record_rows.days_run(row, self._now))
                self.changed_days.update(record_rows.days_run(old[1:], self._now))
            elif record.steps:
                unchanged.append(record)
        for job_id, record in zip(_allocate_ids(self._db, len(new)), new, strict=True):
            ids[record.key] = job_id
            row = record_rows.new_row(record, self._policy, self._now)
            rows.append((job_id, *row))
            self.changed_days.update(record_rows.days_run(row, self._now))
        refused = self._insert(schema.job, rows)
        changed = [self._with_returned_nodes(record, ids[record.key]) for record in changed]
        ids = {key: job_id for key, job_id in ids.items() if job_id not in refused}
        self.ids |= ids
        holding_nothing = [each for each in changed if _holds_nothing_known(each)]
        self._delete(schema.job_reallocation, holding_nothing, ids)
        moved = [each for each in changed if each.nodes]
        self._delete(schema.job_node, [*moved, *holding_nothing], ids)
        written = _with_ids((*new, *changed), ids)
        self.begun_or_ended += [
            each for each in written if _begins_or_ends(existing.get(each[1].key), each[1])
        ]
        self._write_nodes(written)
        self._write_steps([*written, *_with_ids(unchanged, ids)])
        self.counts.update(
            new=len(new),
            changed=len(changed),
            unchanged=len(records) - len(rows),
            quarantined=len(refused) + len(forged),
        )

    def quarantine(self, rows: Sequence[QuarantinedRow]) -> None:
        store_quarantined(self._db, self._cluster, rows, self._now)
        self.refused.update((row.source, row.rule) for row in rows)

    def _insert(self, table: sa.Table, rows: Sequence[JobValues]) -> set[int]:
        return write_or_quarantine(self._db, self._cluster, table, rows, self._now)

    def _was_changed_after_its_end(self, job_id: int, record: JobRecord) -> bool:
        """Whether a change that was stored while the job ran is dated after the end of the job."""
        if record.end_time is None:
            return False
        change, latest = schema.job_reallocation.c, record.end_time + gate.LOGGED_LATE_SECONDS
        found = sa.exists().where(change.job_id == job_id, change.until_time > latest)
        return bool(self._db.scalar(sa.select(found)))

    def _with_returned_nodes(self, record: JobRecord, job_id: int) -> JobRecord:
        """The record with the nodes that the job gave back, if it was reallocated while it ran."""
        if not record.reallocations or record.end_time is not None:
            return record
        node = schema.job_node.c
        names = [node[name] for name in NodeShare._fields]
        earlier = self._db.execute(sa.select(*names).where(node.job_id == job_id)).all()
        return with_returned_nodes((NodeShare(*each) for each in earlier), record)

    def _delete(
        self, table: sa.Table, records: Iterable[JobRecord], ids: Mapping[JobKey, int]
    ) -> None:
        for part in chunks([job_id for job_id, _ in _with_ids(records, ids)]):
            self._db.execute(sa.delete(table).where(table.c.job_id.in_(part)))

    def _write_nodes(self, records: Sequence[tuple[int, JobRecord]]) -> None:
        """Write nodes and reallocations; a record has all of them or none."""
        nodes = [
            (job_id, *share, record.cluster, record.start_time)
            for job_id, record in records
            for share in record.nodes
        ]
        reallocations = [
            (job_id, *change) for job_id, record in records for change in record.reallocations
        ]
        self._insert(schema.job_node, nodes)
        self._insert(schema.job_reallocation, reallocations)

    def _write_steps(self, records: Sequence[tuple[int, JobRecord]]) -> None:
        """Write the steps that have changed; what a record does not state of one is kept."""
        existing = _existing_step_rows(self._db, [job_id for job_id, job in records if job.steps])
        rows = []
        for job_id, record in records:
            for step in record.steps:
                row: JobValues = (job_id, step.step, step.state.value, *step[2:])
                old = existing.get((job_id, step.step))
                if old is not None:
                    pairs = zip(old, row, strict=True)
                    row = tuple(was if now in (None, "") else now for was, now in pairs)
                if row != old:
                    rows.append(row)
        self._insert(schema.job_step, rows)


def _holds_nothing_known(record: JobRecord) -> bool:
    """Whether a record replaces what earlier ones say of its job's nodes by nothing."""
    is_withdrawn = withdraws_allocation(record.allocated_cpus, record.resized_cpu_seconds)
    return is_withdrawn or record.state is JobState.PENDING


def existing_rows(
    db: Connection, cluster: str, records: Sequence[JobRecord]
) -> dict[JobKey, JobValues]:
    """The existing rows with the records' job ids, `id` first."""
    job = schema.job
    found: dict[JobKey, JobValues] = {}
    for part in chunks([record.jobid for record in records]):
        query = sa.select(job).where(job.c.cluster == cluster, job.c.jobid.in_(part))
        for row in db.execute(query).all():
            found[record_rows.job_key(row[1:])] = row
    return found


def _with_ids(
    records: Iterable[JobRecord], ids: Mapping[JobKey, int]
) -> list[tuple[int, JobRecord]]:
    ids_and_records = ((ids.get(record.key), record) for record in records)
    return [(job_id, record) for job_id, record in ids_and_records if job_id is not None]


def _begins_or_ends(old: JobValues | None, record: JobRecord) -> bool:
    """Whether the record states a start or an end that its row did not."""
    pairs = ((_START_INDEX, record.start_time), (_END_INDEX, record.end_time))
    return any(now is not None and (old is None or old[at] is None) for at, now in pairs)


def _split_forged(
    records: Sequence[JobRecord], existing: Mapping[JobKey, JobValues]
) -> tuple[list[JobRecord], list[QuarantinedRow]]:
    """Separate the records of runs whose id belongs to another user's row from the others.

    Anyone who may write to a shared directory of runs can take the id of a run whose file is gone.
    """
    owners = {
        key.jobid: row[_UID_INDEX] for key, row in existing.items() if row[_UID_INDEX] is not None
    }
    kept: list[JobRecord] = []
    forged: list[QuarantinedRow] = []
    for record in records:
        if (
            record.uid is None
            or not RUN_ID.fullmatch(record.jobid)
            or owners.setdefault(record.jobid, record.uid) == record.uid
        ):
            kept.append(record)
        else:
            reason = f"uid {record.uid} wrote a run of uid {owners[record.jobid]}"
            forged.append(QuarantinedRow(record.source, reason, repr(record)[:RAW_LIMIT], "forged"))
    return kept, forged


def _existing_step_rows(db: Connection, job_ids: Sequence[int]) -> dict[tuple[int, str], JobValues]:
    step = schema.job_step
    return {
        (row[0], row[1]): tuple(row)
        for part in chunks(job_ids)
        for row in db.execute(sa.select(step).where(step.c.job_id.in_(part)))
    }


def _allocate_ids(db: Connection, count: int) -> Sequence[int]:
    """Ids for new rows: allocating them is cheaper than reading them back after the insert."""
    if db.dialect.name == "sqlite":  # this transaction is the only writer
        last = db.execute(sa.select(sa.func.max(schema.job.c.id))).scalar() or 0
        return range(last + 1, last + 1 + count)
    numbers = sa.text("SELECT nextval('job_id_seq') FROM generate_series(1, :count)")
    return db.execute(numbers, {"count": count}).scalars().all()

"""Write what the sources say, each job once, whatever is killed in between.

One batch is one transaction: rows, days to roll up, quarantine and the watermark. What a record
does not say (None, "") is kept from the row that is there; a row that stays the same is not
written, so that a poll of 5000 running jobs costs one look at them.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from batchjob.local_runs.record import RUN_ID
from batchjob.schedulers.accounting import Batch, Deleted, Unfinished
from batchjob.schedulers.records import RAW_LIMIT, Associations, JobKey, JobRecord, Quarantined
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import record_rows, schema
from batchjob_stats_db.database.people import write_people
from batchjob_stats_db.database.record_rows import Row, UsagePolicy
from batchjob_stats_db.database.upsert import Rows, parts, upsert
from batchjob_stats_db.days import days_of

LIVE = tuple(state.value for state in JobState if state.live)

_END, _UID = map(list(schema.job.c.keys()).index, ("end_time", "uid"))
_CHUNK = 5000  # records whose rows are in memory at one time


class Written(NamedTuple):
    """What a batch came to."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    quarantined: int = 0


class Store:
    """Writes one cluster's records; used by one thread."""

    def __init__(
        self,
        engine: Engine,
        cluster: str,
        policy: UsagePolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.engine = engine
        self.cluster = cluster
        self._policy = policy or UsagePolicy()
        self.clock = clock
        dialect = engine.dialect.name
        self._upsert_job = upsert(dialect, schema.job, _names(schema.job))
        self._upsert_node = upsert(dialect, schema.job_node, _names(schema.job_node))
        self._upsert_step = upsert(dialect, schema.job_step, _names(schema.job_step))
        self._upsert_due = upsert(dialect, schema.rollup_due, _names(schema.rollup_due))
        self._upsert_bad = upsert(dialect, schema.quarantine, _names(schema.quarantine))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that no other writer of this cluster is in."""
        with self.engine.begin() as db:
            if db.dialect.name == "postgresql":
                lock = sa.func.hashtextextended(f"batchjob:{self.cluster}", 0)
                db.execute(sa.select(sa.func.pg_advisory_xact_lock(lock)))
            yield db

    def watermark(self, source: str) -> str:
        """Where the source's last batch ended, "" before the first."""
        state = schema.poll_state
        with self.engine.connect() as db:
            found = db.execute(
                sa.select(state.c.watermark).where(
                    state.c.cluster == self.cluster, state.c.source == source
                )
            ).scalar()
        return found or ""

    def first_time(self) -> int | None:
        """When the cluster was first read; None: never."""
        known = schema.cluster
        with self.engine.connect() as db:
            return db.execute(
                sa.select(known.c.first_time).where(known.c.name == self.cluster)
            ).scalar()

    def forget_watermark(self, source: str) -> None:
        """What the source was read for is done."""
        state = schema.poll_state
        with self.transaction() as db:
            db.execute(
                sa.delete(state).where(state.c.cluster == self.cluster, state.c.source == source)
            )

    def differing(self, records: Sequence[JobRecord]) -> set[JobKey]:
        """Keys of the records that are not on record, or not in the same words."""
        with self.engine.connect() as db:
            there = self._rows(db, records)
        return {
            record.key
            for record in records
            if (old := there.get(record.key)) is None
            or record_rows.merged(old[1:], record, self._policy, 0) is not None
        }

    def unfinished(self) -> dict[str, Unfinished]:
        """Jobs on record that wait, run or are suspended, by job id; of several runs the last."""
        job = schema.job
        query = (
            sa.select(job.c.jobid, job.c.submit_time, job.c.run, job.c.start_time)
            .where(job.c.cluster == self.cluster, job.c.end_time.is_(None), job.c.state.in_(LIVE))
            .order_by(job.c.submit_time, job.c.run)
        )
        with self.engine.connect() as db:
            return {row.jobid: Unfinished(*row[1:]) for row in db.execute(query).all()}

    def write(
        self,
        batch: Batch,
        source: str,
        seconds: float = 0.0,
        ended: list[JobRecord] | None = None,
    ) -> Written:
        """Write a batch and its watermark, or nothing of it.

        `ended` is given the jobs whose end was not on record before.
        """
        now = int(self.clock())
        ends: list[JobRecord] = []
        days: set[int] = set()
        written = Written()
        with self.transaction() as db:
            self._know_cluster(db, now)
            for begin in range(0, len(batch.jobs), _CHUNK):
                part = self._write_jobs(db, batch.jobs[begin : begin + _CHUNK], now, days, ends)
                written = Written._make(map(sum, zip(written, part, strict=True)))
            self._set_aside(db, batch.quarantined, now)
            self._mark_vanished(db, batch.vanished, now, days)
            self._mark_runaway(db, batch.runaway, now)
            self._delete(db, batch.deleted, now, days)
            self._execute(db, self._upsert_due, [(self.cluster, day) for day in sorted(days)])
            self._succeeded(db, source, batch.watermark, len(batch.jobs), seconds, now)
        if ended is not None:
            ended += ends
        return written._replace(quarantined=written.quarantined + len(batch.quarantined))

    def write_people(self, people: Associations, source: str, seconds: float = 0.0) -> None:
        """Write who belongs where, in place of the last picture."""
        now = int(self.clock())
        with self.transaction() as db:
            self._know_cluster(db, now)
            write_people(db, self.cluster, people, now)
            self._set_aside(db, people.quarantined, now)
            self._succeeded(db, source, "", len(people.associations), seconds, now)

    def failed(self, source: str, error: str) -> None:
        """Keep the last error of a source, beside the watermark it had."""
        table = schema.poll_state
        columns = ["cluster", "source", "error_time", "error"]
        with self.transaction() as db:
            statement = upsert(db.dialect.name, table, columns)
            self._execute(db, statement, [(self.cluster, source, int(self.clock()), error)])

    def _know_cluster(self, db: Connection, now: int) -> None:
        known = sa.select(schema.cluster.c.name).where(schema.cluster.c.name == self.cluster)
        if db.execute(known).first() is None:
            db.execute(sa.insert(schema.cluster).values(name=self.cluster, first_time=now))

    def _write_jobs(
        self,
        db: Connection,
        records: Sequence[JobRecord],
        now: int,
        days: set[int],
        ends: list[JobRecord],
    ) -> Written:
        there = self._rows(db, records)
        records, forged = _of_their_owners(records, there)
        self._set_aside(db, forged, now)
        ids = {key: row[0] for key, row in there.items()}
        new: list[JobRecord] = []
        changed: list[JobRecord] = []
        live: list[JobRecord] = []  # unchanged, but a running job's steps may be new
        rows: list[Row] = []
        for record in records:
            key = record.key
            old = there.get(key)
            if record.end_time is not None and (old is None or old[_END] is None):
                ends.append(record)
            if old is None:
                new.append(record)
                continue
            row = record_rows.merged(old[1:], record, self._policy, now)
            if row is not None:
                changed.append(record)
                rows.append((old[0], *row))
                days.update(record_rows.days(row, now))
                days.update(record_rows.days(old[1:], now))
            elif record.end_time is None and record.steps:
                live.append(record)
        for job_id, record in zip(_new_ids(db, len(new)), new, strict=True):
            ids[record.key] = job_id
            row = record_rows.new(record, self._policy, now)
            rows.append((job_id, *row))
            days.update(record_rows.days(row, now))
        refused = self._insert(db, self._upsert_job, rows, now)
        ids = {key: job_id for key, job_id in ids.items() if job_id not in refused}
        self._forget_nodes(
            db, [ids[record.key] for record in changed if record.nodes and record.key in ids]
        )
        self._write_parts(db, (*new, *changed), live, ids, now)
        aside = len(refused) + len(forged)
        return Written(len(new), len(changed), len(records) - len(rows), aside)

    def _rows(self, db: Connection, records: Sequence[JobRecord]) -> dict[JobKey, Row]:
        """The rows of the records' job ids, `id` first."""
        job = schema.job
        found: dict[JobKey, Row] = {}
        for part in parts([record.jobid for record in records]):
            query = sa.select(job).where(job.c.cluster == self.cluster, job.c.jobid.in_(part))
            for row in db.execute(query).all():
                found[record_rows.key(row[1:])] = row
        return found

    def _insert(self, db: Connection, statement: str, rows: Rows, now: int) -> set[int]:
        """Write rows; the ids of those that no database takes, which are set aside."""
        try:
            with db.begin_nested():
                self._execute(db, statement, rows)
            return set()
        except _REFUSED:
            return {row[0] for row in rows if not self._insert_one(db, statement, row, now)}

    def _insert_one(self, db: Connection, statement: str, row: Row, now: int) -> bool:
        try:
            with db.begin_nested():
                self._execute(db, statement, [tuple(map(_storable, row))])
            return True
        except _REFUSED as error:
            bad = Quarantined("store", str(getattr(error, "orig", error)), repr(row)[:RAW_LIMIT])
            self._set_aside(db, [bad], now)
            return False

    def _write_parts(
        self,
        db: Connection,
        written: Sequence[JobRecord],
        live: Sequence[JobRecord],
        ids: dict[JobKey, int],
        now: int,
    ) -> None:
        """Nodes and steps, of which a record has all there are or none."""
        placed = _with_ids(written, ids)
        running = _with_ids(live, ids)
        nodes = [
            (job_id, *share, record.cluster, record.start_time)
            for job_id, record in placed
            for share in record.nodes
        ]
        steps = [
            (job_id, step.step, step.state.value, *step[2:])
            for job_id, record in (*placed, *running)
            for step in record.steps
        ]
        if known := _steps_there(db, {job_id for job_id, _ in running}):
            steps = [row for row in steps if row not in known]
        self._insert(db, self._upsert_node, nodes, now)
        self._insert(db, self._upsert_step, steps, now)

    @staticmethod
    def _forget_nodes(db: Connection, job_ids: Sequence[int]) -> None:
        table = schema.job_node
        for part in parts(job_ids):
            db.execute(sa.delete(table).where(table.c.job_id.in_(part)))

    def _mark_vanished(
        self, db: Connection, jobids: Sequence[str], now: int, days: set[int]
    ) -> None:
        """The scheduler does not know them any more; when they ended nobody will say."""
        job = schema.job
        for part in parts(jobids):
            gone = (
                (job.c.cluster == self.cluster)
                & job.c.jobid.in_(part)
                & job.c.end_time.is_(None)
                & job.c.state.in_(LIVE)
            )
            for start in db.execute(sa.select(job.c.start_time).where(gone)).scalars():
                days.update(days_of(start, now))
            state = {"state": JobState.VANISHED.value, "update_time": now, "usage_due_time": None}
            db.execute(sa.update(job).where(gone).values(state))

    def _mark_runaway(self, db: Connection, jobids: Sequence[str], now: int) -> None:
        job = schema.job
        for part in parts(jobids):
            db.execute(
                sa.update(job)
                .where(
                    job.c.cluster == self.cluster,
                    job.c.jobid.in_(part),
                    job.c.end_time.is_(None),
                    job.c.doubt == "",
                )
                .values(doubt="runaway", update_time=now)
            )

    def _delete(self, db: Connection, deleted: Sequence[Deleted], now: int, days: set[int]) -> None:
        """Take out records; the days they ran are recomputed without them."""
        job = schema.job
        for each in deleted:
            which = (
                (job.c.cluster == self.cluster)
                & (job.c.jobid == each.jobid)
                & (job.c.source == each.source)
            )
            if each.uid is not None:
                which &= job.c.uid == each.uid
            for row in db.execute(sa.select(job.c.start_time, job.c.end_time).where(which)):
                days.update(days_of(row.start_time, row.end_time or now))
            db.execute(sa.delete(job).where(which))

    def _set_aside(self, db: Connection, bad: Sequence[Quarantined], now: int) -> None:
        rows = [
            (self.cluster, each.source, _digest(each), now, *map(_storable, each[1:]))
            for each in bad
        ]
        self._execute(db, self._upsert_bad, rows)

    def _succeeded(
        self, db: Connection, source: str, watermark: str, rows: int, seconds: float, now: int
    ) -> None:
        columns = ["cluster", "source", "watermark", "success_time", "rows", "seconds"]
        statement = upsert(db.dialect.name, schema.poll_state, columns)
        self._execute(db, statement, [(self.cluster, source, watermark, now, rows, seconds)])

    @staticmethod
    def _execute(db: Connection, statement: str, rows: Rows) -> None:
        if rows:
            db.exec_driver_sql(statement, list(rows))


def _with_ids(
    records: Iterable[JobRecord], ids: Mapping[JobKey, int]
) -> list[tuple[int, JobRecord]]:
    """The records that are on record, with their ids there."""
    found = ((ids.get(record.key), record) for record in records)
    return [(job_id, record) for job_id, record in found if job_id is not None]


def _of_their_owners(
    records: Sequence[JobRecord], there: Mapping[JobKey, Row]
) -> tuple[list[JobRecord], list[Quarantined]]:
    """The records, without those of a run under whose id another user's is on record.

    Whoever may write to a shared directory of runs can take the id of a run whose file has gone.
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


# What both drivers raise for a value no column holds: a NUL or a lone surrogate in text, an
# integer of more than 64 bits. A full disk or a lock is something else, and goes up.
_REFUSED = (sa.exc.DataError, OverflowError, UnicodeEncodeError)


def _storable(value: Any) -> Any:
    """A text that both databases take: no NUL, no lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return value


def _steps_there(db: Connection, job_ids: Collection[int]) -> set[Row]:
    """The rows of jobs' steps."""
    step = schema.job_step
    return {
        tuple(row)
        for part in parts(list(job_ids))
        for row in db.execute(sa.select(step).where(step.c.job_id.in_(part)))
    }


def _new_ids(db: Connection, count: int) -> Sequence[int]:
    """Ids for new jobs: asking for them beforehand is cheaper than reading them back."""
    if db.dialect.name == "sqlite":  # where the transaction is the only writer
        last = db.execute(sa.select(sa.func.max(schema.job.c.id))).scalar() or 0
        return range(last + 1, last + 1 + count)
    numbers = sa.text("SELECT nextval('job_id_seq') FROM generate_series(1, :count)")
    return db.execute(numbers, {"count": count}).scalars().all()


def _names(table: sa.Table) -> list[str]:
    return [column.name for column in table.columns]


def _digest(bad: Quarantined) -> str:
    text = f"{bad.reason}\0{bad.raw}".encode("utf-8", "replace")
    return hashlib.sha256(text).hexdigest()[:32]

"""What people are told of: what a poll brought, what running jobs do, and the week."""

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob import judgements
from batchjob.runtime.formatting import format_duration
from batchjob_stats_db.database import outbox, schema, subscriptions
from batchjob_stats_db.database.access import coordinates
from batchjob_stats_db.database.job_writer import JobWriter
from batchjob_stats_db.database.outbox import Told
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.subscriptions import MessageEvent, Offer
from batchjob_stats_db.days import DAY
from batchjob_stats_db.poller.messages.options import MessageOptions

_FRESH_SECONDS = 600
_DIGEST_HOUR = 7  # on Mondays
_DIGEST_LATE_SECONDS = DAY  # after that, a week is not told of any more

_GpuCounters = tuple[float, float, float]
"""A time, and the busy and observed seconds of a job's GPUs up to it."""


class Causes:
    """Writes one cluster's messages into the outbox; for the thread of its poller."""

    def __init__(self, store: Store, options: MessageOptions) -> None:
        self._store = store
        self._options = options
        self._offer = options.offer()
        self._is_offered = False
        if self._offer:
            store.tell = self._tell_of_batch
        self._idle_since: dict[int, _GpuCounters] = {}
        self._told_week: date | None = None

    def _tell_of_batch(self, db: Connection, jobs: JobWriter) -> None:
        """Tell of jobs that began or ended, in the transaction that writes them."""
        if not jobs.begun_or_ended or self._offer is None:
            return
        now = int(self._store.clock())
        since = int(subscriptions.read_site(db).get("since", now))
        oldest = int(self._options.oldest)
        told = outbox.told_of_records(jobs.begun_or_ended, since, oldest, now)
        outbox.write(db, self._offer, self._store.cluster, told, now)

    def look(self) -> None:
        """Tell of idle GPUs, full memory and the week; delete what was done long ago.

        At first, tell the server which messages people may choose.
        """
        now = int(self._store.clock())
        if not self._is_offered:
            with self._store.transaction() as db:
                subscriptions.write_offer(db, self._store.cluster, self._offer, now)
            self._is_offered = True
        if self._offer is None:
            return
        monday = self._monday(now)
        with self._store.transaction() as db:
            told = self._of_running_jobs(db, self._offer, now)
            if monday is not None and monday != self._told_week:
                told += self._of_the_week(db, monday, now)
            outbox.write(db, self._offer, self._store.cluster, told, now)
            outbox.delete_old(db, self._store.cluster, now)
        self._told_week = monday

    def _monday(self, now: int) -> date | None:
        """The Monday whose digests are due; None: at other times."""
        here = datetime.fromtimestamp(now, ZoneInfo(self._options.zone))
        monday = here.date() - timedelta(days=here.weekday())
        begin = datetime(monday.year, monday.month, monday.day, _DIGEST_HOUR, tzinfo=here.tzinfo)
        return monday if 0 <= now - begin.timestamp() < _DIGEST_LATE_SECONDS else None

    def _of_running_jobs(self, db: Connection, offer: Offer, now: int) -> list[Told]:
        wanted = subscriptions.wanted_events(db, offer)
        if not wanted & {MessageEvent.IDLE, MessageEvent.MEMORY}:
            self._idle_since.clear()
            return []
        rows = _running_jobs(db, self._store.cluster, now)
        ids = {row.id for row in rows}
        self._idle_since = {key: seen for key, seen in self._idle_since.items() if key in ids}
        told = []
        for row in rows:
            if seconds := self._idle_seconds(row):
                text = f"GPUs idle for {format_duration(seconds)}"
                told.append(_told_of_row(row, MessageEvent.IDLE, seconds, text, now))
            peak, held = row.memory_peak_bytes, row.allocated_memory_bytes
            if peak is not None and held and (percent := int(100 * peak / held)):
                text = f"memory at {percent} % at its peak, page cache included"
                told.append(_told_of_row(row, MessageEvent.MEMORY, percent, text, now))
        return told

    def _idle_seconds(self, row: Any) -> int:
        """For how long the GPUs of a job were seen to do next to nothing; 0: unknown, or they work.

        A job that was busy once is idle from then on, and the mean of its whole life does not tell.
        """
        if row.gpu_busy_seconds is None or row.gpu_observed_seconds is None or not row.gpus:
            return 0
        now = (row.until_time, row.gpu_busy_seconds, row.gpu_observed_seconds)
        start = self._idle_since.get(row.id, (row.start_time, 0.0, 0.0))
        seconds, busy, observed = (after - before for before, after in zip(start, now, strict=True))
        if not 0 <= busy <= judgements.thresholds().idle_gpu * observed:
            start, observed = now, 0.0
        self._idle_since[row.id] = start
        expected = (seconds - judgements.GPU_COUNTERS_FOLLOW_SECONDS) * row.gpus
        is_seen = observed >= judgements.COMPLETE_COVERAGE * expected  # a gap is no idleness
        return int(observed / row.gpus) if is_seen else 0

    def _of_the_week(self, db: Connection, monday: date, now: int) -> list[Told]:
        """Digests of the week before a Monday; those that were told already have the same cause."""
        cluster = self._store.cluster
        until = int(datetime(monday.year, monday.month, monday.day, tzinfo=UTC).timestamp())
        users, accounts = _active(db, cluster, until)
        asked = subscriptions.account_digests(db, cluster)
        people = [
            *((user, "") for user in users),
            *(
                (user, account)
                for user, account in asked
                if account in accounts and coordinates(db, user, cluster, account)
            ),
        ]
        return [
            Told(
                MessageEvent.DIGEST, user, None, "", f"digest:{cluster}:{account}:{monday}",
                now, str(until), account,
            )
            for user, account in people
        ]  # fmt: skip


def _told_of_row(row: Any, event: MessageEvent, threshold: int, text: str, now: int) -> Told:
    cause = f"{event}:{row.id}"
    return Told(event, row.username, row.id, row.jobid, cause, now, text, threshold=threshold)


def _running_jobs(db: Connection, cluster: str, now: int) -> list[Any]:
    """Running jobs that were measured a short time ago, with what was measured."""
    job, usage = schema.job.c, schema.job_usage.c
    query = (
        sa.select(
            job.id, job.jobid, job.username, job.start_time, job.allocated_memory_bytes,
            usage.until_time, usage.gpus, usage.gpu_busy_seconds, usage.gpu_observed_seconds,
            usage.memory_peak_bytes,
        )
        .select_from(schema.job.join(schema.job_usage))
        .where(
            job.cluster == cluster, job.end_time.is_(None), job.tool == "", schema.HAS_STARTED,
            job.state.in_(judgements.RUNNING_STATES), usage.until_time > now - _FRESH_SECONDS,
        )
    )  # fmt: skip
    return list(db.execute(query).all())


def _active(db: Connection, cluster: str, until: int) -> tuple[set[str], set[str]]:
    """Users and accounts with jobs in the week before a day."""
    daily = schema.daily_usage.c
    which = (daily.cluster == cluster) & (daily.day >= until - 7 * DAY) & (daily.day < until)
    rows = db.execute(sa.select(daily.username, daily.account).where(which).distinct()).all()
    return {row.username for row in rows}, {row.account for row in rows}

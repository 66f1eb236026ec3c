"""Writes the summary of jobs that have ended into their records in the scheduler's accounting.

A job is looked at once its final figures are stored, and a comment that is there already, whoever
wrote it, is left alone. So the position may be forgotten: after a restart, a day is looked at
again.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa
from prometheus_client import Counter
from sqlalchemy.engine import RowMapping

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import CommentSource
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.queries.efficiency import USAGE_FINAL
from batchjob_stats_db.queries.job_list import rows_by_ids
from batchjob_stats_db.queries.jobstats_summary import NoSummaryError, jobstats_summary

_LOOKBACK_SECONDS = 86_400
_JOBS_AT_ONCE = 50  # in one query of their comments
_JOBS_PER_PASS = 200  # each takes a call of a command
_MAX_CHARACTERS = 60_000  # slurmdbd's column takes 65,535 bytes
_MAX_TRIES = 3  # of one job; then it is left out, so that the others are written


class JobCommentWriter:
    """Writes the comments of one source's jobs, in the order in which they were measured."""

    def __init__(self, store: Store, name: str, source: CommentSource, count: Counter) -> None:
        self._store, self._name, self._source = store, name, source
        self._count = count  # by cluster and outcome
        self._done: tuple[int, int] | None = None  # measured time and id of the last job
        self._tries = 0  # of the job after that

    def run(self, now: int, stop: threading.Event, on_progress: Callable[[], None]) -> None:
        """Write some. Raises SchedulerError: the jobs from there on are tried again."""
        for batch in self._batches(now):
            comments = self._source.comments([row["jobid"] for row in batch])
            for row in batch:
                if stop.is_set():
                    return
                known = comments.get(row["jobid"])
                # An id that was used again has the record of its latest run.
                if known is None or known.end_time != int(row["end_time"]):
                    outcome = "no record"
                elif known.text:
                    outcome = "left alone"
                else:
                    outcome = self._write(row)
                self._count.labels(self._store.cluster, outcome).inc()
                self._done, self._tries = (row["usage_measured_time"], row["id"]), 0
                on_progress()

    def _write(self, row: RowMapping) -> str:
        try:
            with self._store.engine.connect() as db:
                text = jobstats_summary(db, EVERYTHING, row)
        except NoSummaryError:
            return "incomplete"
        if len(text) > _MAX_CHARACTERS:
            return "too long"
        try:
            self._source.write_comment(row["jobid"], text)
        except SchedulerError:
            self._tries += 1
            if self._tries < _MAX_TRIES:
                raise
            return "failed"
        return "written"

    def _batches(self, now: int) -> Iterator[Sequence[RowMapping]]:
        job, usage = schema.job.c, schema.job_usage.c
        measured, number = self._done or (now - _LOOKBACK_SECONDS, 0)
        query = (
            sa.select(job.id)
            .join_from(schema.job, schema.job_usage)
            .where(
                job.cluster == self._store.cluster,
                job.source == self._name,
                job.end_time >= measured - _LOOKBACK_SECONDS,
                (usage.measured_time > measured)
                | (usage.measured_time == measured) & (job.id > number),
                USAGE_FINAL == 1,
            )
            .order_by(usage.measured_time, job.id)
            .limit(_JOBS_PER_PASS)
        )
        with self._store.engine.connect() as db:
            ids = db.scalars(query).all()
            rows = {row["id"]: row for row in rows_by_ids(db, ids)}
        found = [rows[each] for each in ids if each in rows]
        for begin in range(0, len(found), _JOBS_AT_ONCE):
            yield found[begin : begin + _JOBS_AT_ONCE]

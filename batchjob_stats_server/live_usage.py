"""The current usage of running jobs in the rows of lists; no page waits long for it.

Values that do not arrive in time are shown as stored, with their `usage_until_time`, and are ready
the next time. Sorting and filtering use the stored values.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.live import LiveJob, is_queryable, query_live_usage
from batchjob_stats_db.queries.efficiency import replace_usages
from batchjob_stats_db.timeseries.base import TimeSeriesError
from batchjob_stats_server.bounded_wait import BoundedWait
from batchjob_stats_server.promql.histories import TimeSeriesPool

log = logging.getLogger(__name__)

_FRESH_SECONDS = 15.0
_MAX_CACHED_JOBS = 20_000
_MAX_JOBS_PER_QUERY = 2000  # others are shown as recorded

Row = Mapping[Any, Any]


class _CachedJob(NamedTuple):
    job: LiveJob
    end: int | None  # the end of the job as it was known to the query
    time: float  # when the answer arrived

    def is_fresh(self, now: float) -> bool:
        return now - self.time < _FRESH_SECONDS


class LiveUsage:
    """Queries in a thread of its own, and caches the last answers for some seconds.

    During a query, the jobs of further requests are collected for the next one.
    """

    def __init__(
        self,
        reader: Engine,
        histories: TimeSeriesPool,
        policy: UsagePolicy,
        interval: float,
        bounded_wait: BoundedWait,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._histories = histories
        self._policy = policy
        self._interval = interval
        self._bounded_wait = bounded_wait
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._cache: dict[int, _CachedJob] = {}
        self._next_rows: dict[int, Row] = {}
        self._next_query: Future[None] | None = None  # the query for the collected jobs
        self._pending: dict[int, Future[None]] = {}  # job id → the query that includes it
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="live-usage")

    def stop(self) -> None:
        """Stop querying."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def rows(self, rows: Sequence[Row], now: float) -> list[Row]:
        """Rows of jobs with all their columns; those of running jobs are current."""
        queryable = [row for row in rows if is_queryable(row, self._policy, int(now))]
        self._bounded_wait.wait(self._query_stale(queryable, now))
        with self._lock:
            usages = {
                row["id"]: cached.job.usage
                for row in queryable
                if (cached := self._cached_job(row, now))
                and cached.job.usage["until_time"] > (row["usage_until_time"] or 0)
            }
        changed = replace_usages([row for row in queryable if row["id"] in usages], usages)
        by_id = {row["id"]: row for row in changed}
        return [by_id.get(row["id"], row) for row in rows]

    def gpus(self, rows: Sequence[Row]) -> dict[int, Sequence[float | None]]:
        """Mean utilisation of each GPU, by the numbers of jobs with current rows."""
        with self._lock:
            cached = [(row, self._cache[row["id"]].job) for row in rows if row["id"] in self._cache]
        return {
            row["id"]: job.gpus
            for row, job in cached
            if job.gpus and job.usage["until_time"] == row["usage_until_time"]
        }

    def _cached_job(self, row: Row, now: float) -> _CachedJob | None:
        """What is cached of a job; nothing if its end was not known at the query.

        Measured as running, it would appear to have used its CPUs after its end.
        """
        cached = self._cache.get(row["id"])
        return cached if cached and cached.is_fresh(now) and cached.end == row["end_time"] else None

    def _query_stale(self, rows: Sequence[Row], now: float) -> set[Future[None]]:
        """Start queries of the jobs whose current usage is not cached; returns these queries."""
        with self._lock:
            stale = [row for row in rows if not self._cached_job(row, now)]
            for row in stale:
                if row["id"] not in self._pending and len(self._next_rows) < _MAX_JOBS_PER_QUERY:
                    self._next_query = self._next_query or self._submit_query(now)
                    self._pending[row["id"]] = self._next_query
                    self._next_rows[row["id"]] = row
            return {self._pending[row["id"]] for row in stale if row["id"] in self._pending}

    def _submit_query(self, now: float) -> Future[None]:
        start = self._stopwatch()
        return self._thread.submit(self._run_query, lambda: now + (self._stopwatch() - start))

    def _run_query(self, clock: Callable[[], float]) -> None:
        with self._lock:
            rows, self._next_rows, self._next_query = [*self._next_rows.values()], {}, None
        live_jobs: Mapping[int, LiveJob] = {}
        try:
            with self._reader.connect() as db, self._histories.acquire() as history:
                live_jobs = query_live_usage(
                    db, history, rows, self._policy, self._interval, int(clock())
                )
        except (TimeSeriesError, SQLAlchemyError) as error:
            log.info("running jobs are shown with their last recorded measurements: %s", error)
        finally:
            with self._lock:
                now = clock()
                for row in rows:
                    del self._pending[row["id"]]
                self._cache |= {
                    row["id"]: _CachedJob(live_jobs[row["id"]], row["end_time"], now)
                    for row in rows
                    if row["id"] in live_jobs
                }
                if len(self._cache) > _MAX_CACHED_JOBS:
                    self._cache = {n: k for n, k in self._cache.items() if k.is_fresh(now)}

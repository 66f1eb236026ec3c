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
from batchjob_stats_db.measure.live import LiveJob, askable, live
from batchjob_stats_db.queries.efficiency import with_usages
from batchjob_stats_db.timeseries.base import TimeSeriesError
from batchjob_stats_server.bounded_wait import BoundedWait
from batchjob_stats_server.promql.histories import TimeSeriesPool

log = logging.getLogger(__name__)

_FRESH_SECONDS = 15.0
_KEPT = 20_000
_COLLECTED = 2000  # maximum jobs in the next query; others are shown as recorded

Row = Mapping[Any, Any]


class _Kept(NamedTuple):
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
        bounded: BoundedWait,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._histories = histories
        self._policy = policy
        self._interval = interval
        self._bounded = bounded
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept] = {}
        self._collected: dict[int, Row] = {}
        self._next: Future[None] | None = None  # the query for the collected jobs
        self._asked: dict[int, Future[None]] = {}  # job id → the query that includes it
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="live-usage")

    def stop(self) -> None:
        """Stop querying."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def rows(self, rows: Sequence[Row], now: float) -> list[Row]:
        """Rows of jobs with all their columns; those of running jobs are current."""
        wanted = [row for row in rows if askable(row, self._policy, int(now))]
        self._bounded.wait(self._answers(wanted, now))
        with self._lock:
            usages = {
                row["id"]: kept.job.usage
                for row in wanted
                if (kept := self._known(row, now))
                and kept.job.usage["until_time"] > (row["usage_until_time"] or 0)
            }
        changed = with_usages([row for row in wanted if row["id"] in usages], usages)
        by_id = {row["id"]: row for row in changed}
        return [by_id.get(row["id"], row) for row in rows]

    def gpus(self, rows: Sequence[Row]) -> dict[int, Sequence[float | None]]:
        """Mean utilisation of each GPU, by the numbers of jobs with current rows."""
        with self._lock:
            kept = [(row, self._kept[row["id"]].job) for row in rows if row["id"] in self._kept]
        return {
            row["id"]: job.gpus
            for row, job in kept
            if job.gpus and job.usage["until_time"] == row["usage_until_time"]
        }

    def _known(self, row: Row, now: float) -> _Kept | None:
        """What is kept of a job; nothing if its end was not known at the query.

        Measured as running, it would be taken to have held its CPUs after its end.
        """
        kept = self._kept.get(row["id"])
        return kept if kept and kept.is_fresh(now) and kept.end == row["end_time"] else None

    def _answers(self, rows: Sequence[Row], now: float) -> set[Future[None]]:
        """The queries with those of the jobs whose current usage is not known."""
        with self._lock:
            stale = [row for row in rows if not self._known(row, now)]
            for row in stale:
                if row["id"] not in self._asked and len(self._collected) < _COLLECTED:
                    self._next = self._next or self._submitted(now)
                    self._asked[row["id"]] = self._next
                    self._collected[row["id"]] = row
            return {self._asked[row["id"]] for row in stale if row["id"] in self._asked}

    def _submitted(self, now: float) -> Future[None]:
        begun = self._stopwatch()
        return self._thread.submit(self._ask, lambda: now + (self._stopwatch() - begun))

    def _ask(self, clock: Callable[[], float]) -> None:
        with self._lock:
            rows, self._collected, self._next = [*self._collected.values()], {}, None
        found: Mapping[int, LiveJob] = {}
        try:
            with self._reader.connect() as db, self._histories.lent() as history:
                found = live(db, history, rows, self._policy, self._interval, int(clock()))
        except (TimeSeriesError, SQLAlchemyError) as error:
            log.info("running jobs are shown with their last recorded measurements: %s", error)
        finally:
            with self._lock:
                now = clock()
                for row in rows:
                    del self._asked[row["id"]]
                self._kept |= {
                    row["id"]: _Kept(found[row["id"]], row["end_time"], now)
                    for row in rows
                    if row["id"] in found
                }
                if len(self._kept) > _KEPT:
                    self._kept = {n: k for n, k in self._kept.items() if k.is_fresh(now)}

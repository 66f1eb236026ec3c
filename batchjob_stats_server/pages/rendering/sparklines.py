"""A job's CPU use over its time, small enough for a row of a list.

No page waits for measurements: what does not come in time is left out, and is there the next time.
"""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.queries.spans import span_of
from batchjob_stats_db.timeseries.base import TimeSeries, TimeSeriesError
from batchjob_stats_server.course import lines
from batchjob_stats_server.curves import CURVES
from batchjob_stats_server.pages.rendering import charts, template_filters
from batchjob_stats_server.services import Services

log = logging.getLogger(__name__)

WIDTH, HEIGHT = 100.0, 20.0
_STRETCHES = 40
_MOST = 60  # rows of a page
_PATIENCE_SECONDS = 1.0
_FRESH_SECONDS = 60  # how long the line of a job that runs is good
_KEPT = 5000
_THREADS = 2


class Sparkline(NamedTuple):
    """A line, and what it says in words; without a path the words say why."""

    path: str
    words: str


class _CachedSparkline(NamedTuple):
    spark: Sparkline
    until: float  # epoch seconds


class Sparklines:
    """Asks in threads of its own, and keeps the last answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _CachedSparkline] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sparks")

    def stop(self) -> None:
        """Ask no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def of(
        self, services: Services, db: Connection, access: Access, rows: Sequence[RowMapping]
    ) -> Mapping[int, Sparkline] | None:
        """The lines of these jobs by the numbers of their rows; None: nothing is measured here."""
        if services.histories is None:
            return None
        now = services.clock()
        found: dict[int, Sparkline] = {}
        asked: dict[int, Future[Sparkline]] = {}
        for row in [row for row in rows if row["start_time"] is not None][:_MOST]:
            kept = self._known(row["id"], now)
            if kept:
                found[row["id"]] = kept
                continue
            job = span_of(db, access, row["id"], services.settings.tsdb.policy(), int(now))
            if job:
                asked[row["id"]] = self._threads.submit(self._ask, services, job, now)
        wait(asked.values(), _PATIENCE_SECONDS)
        for number, future in asked.items():
            if not future.cancel() and future.done() and not future.exception():
                found[number] = future.result()
        return found

    def _known(self, number: int, now: float) -> Sparkline | None:
        with self._lock:
            kept = self._kept.get(number)
        return kept.spark if kept and now < kept.until else None

    def _ask(self, services: Services, job: JobToMeasure, now: float) -> Sparkline:
        assert services.histories is not None
        try:
            with services.histories.lent() as history:
                found = list(lines(history, job, [CURVES["cpu"]], _STRETCHES))
        except TimeSeriesError as error:
            log.info("no line for job %s: %s", job.jobid, error)
            raise
        spark = drawn([line.course for line in found], job.cpus)
        settled = job.end is not None and now > job.end + 6 * 3600
        with self._lock:
            self._kept[job.id] = _CachedSparkline(
                spark, float("inf") if settled else now + _FRESH_SECONDS
            )
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return spark


def drawn(courses: Iterable[TimeSeries], cpus: int | None) -> Sparkline:
    """The sum over nodes, against the CPUs that the job had, or else against whole CPUs."""
    sums: dict[float, float] = {}
    for course in courses:
        for point in course.points:
            sums[point.time] = sums.get(point.time, 0.0) + point.mean
    if not sums:
        return Sparkline("", "not measured")
    points = sorted(sums.items())
    values = [value for _, value in points]
    # As many whole CPUs as it used at most: a job that sleeps is a line at the bottom.
    top = cpus or max(1, math.ceil(max(values)))
    mean = sum(values) / len(values)
    if len(points) == 1:  # a line needs two ends
        points = [points[0], (points[0][0] + 1, points[0][1])]
    least, mean_words, most = (
        template_filters.share(value / top) if cpus else f"{template_filters.number(value)} CPUs"
        for value in (min(values), mean, max(values))
    )
    words = f"CPU use between {least} and {most}, mean {mean_words}"
    if not any(values):
        words = "no CPU was used"
    return Sparkline(charts.line(points, WIDTH, HEIGHT, top), words)

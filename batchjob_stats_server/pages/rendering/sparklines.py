"""A job's usage over time, small enough for a row of a list.

No page waits for measurements: what is not ready in time is left out, and is ready the next time.
"""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy.engine import Connection, RowMapping

from batchjob.quantities.curves import CURVES
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.queries.spans import spans_of
from batchjob_stats_db.timeseries.base import TimeSeries, TimeSeriesError
from batchjob_stats_server.course import lines
from batchjob_stats_server.pages.rendering import charts, template_filters
from batchjob_stats_server.services import Services

log = logging.getLogger(__name__)

WIDTH, HEIGHT = 100.0, 20.0
_STRETCHES = 40
_MOST = 60  # maximum rows of a page
_FRESH_SECONDS = 60  # how long a running job's line is cached
_KEPT = 5000
_THREADS = 2


class Sparkline(NamedTuple):
    """A line and its description; without a path, the description says why."""

    path: str
    words: str


class Line(StrEnum):
    """What may be drawn: names of curves."""

    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu_utilization"


LineKey = tuple[int, Line]  # id of the job's row, and what is drawn


class _CachedSparkline(NamedTuple):
    spark: Sparkline
    until: float  # epoch seconds


class Sparklines:
    """Queries in threads of its own, and caches the last answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[LineKey, _CachedSparkline] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sparks")

    def stop(self) -> None:
        """Stop querying."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def of(
        self, services: Services, db: Connection, access: Access, rows: Sequence[RowMapping],
        wanted: Sequence[Line] = (Line.CPU,),
    ) -> Mapping[LineKey, Sparkline] | None:  # fmt: skip
        """The wanted lines of these jobs; None: there is no time series database."""
        if services.histories is None:
            return None
        now = services.clock()
        drawn = [row for row in rows if row["start_time"] is not None][:_MOST]
        keys = {
            (row["id"], line): row
            for row in drawn
            for line in wanted
            if line is not Line.GPU or _gpus(row)
        }
        found = {key: kept for key in keys if (kept := self._known(key, now))}
        missing = {key: row for key, row in keys.items() if key not in found}
        ids = sorted({number for number, _ in missing})
        jobs = spans_of(db, access, ids, services.settings.tsdb.policy(), int(now)) if ids else {}
        asked = {
            key: self._threads.submit(self._ask, services, jobs[key[0]], key[1], row, now)
            for key, row in missing.items()
            if key[0] in jobs
        }
        services.bounded.wait(asked.values())
        for key, future in asked.items():
            if not future.cancel() and future.done() and not future.exception():
                found[key] = future.result()
        return found

    def _known(self, key: LineKey, now: float) -> Sparkline | None:
        with self._lock:
            kept = self._kept.get(key)
        return kept.spark if kept and now < kept.until else None

    def _ask(
        self, services: Services, job: JobToMeasure, line: Line, row: RowMapping, now: float
    ) -> Sparkline:
        assert services.histories is not None
        try:
            with services.histories.lent() as history:
                courses = list(lines(history, job, [CURVES[line]], _STRETCHES))
        except TimeSeriesError as error:
            log.info("no line for job %s: %s", job.jobid, error)
            raise
        spark = _DRAWN[line]([each.course for each in courses], row)
        settled = job.end is not None and now > job.end + 6 * 3600
        with self._lock:
            self._kept[job.id, line] = _CachedSparkline(
                spark, float("inf") if settled else now + _FRESH_SECONDS
            )
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return spark


def _gpus(row: RowMapping) -> int:
    return row["allocated_gpus"] or row["usage_gpus"] or 0


def _by_time(courses: Iterable[TimeSeries]) -> list[tuple[float, list[float]]]:
    """The values of all nodes and GPUs at each time."""
    seen: dict[float, list[float]] = {}
    for course in courses:
        for point in course.points:
            seen.setdefault(point.time, []).append(point.mean)
    return sorted(seen.items())


def _path(points: list[tuple[float, float]], top: float) -> str:
    if len(points) == 1:  # a line needs two points
        points = [points[0], (points[0][0] + 1, points[0][1])]
    return charts.line(points, WIDTH, HEIGHT, top)


def drawn(courses: Iterable[TimeSeries], cpus: float | None) -> Sparkline:
    """The sum over nodes, relative to the job's CPUs, or else to whole CPUs."""
    points = [(time, sum(seen)) for time, seen in _by_time(courses)]
    if not points:
        return Sparkline("", "not measured")
    values = [value for _, value in points]
    # The scale is the maximum number of CPUs used, rounded up: an idle job's line is at the bottom.
    top = cpus or max(1, math.ceil(max(values)))
    mean = sum(values) / len(values)
    least, mean_words, most = (
        template_filters.share(value / top) if cpus else f"{template_filters.number(value)} CPUs"
        for value in (min(values), mean, max(values))
    )
    words = f"CPU use between {least} and {most}, mean {mean_words}"
    if not any(values):
        words = "no CPU was used"
    return Sparkline(_path(points, top), words)


def drawn_memory(courses: Iterable[TimeSeries], allocated: float | None) -> Sparkline:
    """The sum over nodes, relative to the job's memory (bytes), or else to its own maximum."""
    points = [(time, sum(seen)) for time, seen in _by_time(courses)]
    if not points:
        return Sparkline("", "not measured")
    values = [value for _, value in points]
    least, most = template_filters.size(min(values)), template_filters.size(max(values))
    return Sparkline(
        _path(points, allocated or max(values)), f"Memory in use between {least} and {most}"
    )


def drawn_gpu(courses: Iterable[TimeSeries]) -> Sparkline:
    """The mean over GPUs."""
    points = [(time, sum(seen) / len(seen)) for time, seen in _by_time(courses)]
    if not points:
        return Sparkline("", "not measured")
    values = [value for _, value in points]
    least, most = template_filters.share(min(values)), template_filters.share(max(values))
    return Sparkline(_path(points, 1.0), f"GPU use between {least} and {most}, mean of its GPUs")


_DRAWN: Mapping[Line, Callable[[Sequence[TimeSeries], RowMapping], Sparkline]] = {
    Line.CPU: lambda courses, row: drawn(courses, row["allocated_cpus"]),
    Line.MEMORY: lambda courses, row: drawn_memory(courses, row["allocated_memory_bytes"]),
    Line.GPU: lambda courses, _: drawn_gpu(courses),
}

"""A job's usage over time, small enough for a row of a list.

Pages do not wait long for measurements: a sparkline that is not ready in time is left out, and
cached for the next request.
"""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

from sqlalchemy.engine import Connection, RowMapping

from batchjob.quantities.curves import CURVES
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.queries.spans import spans_of
from batchjob_stats_db.timeseries.base import TimeSeries, TimeSeriesError
from batchjob_stats_server.job_curves import job_series
from batchjob_stats_server.pages.rendering import charts, template_filters
from batchjob_stats_server.services import Services

log = logging.getLogger(__name__)

WIDTH, HEIGHT = 100.0, 20.0
_INTERVALS = 40
_MAX_JOBS = 60  # maximum rows of a page
_RUNNING_CACHE_SECONDS = 60  # how long a running job's line is cached
_CACHE_SIZE = 5000
_THREADS = 2


class Sparkline(NamedTuple):
    """A line and its description; without a path, the description says why."""

    path: str
    description: str


SparklineKind = Literal["cpu", "memory", "gpu_utilization"]
"""The curves that can be drawn, by their names."""

SparklineKey = tuple[int, SparklineKind]  # id of the job's row, and what is drawn


class Sparklines:
    """Queries measurements in its own threads, and caches the last sparklines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: OrderedDict[SparklineKey, tuple[Sparkline, float]] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sparks")

    def stop(self) -> None:
        """Stop querying."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def get(
        self, services: Services, db: Connection, access: Access, rows: Sequence[RowMapping],
        kinds: Sequence[SparklineKind] = ("cpu",),
    ) -> Mapping[SparklineKey, Sparkline] | None:  # fmt: skip
        """The sparklines of these jobs; None: there is no time series database."""
        if not services.histories.has_store:
            return None
        now = services.clock()
        started = [row for row in rows if row["start_time"] is not None][:_MAX_JOBS]
        keys = {
            (row["id"], kind): row
            for row in started
            for kind in kinds
            if kind != "gpu_utilization" or _gpu_count(row)
        }
        sparklines = {key: sparkline for key in keys if (sparkline := self._cached(key, now))}
        missing = {key: row for key, row in keys.items() if key not in sparklines}
        ids = sorted({number for number, _ in missing})
        jobs = spans_of(db, access, ids, services.settings.tsdb.policy(), int(now)) if ids else {}
        futures = {
            key: self._threads.submit(self._query, services, jobs[key[0]], key[1], row, now)
            for key, row in missing.items()
            if key[0] in jobs
        }
        services.threads.wait_for_store(futures.values())
        for key, future in futures.items():
            if not future.cancel() and future.done() and not future.exception():
                sparklines[key] = future.result()
        return sparklines

    def _cached(self, key: SparklineKey, now: float) -> Sparkline | None:
        with self._lock:
            sparkline, expiry_time = self._cache.get(key, (None, 0.0))
        return sparkline if now < expiry_time else None

    def _query(
        self,
        services: Services,
        job: JobToMeasure,
        kind: SparklineKind,
        row: RowMapping,
        now: float,
    ) -> Sparkline:
        try:
            with services.histories.acquire() as history:
                series = list(job_series(history, job, [CURVES[kind]], _INTERVALS))
        except TimeSeriesError as error:
            log.info("no sparkline of job %s: %s", job.jobid, error)
            raise
        found = [each.series for each in series]
        if kind == "cpu" and job.cpus != row["allocated_cpus"]:
            sparkline = cpu_sparkline(found, None)  # it had another number at other times
        else:
            sparkline = _BUILDERS[kind](found, row)
        is_final = job.end is not None and now > job.end + 6 * 3600
        with self._lock:
            expiry_time = float("inf") if is_final else now + _RUNNING_CACHE_SECONDS
            self._cache[job.id, kind] = sparkline, expiry_time
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return sparkline


def _gpu_count(row: RowMapping) -> int:
    return row["gpus_held"] or 0


def _values_by_time(series: Iterable[TimeSeries]) -> list[tuple[float, list[float]]]:
    """The values of all nodes and GPUs at each time."""
    values: dict[float, list[float]] = {}
    for one in series:
        for point in one.points:
            values.setdefault(point.time, []).append(point.mean)
    return sorted(values.items())


def _draw(
    points: list[tuple[float, float]],
    top: float | None,
    describe: Callable[[Sequence[float]], str],
) -> Sparkline:
    """The line through (time, value), `top` or else the largest value at the upper edge."""
    if not points:
        return Sparkline("", "not measured")
    values = [value for _, value in points]
    if len(points) == 1:  # a line needs two points
        points = [points[0], (points[0][0] + 1, points[0][1])]
    path = charts.line_path(points, WIDTH, HEIGHT, top or max(values))
    return Sparkline(path, describe(values))


def cpu_sparkline(series: Iterable[TimeSeries], cpus: float | None) -> Sparkline:
    """CPUs in use on all nodes, relative to the job's CPUs, or else to their maximum."""
    points = [(time, sum(node_values)) for time, node_values in _values_by_time(series)]
    # The scale is the maximum number of CPUs used, rounded up: an idle job's line is at the bottom.
    top = cpus or max(1, math.ceil(max((value for _, value in points), default=0)))

    def format_cpus(value: float) -> str:
        return (
            template_filters.percent(value / cpus)
            if cpus
            else f"{template_filters.number(value)} CPUs"
        )

    def describe(values: Sequence[float]) -> str:
        if not any(values):
            return "no CPU was used"
        lowest, mean, highest = map(
            format_cpus, (min(values), sum(values) / len(values), max(values))
        )
        return f"CPU use between {lowest} and {highest}, mean {mean}"

    return _draw(points, top, describe)


def memory_sparkline(series: Iterable[TimeSeries], allocated: float | None) -> Sparkline:
    """Memory in use on all nodes, relative to the allocation (bytes), or else to its maximum."""
    points = [(time, sum(node_values)) for time, node_values in _values_by_time(series)]
    size = template_filters.size
    return _draw(
        points, allocated, lambda v: f"Memory in use between {size(min(v))} and {size(max(v))}"
    )


def gpu_sparkline(series: Iterable[TimeSeries]) -> Sparkline:
    """Mean utilisation of the job's GPUs."""
    points = [(time, sum(values) / len(values)) for time, values in _values_by_time(series)]
    percent = template_filters.percent
    return _draw(
        points,
        1.0,
        lambda v: f"GPU use between {percent(min(v))} and {percent(max(v))}, mean of its GPUs",
    )


_BUILDERS: Mapping[SparklineKind, Callable[[Sequence[TimeSeries], RowMapping], Sparkline]] = {
    "cpu": lambda series, row: cpu_sparkline(series, row["allocated_cpus"]),
    "memory": lambda series, row: memory_sparkline(series, row["allocated_memory_bytes"]),
    "gpu_utilization": lambda series, _: gpu_sparkline(series),
}

"""A job's CPU usage over time, small enough for a row of a list.

Pages do not wait long for measurements: a sparkline that is not ready in time is left out, and
cached for the next request.
"""

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.engine import Connection, RowMapping

from batchjob.quantities.curves import CURVES
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import visible_jobs
from batchjob_stats_db.timeseries.base import TimeSeries, TimeSeriesError
from batchjob_stats_server.curves import job_series
from batchjob_stats_server.pages.rendering import charts, template_filters
from batchjob_stats_server.services import Services

log = logging.getLogger(__name__)

WIDTH, HEIGHT = 100.0, 20.0
_INTERVALS = 40
_MAX_JOBS = 60  # maximum rows of a page
_RUNNING_CACHE_SECONDS = 60  # how long a running job's line is cached
_CACHE_SIZE = 5000
_THREADS = 2


Sparkline = tuple[str, str]
"""An SVG path and its description; without a path, the description says why."""


class Sparklines:
    """Queries measurements in its own threads, and caches the last sparklines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: dict[int, tuple[Sparkline, float]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sparks")

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def get(
        self, services: Services, db: Connection, access: Access, rows: Sequence[RowMapping]
    ) -> Mapping[int, Sparkline] | None:
        """The sparklines of these jobs, by row id; None: there is no time series database."""
        if not services.stores.has_store:
            return None
        now = services.clock()
        started = [row for row in rows if row["start_time"] is not None][:_MAX_JOBS]
        sparklines, missing = {}, {}
        for row in started:
            with self._lock:
                sparkline, expiry_time = self._cache.get(row["id"], (None, 0.0))
            if sparkline and now < expiry_time:
                sparklines[row["id"]] = sparkline
            else:
                missing[row["id"]] = row
        policy = services.settings.tsdb.policy()
        jobs = visible_jobs(db, access, sorted(missing), policy, int(now)) if missing else {}
        futures = {
            number: self._threads.submit(self._query, services, job, missing[number], now)
            for number, job in jobs.items()
        }
        services.threads.wait_for_store(futures.values())
        for number, future in futures.items():
            if not future.cancel() and future.done() and not future.exception():
                sparklines[number] = future.result()
        return sparklines

    def _query(
        self, services: Services, job: JobToMeasure, row: RowMapping, now: float
    ) -> Sparkline:
        try:
            with services.stores.acquire() as store:
                series = list(job_series(store, job, [CURVES["cpu"]], _INTERVALS))
        except TimeSeriesError as error:
            log.info("no sparkline of job %s: %s", job.jobid, error)
            raise
        # Without the number of CPUs if it had another one at other times.
        cpus = row["allocated_cpus"] if job.cpus == row["allocated_cpus"] else None
        sparkline = cpu_sparkline([each.series for each in series], cpus)
        is_final = job.end is not None and now > job.end + 6 * 3600
        with self._lock:
            expiry_time = float("inf") if is_final else now + _RUNNING_CACHE_SECONDS
            self._cache[job.id] = sparkline, expiry_time
            while len(self._cache) > _CACHE_SIZE:
                del self._cache[next(iter(self._cache))]
        return sparkline


def cpu_sparkline(series: Iterable[TimeSeries], cpus: float | None) -> Sparkline:
    """CPUs in use on all nodes, relative to the job's CPUs, or else to their maximum."""
    used: dict[float, float] = {}
    for one in series:
        for point in one.points:
            used[point.time] = used.get(point.time, 0.0) + point.mean
    if not used:
        return "", "not measured"
    points, values = sorted(used.items()), list(used.values())
    if len(points) == 1:  # a line needs two points
        points.append((points[0][0] + 1, points[0][1]))
    # The scale is the maximum number of CPUs used, rounded up: an idle job's line is at the bottom.
    path = charts.line_path(points, WIDTH, HEIGHT, cpus or max(1, math.ceil(max(values))))
    if not any(values):
        return path, "no CPU was used"

    def format_cpus(value: float) -> str:
        if cpus:
            return template_filters.percent(value / cpus)
        return f"{template_filters.number(value)} CPUs"

    lowest, mean, highest = map(format_cpus, (min(values), sum(values) / len(values), max(values)))
    return path, f"CPU use between {lowest} and {highest}, mean {mean}"

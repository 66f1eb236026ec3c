"""Measurements in sample files, without a time series database.

Queries have the same answers as with Prometheus. A number that does not change from one sample to
the next costs nothing here.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from batchjob.quantities.gpu import GPUS, JOB_GPU_INFO
from batchjob.quantities.job import CPU_SECONDS
from batchjob.quantities.quantity import SeriesKind, Statistic
from batchjob.quantities.sample import BY_NAME, SampleHeader, SampleKey, Values
from batchjob.runtime.log import LogOnce
from batchjob_stats_db.samples.file import SampleFile
from batchjob_stats_db.samples.folder import files_of, folder_of
from batchjob_stats_db.timeseries import resample
from batchjob_stats_db.timeseries.base import (
    JobWindow,
    SeriesQuery,
    SeriesValue,
    TimeSeries,
    TimeSeriesError,
)
from batchjob_stats_db.timeseries.resample import CARRIED_SECONDS, Identity, Points

log = logging.getLogger(__name__)

_GPU_INFO = JOB_GPU_INFO.name  # 1 for each GPU that has any value
# A sample's time, and whether all values must be compared, not only the changed ones.
Moment = tuple[float, bool]
_Tallies = Mapping[tuple[SampleHeader, SampleKey], "Tally"]


class SampleHistory:
    """Reads the files of one directory; for one thread."""

    source = "samples"

    def __init__(self, samples: Path, cluster: str = "") -> None:
        """`cluster`: the cluster of the jobs; "" if there is only one."""
        self._samples = samples
        self._cluster = cluster
        self._log_once = LogOnce(log)

    def measure(
        self, wanted: Mapping[Statistic, Sequence[str]], windows: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        found: dict[Statistic, list[SeriesValue]] = {statistic: [] for statistic in wanted}
        for window in windows:
            for (header, name), tally in self._tallies(window).items():
                metric = BY_NAME[name.quantity].metric.name
                labels = _labels(window, header, name)
                for statistic, metrics in wanted.items():
                    value = tally.statistic(statistic) if metric in metrics else None
                    if value is not None:
                        found[statistic].append(SeriesValue(metric, labels, value))
        return found

    def job_series(self, query: SeriesQuery, window: JobWindow, bins: int) -> list[TimeSeries]:
        """See TimeSeriesStore; gaps are kept."""
        found: dict[Identity, Points] = {}
        interval = 0.0
        for jobid in query.where.get("jobid", (window.jobid,)):
            for header, file, moments in self._read(window._replace(jobid=jobid)):
                assert file.header is not None
                interval = max(interval, file.header.interval_seconds)
                for identity, at, value in _matching_points(query, window, header, file, moments):
                    found.setdefault(identity, []).append((at, value))
        if not found:
            return []
        intervals = resample.equal_bins(window, bins, interval)
        if query.kind is SeriesKind.RATE:
            return resample.rate_series(found.items(), query, window, intervals, 4 * interval)
        series = (
            TimeSeries(dict(each), resample.gauge_points(seen, intervals))
            for each, seen in found.items()
        )
        return [each for each in series if each.points]

    def last_sample_times(
        self, metrics: Sequence[str], windows: Sequence[JobWindow]
    ) -> list[SeriesValue]:
        return self.measure({Statistic.LATEST: metrics}, windows)[Statistic.LATEST]

    def measure_cluster(self, *_asked: object) -> None:
        return

    def latest(self, *_asked: object, **_more: object) -> list[SeriesValue]:
        return []

    def scrape_ratios(self, *_asked: object) -> list[SeriesValue]:
        return []

    def node_series(self, *_asked: object) -> list[TimeSeries]:
        return []

    def _tallies(self, window: JobWindow) -> _Tallies:
        found: dict[tuple[SampleHeader, SampleKey], Tally] = {}
        counts: dict[SampleHeader, int] = {}  # number of samples
        latest: dict[SampleHeader, float] = {}  # time of the last sample
        carried: dict[SampleHeader, Values] = {}  # CPU time that the run before this one had used
        begun: set[SampleHeader] = set()  # with samples of this run
        for header, file, moments in self._read(window):
            decoder = file.decoder
            for at, whole in moments:
                number, before = counts.setdefault(header, 0), latest.get(header, at)
                if header not in begun and at >= window.start:
                    used, late = _cpu_seconds(decoder.values), at >= window.start + CARRIED_SECONDS
                    if late or window.continues or carried.get(header) != used:
                        begun.add(header)
                        whole = True
                elif header not in begun:
                    carried[header] = _cpu_seconds(decoder.values)
                known = {name for each, name in found if each == header} if whole else set()
                for name in known | decoder.values.keys() if whole else decoder.changed:
                    value = decoder.values.get(name)
                    tally = found.setdefault((header, name), Tally(window.continues))
                    if header in begun:
                        tally.change(number, value, before)
                    else:
                        tally.carry(value)
                counts[header] += header in begun
                latest[header] = at
        for (header, _), tally in found.items():
            tally.end(counts[header], latest[header])
        return found

    def _read(
        self, window: JobWindow
    ) -> Iterator[tuple[SampleHeader, SampleFile, Iterator[Moment]]]:
        """The job's files, each with its samples of the window; raises TimeSeriesError."""
        if self._cluster not in ("", window.cluster):
            return
        latest: dict[SampleHeader, float] = {}
        try:
            for path in files_of(folder_of(self._samples, window.jobid)):
                with SampleFile(path) as file:
                    times = file.times(_earliest(window))
                    first = next(times, None)
                    if first is not None and file.header is not None:
                        header = file.header._replace(interval_seconds=0.0)
                        times = chain([first], times)
                        yield header, file, _moments_within(window, times, header, latest)
                    if file.damage:
                        self._log_once.warning(str(path), "%s: partly read: %s", path, file.damage)
        except OSError as error:
            raise TimeSeriesError(str(error)) from error


def _cpu_seconds(values: Values) -> Values:
    """Those of a node's values that tell one run from another; they begin at 0."""
    return {
        name: value
        for name, value in values.items()
        if BY_NAME[name.quantity].metric.name == CPU_SECONDS.name
    }


def _earliest(window: JobWindow) -> int:
    return window.start - (CARRIED_SECONDS if window.near_other_run else 0)


def _moments_within(
    window: JobWindow,
    times: Iterable[float],
    header: SampleHeader,
    latest: dict[SampleHeader, float],
) -> Iterator[Moment]:
    """Samples from the window's start (of one of several runs, a little earlier) to its end.

    If two recorders of one node have recorded a job, the first one counts.
    """
    earliest = _earliest(window)
    seen_until = latest.get(header, -math.inf)
    whole = True
    for at in times:
        if at > window.until or at < earliest or at <= seen_until:
            whole = True
            continue
        yield at, whole or latest[header] < window.start <= at
        latest[header] = at
        whole = False


def _matching_points(
    query: SeriesQuery,
    window: JobWindow,
    header: SampleHeader,
    file: SampleFile,
    moments: Iterator[Moment],
) -> Iterator[tuple[Identity, float, float]]:
    identities: dict[SampleKey, Identity | None] = {}
    for at, _ in moments:
        seen = set()
        for name, value in file.decoder.values.items():
            if name not in identities:
                identities[name] = _identity(query, window, header, name)
            identity = identities[name]
            if identity is not None and identity not in seen:
                seen.add(identity)
                info = query.metric == _GPU_INFO
                yield identity, at, 1.0 if info else value


def _identity(
    query: SeriesQuery, window: JobWindow, header: SampleHeader, name: SampleKey
) -> Identity | None:
    quantity = BY_NAME[name.quantity]
    metrics = (quantity.metric.name, *((_GPU_INFO,) if quantity.group is GPUS else ()))
    if query.metric not in metrics:
        return None
    labels = _labels(window, header, name)
    if all(labels.get(label) in values for label, values in query.where.items()):
        return tuple(labels.items())
    return None


def _labels(window: JobWindow, header: SampleHeader, name: SampleKey) -> dict[str, str]:
    quantity = BY_NAME[name.quantity]
    own = quantity.group.labels if quantity.group else ()
    return {
        "cluster": window.cluster,
        "instance": header.node,
        "manager": header.manager,
        "jobid": header.jobid,
        "user": header.user,
        **dict(quantity.labels),
        **dict(zip(own, name.of, strict=True)),
    }


class Tally:
    """Processes a number from one change to the next: all samples between had the same value."""

    def __init__(self, continues: bool = False) -> None:
        """`continues`: a counter counts from its value before the period."""
        self._continues = continues
        self._value: float | None = None
        self._since = 0  # number of the first sample with this value
        self._latest: float | None = None  # time of the last sample
        self._count = 0
        self._sum = 0.0
        self._peak = -math.inf
        self._carried: float | None = None
        self._total: float | None = None  # if it is a counter
        self._before_resets = 0.0
        self._base = 0.0

    def carry(self, value: float | None) -> None:
        """Set the value before the period, which an earlier run may have left."""
        self._carried = value

    def change(self, number: int, value: float | None, before: float) -> None:
        """From this sample on it is `value`; None: it is missing. `before`: see `end()`."""
        self.end(number, before)
        self._value = value
        if value is None:
            return
        self._peak = max(self._peak, value)
        if self._total is None and self._continues:
            carried = self._carried or 0.0
            self._base = carried if value >= carried else 0.0
        elif self._total is None and value == self._carried:
            return
        if self._total is not None and value < self._total:
            self._before_resets += self._total
        self._total = value

    def end(self, number: int, before: float) -> None:
        """End the value before this sample; `before` is the time of the previous sample."""
        if self._value is not None and number > self._since:
            self._latest = before
            self._count += number - self._since
            self._sum += self._value * (number - self._since)
        self._since = number

    def statistic(self, statistic: Statistic) -> float | None:
        """The requested statistic; None without a sample."""
        if not self._count:
            return None
        if statistic is Statistic.TOTAL:
            total = self._total
            return None if total is None else self._before_resets + total - self._base
        if statistic is Statistic.RESET:
            return self._before_resets or None
        if statistic is Statistic.LATEST:
            return self._latest
        return {
            Statistic.PEAK: self._peak,
            Statistic.MEAN: self._sum / self._count,
            Statistic.COUNT: float(self._count),
        }[statistic]

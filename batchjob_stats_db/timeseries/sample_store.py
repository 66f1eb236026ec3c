"""Measurements in sample files, without a time series database.

Queries have the same answers as with Prometheus. A number that does not change from one sample to
the next costs nothing here.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path

from batchjob.quantities.gpu import GPUS, JOB_GPU_INFO
from batchjob.quantities.index import BY_NAME
from batchjob.quantities.quantity import SeriesKind, Statistic
from batchjob.quantities.sample import SampleHeader, SampleKey
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
from batchjob_stats_db.timeseries.counters import CARRIED_SECONDS
from batchjob_stats_db.timeseries.resample import Identity, Points
from batchjob_stats_db.timeseries.tally import Tally

log = logging.getLogger(__name__)

_GPU_INFO = JOB_GPU_INFO.name  # 1 for each GPU that has any value
# A sample's time, and whether all values must be compared, not only the changed ones.
Moment = tuple[float, bool]
_Tallies = Mapping[tuple[SampleHeader, SampleKey], Tally]


class SampleHistory:
    """Reads the files of one directory; for one thread."""

    source = "samples"

    def __init__(self, samples: Path, cluster: str = "") -> None:
        """`cluster`: the cluster of the jobs; "" if there is only one."""
        self._samples = samples
        self._cluster = cluster
        self._once = LogOnce(log)
        # Results for the last windows, since successive queries are for the same jobs.
        self._kept: dict[JobWindow, tuple[object, _Tallies]] = {}

    def measure(
        self, wanted: Mapping[Statistic, Sequence[str]], spans: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        """See TimeSeriesStore."""
        self._kept = {span: kept for span, kept in self._kept.items() if span in set(spans)}
        return {
            statistic: list(self._of_metrics(statistic, set(metrics), spans))
            for statistic, metrics in wanted.items()
        }

    def _of_metrics(
        self, statistic: Statistic, metrics: Set[str], spans: Sequence[JobWindow]
    ) -> Iterator[SeriesValue]:
        for span in spans:
            for (who, name), tally in self._tallies(span).items():
                metric = BY_NAME[name.quantity].metric.name
                if metric in metrics and (value := tally.statistic(statistic)) is not None:
                    yield SeriesValue(metric, _labels(span, who, name), value)

    def courses(self, asked: SeriesQuery, span: JobWindow, bins: int) -> list[TimeSeries]:
        """See TimeSeriesStore; gaps are kept."""
        found: dict[Identity, Points] = {}
        interval = 0.0
        for jobid in asked.where.get("jobid", (span.jobid,)):
            for who, file, moments in self._read(span._replace(jobid=jobid)):
                assert file.who is not None
                interval = max(interval, file.who.interval_seconds)
                for identity, at, value in _matching(asked, span, who, file, moments):
                    found.setdefault(identity, []).append((at, value))
        if not found:
            return []
        cut = resample.bins(span, bins, interval)
        if asked.kind is SeriesKind.RATE:
            return resample.together(found.items(), asked, span, cut, 4 * interval)
        made = (TimeSeries(dict(each), resample.values(seen, cut)) for each, seen in found.items())
        return [course for course in made if course.points]

    def last_sampled(self, metrics: Sequence[str], spans: Sequence[JobWindow]) -> list[SeriesValue]:
        """See TimeSeriesStore."""
        return self.measure({Statistic.LATEST: metrics}, spans)[Statistic.LATEST]

    def latest(self, *_asked: object, **_more: object) -> list[SeriesValue]:
        """See TimeSeriesStore: files have samples of jobs alone."""
        return []

    def seen(self, *_asked: object) -> list[SeriesValue]:
        """See TimeSeriesStore: files have samples of jobs alone."""
        return []

    def of_node(self, *_asked: object) -> list[TimeSeries]:
        """See TimeSeriesStore: files have samples of jobs alone."""
        return []

    def _tallies(self, span: JobWindow) -> _Tallies:
        signature = self._signature(span)
        kept = self._kept.get(span)
        if kept is None or kept[0] != signature:
            kept = self._kept[span] = (signature, self._tallied(span))
        return kept[1]

    def _tallied(self, span: JobWindow) -> _Tallies:
        found: dict[tuple[SampleHeader, SampleKey], Tally] = {}
        counts: dict[SampleHeader, int] = {}  # number of samples
        latest: dict[SampleHeader, float] = {}  # time of the last sample
        for who, file, moments in self._read(span):
            decoder = file.decoder
            for at, whole in moments:
                number, before = counts.setdefault(who, 0), latest.get(who, at)
                known = {name for each, name in found if each == who} if whole else set()
                for name in known | decoder.values.keys() if whole else decoder.changed:
                    value = decoder.values.get(name)
                    tally = found.setdefault((who, name), Tally())
                    if at < span.start:
                        tally.carry(value)
                    else:
                        tally.change(number, value, before)
                counts[who] += at >= span.start
                latest[who] = at
        for (who, _), tally in found.items():
            tally.end(counts[who], latest[who])
        return found

    def _read(self, span: JobWindow) -> Iterator[tuple[SampleHeader, SampleFile, Iterator[Moment]]]:
        """The job's files, each with its samples of the span; raises TimeSeriesError."""
        if self._cluster not in ("", span.cluster):
            return
        latest: dict[SampleHeader, float] = {}
        try:
            for path in files_of(folder_of(self._samples, span.jobid)):
                with SampleFile(path) as file:
                    times = file.times()
                    first = next(times, None)
                    if first is not None and file.who is not None:
                        who = file.who._replace(interval_seconds=0.0)
                        yield who, file, _within(span, chain([first], times), who, latest)
                    if file.damage:
                        self._once.warning(str(path), "%s: partly read: %s", path, file.damage)
        except OSError as error:
            raise TimeSeriesError(str(error)) from error

    def _signature(self, span: JobWindow) -> object:
        """Changes with the job's files."""
        found = []
        for path in files_of(folder_of(self._samples, span.jobid)):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((path.name, status.st_size, status.st_mtime_ns))
        return found


def _within(
    span: JobWindow, times: Iterable[float], who: SampleHeader, latest: dict[SampleHeader, float]
) -> Iterator[Moment]:
    """Samples from the span's start (of one of several runs, a little earlier) to its end.

    If two recorders of one node have recorded a job, the first one counts.
    """
    begin = span.start - (CARRIED_SECONDS if span.alone else 0)
    seen_until = latest.get(who, -math.inf)
    whole = True
    for at in times:
        if at > span.until or at < begin or at <= seen_until:
            whole = True
            continue
        yield at, whole or latest[who] < span.start <= at
        latest[who] = at
        whole = False


def _matching(
    asked: SeriesQuery,
    span: JobWindow,
    who: SampleHeader,
    file: SampleFile,
    moments: Iterator[Moment],
) -> Iterator[tuple[Identity, float, float]]:
    identities: dict[SampleKey, Identity | None] = {}
    for at, _ in moments:
        seen = set()
        for name, value in file.decoder.values.items():
            if name not in identities:
                identities[name] = _identity(asked, span, who, name)
            identity = identities[name]
            if identity is not None and identity not in seen:
                seen.add(identity)
                info = asked.metric == _GPU_INFO
                yield identity, at, 1.0 if info else value


def _identity(
    asked: SeriesQuery, span: JobWindow, who: SampleHeader, name: SampleKey
) -> Identity | None:
    """The labels of a queried number."""
    quantity = BY_NAME[name.quantity]
    metrics = (quantity.metric.name, *((_GPU_INFO,) if quantity.group is GPUS else ()))
    if asked.metric not in metrics:
        return None
    labels = _labels(span, who, name)
    if all(labels.get(label) in values for label, values in asked.where.items()):
        return tuple(labels.items())
    return None


def _labels(span: JobWindow, who: SampleHeader, name: SampleKey) -> dict[str, str]:
    quantity = BY_NAME[name.quantity]
    own = quantity.group.labels if quantity.group else ()
    return {
        "cluster": span.cluster,
        "instance": who.node,
        "manager": who.manager,
        "jobid": who.jobid,
        "user": who.user,
        **dict(quantity.labels),
        **dict(zip(own, name.of, strict=True)),
    }

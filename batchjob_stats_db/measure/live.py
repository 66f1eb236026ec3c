"""Measures the running jobs of a cluster again and again, each time only what is new.

One query for each statistic covers all jobs of the cluster, without naming any. For each job that
is followed, the statistics of its series are kept; a pass asks for the time since the last one and
adds to them, so that its usage is what one look at the whole time would give. A job without them is
looked at from its start: a new one, all after a restart, one with a counter that was reset, and one
that shares its id with another run. So it does not matter how many passes are lost.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.judgements import RUNNING_STATES
from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.upsert import chunks
from batchjob_stats_db.isolation import isolate_failures
from batchjob_stats_db.measure.job_usage import (
    METRICS,
    PRESENCE_METRIC,
    JobSeries,
    JobToMeasure,
    MeasuredUsage,
    compute_usage,
    returned_at,
)
from batchjob_stats_db.measure.pending import JOB_COLUMNS, jobs_to_measure, measure_isolated
from batchjob_stats_db.measure.writer import write_or_set_aside
from batchjob_stats_db.timeseries.base import SeriesValue, TimeSeriesStore
from batchjob_stats_db.timeseries.resample import is_reset

# After a longer time without a pass, jobs are read from their start again.
_LONGEST_GAP_SECONDS = 3600
_STALE_SCRAPES = 5  # a series without a sample for so long may have been reset in between

_ORIGIN_LABELS = ("instance", "manager", "user")
_SHARED_LABELS = frozenset({*_ORIGIN_LABELS, "jobid", "cluster", "__name__"})
Origin = tuple[str, ...]
"""The values of these labels, which the series of a job on a node share."""


class _Key(NamedTuple):
    """A statistic of a series of a job; equal ones are one object for all jobs."""

    statistic: Statistic
    metric: str
    labels: tuple[tuple[str, str], ...]  # its own, without the origin's


_Values = dict[Origin, dict[_Key, float]]


class _Followed(NamedTuple):
    """What is known of a job's series up to a time, and its usage as it was written last."""

    start: int
    until: int
    values: _Values
    written: int = 0  # a hash of the row


class LiveMeasurement:
    """Follows the running jobs of one cluster, and those that ended a moment ago."""

    def __init__(
        self,
        store: Store,
        time_series: TimeSeriesStore,
        policy: UsagePolicy,
        interval: float,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`interval`: seconds between the samples of a series."""
        self._store = store
        self._time_series = time_series
        self._policy = policy
        self._interval = interval
        self._on_progress = on_progress
        self._jobs: dict[int, _Followed] = {}
        self._until: int | None = None  # when the last pass was
        self._keys: dict[_Key, _Key] = {}
        # Of the last pass: jobs to whose statistics it added, jobs that it looked at from their
        # start, and rows that changed.
        self.continued = self.looked_at = self.written = 0

    def forget(self, jobs: Iterable[JobToMeasure]) -> None:
        """Look at these jobs from their start the next time."""
        for job in jobs:
            self._jobs.pop(job.id, None)

    def run(self, now: int) -> dict[JobToMeasure, Exception]:
        """Measure up to `now`; returns the jobs that failed.

        Raises TimeSeriesError, and then the next pass covers this time.
        """
        with self._store.engine.connect() as db:
            jobs = followed_jobs(db, self._store.cluster, self._policy, now)
        self._jobs = {job.id: self._jobs[job.id] for job in jobs if job.id in self._jobs}
        continued = self._add_new_samples(jobs, now)
        self.continued, self.looked_at, self.written = len(continued), 0, 0
        failed: dict[JobToMeasure, Exception] = {}
        for part in chunks(continued):
            failed |= self._compute_and_write(part, now)
        followed = {job.id for job in continued}
        for part in chunks([job for job in jobs if job.id not in followed]):
            failed |= self._look(part, now)
        self._until = now
        return failed

    def _look(self, jobs: Sequence[JobToMeasure], now: int) -> dict[JobToMeasure, Exception]:
        """Measure jobs from their start, each error isolated; raises TimeSeriesError."""
        series: dict[JobToMeasure, JobSeries] = {}
        usages, failed = measure_isolated(
            self._time_series, jobs, self._interval, self._on_progress, series
        )
        for job in usages:
            self._jobs[job.id] = _Followed(
                job.start, job.window.until, self._values_of(series[job])
            )
        self.looked_at += len(usages)
        return failed | self._write(usages, now)

    def _compute_and_write(
        self, jobs: Sequence[JobToMeasure], now: int
    ) -> dict[JobToMeasure, Exception]:
        usages: dict[JobToMeasure, MeasuredUsage] = {}

        def compute(some: Sequence[JobToMeasure]) -> None:
            for job in some:
                series = _series_of(self._jobs[job.id].values)
                usages[job] = compute_usage(job, series, self._interval)

        failed = isolate_failures(jobs, compute, lambda *_: False)
        self.forget(failed)
        return failed | self._write({job: usages[job] for job in usages if job not in failed}, now)

    def _add_new_samples(self, jobs: Sequence[JobToMeasure], now: int) -> list[JobToMeasure]:
        """Add what is new to the statistics of jobs; returns those where it was possible."""
        since = self._until
        if since is None or not 0 < now - since <= _LONGEST_GAP_SECONDS:
            self._jobs.clear()
            return []
        by_jobid = {job.jobid: job for job in self._of_one_run(jobs, since, now)}
        if not by_jobid:
            return []
        samples = self._time_series.measure_cluster(METRICS, self._store.cluster, since, now)
        if samples is None:
            return []
        news, reset = self._news_by_job(samples, by_jobid)
        continued = []
        for jobid, job in by_jobid.items():
            known, new = self._jobs[job.id], news.pop(jobid, {})
            if jobid in reset or not self._is_sound(job, known, new, since):
                del self._jobs[job.id]
                continue
            for origin, values in new.items():
                if (returned_at(job, origin[0]) or now) < since:
                    continue  # the node is no longer the job's
                _add(known.values.setdefault(origin, {}), values)
            self._jobs[job.id] = known._replace(until=now)
            continued.append(job)
        return continued

    def _of_one_run(
        self, jobs: Sequence[JobToMeasure], since: int, now: int
    ) -> Iterator[JobToMeasure]:
        """Jobs whose series in the time since the last pass are theirs alone."""
        runs = Counter(job.jobid for job in jobs)
        for job in jobs:
            known = self._jobs.get(job.id)
            if (
                known and (known.start, known.until) == (job.start, since)
                and runs[job.jobid] == 1 and job.window.until == now
                and (not job.window.near_other_run or job.window.free_range[0] <= since)
                and not job.window.continues
            ):  # fmt: skip
                yield job

    def _news_by_job(
        self, samples: Iterable[tuple[Statistic, SeriesValue]], by_jobid: Mapping[str, JobToMeasure]
    ) -> tuple[dict[str, _Values], set[str]]:
        """The new statistics of these jobs, and the ids of those with a counter that was reset."""
        news: dict[str, _Values] = defaultdict(lambda: defaultdict(dict))
        reset: set[str] = set()
        for statistic, sample in samples:
            jobid = sample.labels.get("jobid", "")
            if jobid not in by_jobid:
                continue
            if statistic is Statistic.RESET:
                reset.add(jobid)
            else:
                news[jobid][_origin(sample)][self._key(statistic, sample)] = sample.value
        return news, reset

    def _is_sound(self, job: JobToMeasure, known: _Followed, new: _Values, since: int) -> bool:
        """Whether new statistics continue the known ones; otherwise the whole time must be read."""
        earliest = since - _STALE_SCRAPES * self._interval
        for origin, values in new.items():
            before = known.values.get(origin, {})
            for key, value in values.items():
                if key.statistic is Statistic.TOTAL and not _continues(job, key, before, value):
                    return False
                if key[:2] == (Statistic.COUNT, PRESENCE_METRIC):
                    latest = key._replace(statistic=Statistic.LATEST)
                    if latest not in values or (
                        key in before and before.get(latest, -math.inf) < earliest
                    ):
                        return False
        return True

    def _values_of(self, series: JobSeries) -> _Values:
        values: _Values = defaultdict(dict)
        for (statistic, _), samples in series.items():
            for sample in samples:
                values[_origin(sample)][self._key(statistic, sample)] = sample.value
        return dict(values)

    def _key(self, statistic: Statistic, sample: SeriesValue) -> _Key:
        labels: tuple[tuple[str, str], ...] = ()
        if not sample.labels.keys() <= _SHARED_LABELS:
            own = (pair for pair in sample.labels.items() if pair[0] not in _SHARED_LABELS)
            labels = tuple(sorted(own))
        key = _Key(statistic, sample.metric, labels)
        return self._keys.setdefault(key, key)

    def _write(
        self, usages: Mapping[JobToMeasure, MeasuredUsage], now: int
    ) -> dict[JobToMeasure, Exception]:
        """Write the rows that changed. A job without samples keeps the row it has."""
        changed: dict[JobToMeasure, MeasuredUsage] = {}
        for job, usage in usages.items():
            known = self._jobs[job.id]
            row = hash((usage[:7], *usage.values.items(), *usage.devices, *usage.emissions.items()))
            if usage.samples and row != known.written:
                changed[job] = usage
                self._jobs[job.id] = known._replace(written=row)
        refused: dict[JobToMeasure, Exception] = {}
        if changed:
            cluster, source = self._store.cluster, self._time_series.source
            with self._store.transaction() as db:
                refused = write_or_set_aside(
                    db, cluster, source, changed, self._policy, now, is_live=True
                )
        self.written += len(changed) - len(refused)
        return refused


def followed_jobs(
    db: Connection, cluster: str, policy: UsagePolicy, now: int
) -> list[JobToMeasure]:
    """The running jobs, and those that ended but are not yet due to be measured to their end.

    Tracked work is left out: no exporter has samples of it.
    """
    job = schema.job.c
    started = (job.cluster == cluster) & schema.HAS_STARTED & (job.tool == "")
    states = (
        job.end_time.is_(None) & job.state.in_(RUNNING_STATES),
        (job.usage_due_time > now) & job.end_time.is_not(None),
    )
    rows = [
        row for state in states for row in db.execute(sa.select(*JOB_COLUMNS).where(started, state))
    ]
    return jobs_to_measure(db, cluster, [row for row in rows if row.start_time < now], policy, now)


def _origin(sample: SeriesValue) -> Origin:
    given = sample.labels.get  # not in a loop: this is done for each series
    return given("instance", ""), given("manager", ""), given("user", "")


def _continues(job: JobToMeasure, key: _Key, before: Mapping[_Key, float], value: float) -> bool:
    """Whether a counter's new last value is its known total and what was added since."""
    total = before.get(key)
    if total is None:  # of another run, perhaps, whose values linger
        return not job.window.near_other_run
    return not is_reset(total, value + _before_resets(key, before))


def _before_resets(key: _Key, values: Mapping[_Key, float]) -> float:
    """What a counter had counted when it was reset last."""
    return values.get(key._replace(statistic=Statistic.RESET), 0.0)


def _add(known: dict[_Key, float], new: Mapping[_Key, float]) -> None:
    """Add the statistics of later samples of the same series."""
    counts = {key: value for key, value in new.items() if key.statistic is Statistic.COUNT}
    for key, value in new.items():
        before = known.get(key)
        if key.statistic is Statistic.TOTAL:
            known[key] = value + _before_resets(key, known)
        elif key.statistic is Statistic.COUNT:
            continue
        elif before is None or math.isnan(before):
            known[key] = value
        elif key.statistic is Statistic.MEAN:
            count = key._replace(statistic=Statistic.COUNT)
            weight, more = known.get(count, 0.0), counts.get(count, 0.0)
            if more:
                known[key] = (before * weight + value * more) / (weight + more)
        else:  # a peak, or the time of the last sample
            known[key] = max(before, value)
    for key, value in counts.items():  # after the means, which they weigh
        known[key] = known.get(key, 0.0) + value


def _series_of(values: _Values) -> JobSeries:
    """The same in the form of a store's answer."""
    series: JobSeries = defaultdict(list)
    for origin, of_origin in values.items():
        shared = dict(zip(_ORIGIN_LABELS, origin, strict=True))
        for key, value in of_origin.items():
            labels = {**shared, **dict(key.labels)} if key.labels else shared
            series[key.statistic, key.metric].append(SeriesValue(key.metric, labels, value))
    return series

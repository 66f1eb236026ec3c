"""Metric families about the cluster's jobs."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from batchjob.schedulers.cluster import ClusterJob
from batchjob.schedulers.states import JobState
from collectors.cluster.metric_types import (
    ClusterMetric,
    Histogram,
    Samples,
    counted,
    families,
    gauge,
)
from collectors.metric import Metric, MetricFamily, labels


class JobsReading(NamedTuple):
    """Jobs of one reading, the histogram of waits so far, and the Unix time of the reading."""

    jobs: Sequence[ClusterJob]
    waited: Mapping[str, Histogram]
    at: float


def _pending(reading: JobsReading) -> Iterator[ClusterJob]:
    return (job for job in reading.jobs if job.state is JobState.PENDING)


def _jobs_by_state(reading: JobsReading) -> Samples:
    found: Counter[tuple[str, ...]] = Counter()
    for job in reading.jobs:
        if job.state.live:
            found[job.partition, job.state] += job.tasks
    return counted(found, "partition", "state")


def _jobs_by_reason(reading: JobsReading) -> Samples:
    found: Counter[tuple[str, ...]] = Counter()
    for job in _pending(reading):
        found[job.partition, job.reason] += job.tasks
    return counted(found, "partition", "reason")


def _wanted(value: Callable[[ClusterJob], int | None]) -> Callable[[JobsReading], Samples]:
    def samples(reading: JobsReading) -> Samples:
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for job in _pending(reading):
            each = value(job)
            if each is not None:
                found[(job.partition,)] += each * job.tasks
        return counted(found, "partition")

    return samples


def _oldest(reading: JobsReading) -> Samples:
    oldest: dict[tuple[str, ...], float] = {}
    for job in _pending(reading):
        if job.eligible is not None and job.eligible <= reading.at:
            waited = reading.at - job.eligible
            oldest[(job.partition,)] = max(waited, oldest.get((job.partition,), 0.0))
    return counted(oldest, "partition")


def _people(
    kind: str, who: Callable[[ClusterJob], str], on_demand: bool
) -> tuple[ClusterMetric, ...]:
    """The live jobs of each account or user, and the CPUs they hold."""

    def live(reading: JobsReading) -> Samples:
        found: Counter[tuple[str, ...]] = Counter()
        for job in reading.jobs:
            if job.state.live and who(job):
                found[who(job), job.state] += job.tasks
        return counted(found, kind, "state")

    def held(reading: JobsReading) -> Samples:
        found: Counter[tuple[str, ...]] = Counter()
        for job in reading.jobs:
            if job.state is JobState.RUNNING and job.cpus is not None and who(job):
                found[(who(job),)] += job.cpus
        return counted(found, kind)

    about = f"Jobs of the {kind} that are pending, running or suspended."
    return (
        ClusterMetric(
            gauge(f"{kind}_jobs", about, kind, "state"), live, native=True, on_demand=on_demand
        ),
        ClusterMetric(
            gauge(f"{kind}_cpus", f"CPUs allocated to running jobs of the {kind}.", kind),
            held,
            on_demand=on_demand,
        ),
    )


JOBS = (
    ClusterMetric(
        gauge(
            "jobs",
            "Pending, running and suspended jobs; each array task counts. A job that "
            "is pending in several partitions counts in the first.",
            "partition",
            "state",
        ),
        _jobs_by_state,
        native=True,
    ),
    ClusterMetric(
        gauge("jobs_pending", "Pending jobs by reason.", "partition", "reason"),
        _jobs_by_reason,
    ),
    ClusterMetric(
        gauge("pending_cpus", "CPUs requested by pending jobs.", "partition"),
        _wanted(lambda job: job.cpus),
    ),
    ClusterMetric(
        gauge("pending_gpus", "GPUs requested by pending jobs.", "partition"),
        _wanted(lambda job: job.gpus),
    ),
    ClusterMetric(
        gauge(
            "pending_longest_wait_seconds",
            "Time since the longest waiting job became eligible.",
            "partition",
        ),
        _oldest,
    ),
    *_people("account", lambda job: job.account, on_demand=False),
    *_people("user", lambda job: job.user, on_demand=True),
)
WAIT = Metric(
    "batchjob_cluster_job_wait_seconds",
    "histogram",
    "Time from eligible to start, for jobs that started since the exporter did.",
    ("partition",),
)


def waits(reading: JobsReading) -> Iterator[MetricFamily]:
    """The histogram by partition."""
    return families(
        WAIT, {labels(partition=name): waited for name, waited in reading.waited.items()}
    )

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
    gauge,
    histogram_families,
    labeled_samples,
)
from collectors.metric import Metric, MetricFamily, labels


class JobsReading(NamedTuple):
    """Jobs of one reading, the histogram of waits so far, and the Unix time of the reading."""

    jobs: Sequence[ClusterJob]
    waits: Mapping[str, Histogram]
    at: float


def _pending(reading: JobsReading) -> Iterator[ClusterJob]:
    return (job for job in reading.jobs if job.state is JobState.PENDING)


def _jobs_by_state(reading: JobsReading) -> Samples:
    counts: Counter[tuple[str, ...]] = Counter()
    for job in reading.jobs:
        if job.state.is_live:
            counts[job.partition, job.state] += job.tasks
    return labeled_samples(counts, "partition", "state")


def _jobs_by_reason(reading: JobsReading) -> Samples:
    counts: Counter[tuple[str, ...]] = Counter()
    for job in _pending(reading):
        counts[job.partition, job.reason] += job.tasks
    return labeled_samples(counts, "partition", "reason")


def _pending_total(value: Callable[[ClusterJob], int | None]) -> Callable[[JobsReading], Samples]:
    def samples(reading: JobsReading) -> Samples:
        counts: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for job in _pending(reading):
            requested = value(job)
            if requested is not None:
                counts[(job.partition,)] += requested * job.tasks
        return labeled_samples(counts, "partition")

    return samples


def _cut_arrays(reading: JobsReading) -> Samples:
    counts: Counter[tuple[str, ...]] = Counter(
        (job.partition,) for job in _pending(reading) if job.is_cut
    )
    return labeled_samples(counts, "partition")


def _longest_wait(reading: JobsReading) -> Samples:
    longest: dict[tuple[str, ...], float] = {}
    for job in _pending(reading):
        if job.eligible_time is not None and job.eligible_time <= reading.at:
            wait_seconds = reading.at - job.eligible_time
            longest[(job.partition,)] = max(wait_seconds, longest.get((job.partition,), 0.0))
    return labeled_samples(longest, "partition")


def _job_owner_metrics(
    owner_kind: str, owner: Callable[[ClusterJob], str], per_user: bool
) -> tuple[ClusterMetric, ...]:
    """The live jobs of each account or user, and the CPUs allocated to them."""

    def live_jobs(reading: JobsReading) -> Samples:
        counts: Counter[tuple[str, ...]] = Counter()
        for job in reading.jobs:
            if job.state.is_live and owner(job):
                counts[owner(job), job.state] += job.tasks
        return labeled_samples(counts, owner_kind, "state")

    def allocated_cpus(reading: JobsReading) -> Samples:
        counts: Counter[tuple[str, ...]] = Counter()
        for job in reading.jobs:
            if job.state is JobState.RUNNING and job.cpus is not None and owner(job):
                counts[(owner(job),)] += job.cpus
        return labeled_samples(counts, owner_kind)

    description = f"Jobs of the {owner_kind} that are pending, running or suspended."
    return (
        ClusterMetric(
            gauge(f"{owner_kind}_jobs", description, owner_kind, "state"),
            live_jobs,
            native=True,
            per_user=per_user,
        ),
        ClusterMetric(
            gauge(
                f"{owner_kind}_cpus",
                f"CPUs allocated to running jobs of the {owner_kind}.",
                owner_kind,
            ),
            allocated_cpus,
            per_user=per_user,
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
        gauge(
            "arrays_cut",
            "Pending arrays whose list of tasks the scheduler cut: of their tasks, only those "
            "listed count.",
            "partition",
        ),
        _cut_arrays,
    ),
    ClusterMetric(
        gauge("jobs_pending", "Pending jobs by reason.", "partition", "reason"),
        _jobs_by_reason,
    ),
    ClusterMetric(
        gauge("pending_cpus", "CPUs requested by pending jobs.", "partition"),
        _pending_total(lambda job: job.cpus),
    ),
    ClusterMetric(
        gauge("pending_gpus", "GPUs requested by pending jobs.", "partition"),
        _pending_total(lambda job: job.gpus),
    ),
    ClusterMetric(
        gauge(
            "pending_longest_wait_seconds",
            "Time since the longest waiting job became eligible to start: a job that is held, or "
            "waits for its begin time, for other jobs or for its array's own limit, is not.",
            "partition",
        ),
        _longest_wait,
    ),
    *_job_owner_metrics("account", lambda job: job.account, per_user=False),
    *_job_owner_metrics("user", lambda job: job.user, per_user=True),
)
WAIT = Metric(
    "batchjob_cluster_job_wait_seconds",
    "histogram",
    "Time from becoming eligible to start to the start, for jobs that started since the exporter "
    "did.",
    ("partition",),
)


def wait_families(reading: JobsReading) -> Iterator[MetricFamily]:
    """The histogram by partition."""
    return histogram_families(
        WAIT, {labels(partition=name): histogram for name, histogram in reading.waits.items()}
    )

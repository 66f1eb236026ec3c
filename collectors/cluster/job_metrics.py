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


def _jobs_by_phase(reading: JobsReading) -> Samples:
    counts: Counter[tuple[str, ...]] = Counter()
    for job in reading.jobs:
        if job.phase and job.state is JobState.RUNNING:
            counts[job.partition, job.phase] += job.tasks
    return labeled_samples(counts, "partition", "phase")


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
        gauge(
            f"{owner_kind}_jobs",
            live_jobs,
            description,
            owner_kind,
            "state",
            native=True,
            per_user=per_user,
        ),
        gauge(
            f"{owner_kind}_cpus",
            allocated_cpus,
            f"CPUs allocated to running jobs of the {owner_kind}.",
            owner_kind,
            per_user=per_user,
        ),
    )


# fmt: off
JOBS = (
    gauge("jobs", _jobs_by_state,
        "Pending, running and suspended jobs; each array task counts. A job that is pending in "
        "several partitions counts in the first.", "partition", "state", native=True),
    gauge("jobs_in_phase", _jobs_by_phase,
        "Running jobs whose nodes are being prepared (configuring) or cleaned up (completing).",
        "partition", "phase"),
    gauge("arrays_cut", _cut_arrays,
        "Pending arrays whose list of tasks the scheduler cut: of their tasks, only those listed "
        "count.", "partition"),
    gauge("jobs_pending", _jobs_by_reason, "Pending jobs by reason.", "partition", "reason"),
    gauge("pending_cpus", _pending_total(lambda job: job.cpus),
        "CPUs requested by pending jobs.", "partition"),
    gauge("pending_gpus", _pending_total(lambda job: job.gpus),
        "GPUs requested by pending jobs.", "partition"),
    gauge("pending_longest_wait_seconds", _longest_wait,
        "Time since the longest waiting job became eligible to start: a job that is held, or waits "
        "for its begin time, for other jobs or for its array's own limit, is not.", "partition"),
    *_job_owner_metrics("account", lambda job: job.account, per_user=False),
    *_job_owner_metrics("user", lambda job: job.user, per_user=True),
)
WAIT = Metric("batchjob_cluster_job_wait_seconds", "histogram",
    "Time from becoming eligible to start to the start, for jobs that started since the exporter "
    "did.", ("partition",))
# fmt: on


def wait_families(reading: JobsReading) -> Iterator[MetricFamily]:
    return histogram_families(
        WAIT, {labels(partition=name): histogram for name, histogram in reading.waits.items()}
    )

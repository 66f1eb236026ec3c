"""Metric families about the cluster's jobs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from batchjob.schedulers.cluster import ClusterJob
from batchjob.schedulers.states import JobState
from collectors.cluster import metric_types
from collectors.metric import Metric, MetricFamily, labels


class JobsReading(NamedTuple):
    """Jobs of one reading, the histogram of waits so far, and the Unix time of the reading."""

    jobs: Sequence[ClusterJob]
    waits: Mapping[str, metric_types.Histogram]
    at: float


def _job_gauge(
    name: str,
    amount: Callable[[ClusterJob], int | None],
    help: str,
    *label_names: str,
    **marks: bool,
) -> metric_types.ClusterMetric:
    """A gauge that sums an amount (None: nothing) over jobs, by the attributes that label it."""

    def rows(reading: JobsReading) -> Iterable[metric_types.Row]:
        return metric_types.totals(
            (*(getattr(job, each) for each in label_names), amount(job)) for job in reading.jobs
        )

    return metric_types.gauge(name, rows, help, *label_names, **marks)


def _pending_total(job: ClusterJob, requested: int | None) -> int | None:
    if job.state is not JobState.PENDING or requested is None:
        return None
    return requested * job.tasks


def _longest_wait(reading: JobsReading) -> Iterable[metric_types.Row]:
    longest: dict[str, float] = {}
    for job in reading.jobs:
        is_pending = job.state is JobState.PENDING
        if is_pending and job.eligible_time is not None and job.eligible_time <= reading.at:
            wait_seconds = reading.at - job.eligible_time
            longest[job.partition] = max(wait_seconds, longest.get(job.partition, 0.0))
    return sorted(longest.items())


def _job_owner_metrics(owner: str, per_user: bool) -> tuple[metric_types.ClusterMetric, ...]:
    """The live jobs of each account or user, and the CPUs allocated to them."""

    def live_jobs(job: ClusterJob) -> int | None:
        return job.tasks if job.state.is_live and getattr(job, owner) else None

    def allocated_cpus(job: ClusterJob) -> int | None:
        return job.cpus if job.state is JobState.RUNNING and getattr(job, owner) else None

    # fmt: off
    return (
        _job_gauge(f"{owner}_jobs", live_jobs,
            f"Jobs of the {owner} that are pending, running or suspended.", owner, "state",
            per_user=per_user),
        _job_gauge(f"{owner}_cpus", allocated_cpus,
            f"CPUs allocated to running jobs of the {owner}.", owner, per_user=per_user),
    )
    # fmt: on


# fmt: off
JOBS = (
    _job_gauge("jobs", lambda job: job.tasks if job.state.is_live else None,
        "Pending, running and suspended jobs; each array task counts. A job that is pending in "
        "several partitions counts in the first.", "partition", "state"),
    _job_gauge("jobs_in_phase",
        lambda job: job.tasks if job.phase and job.state is JobState.RUNNING else None,
        "Running jobs whose nodes are being prepared (configuring) or cleaned up (completing).",
        "partition", "phase"),
    _job_gauge("arrays_cut",
        lambda job: 1 if job.is_cut and job.state is JobState.PENDING else None,
        "Pending arrays whose list of tasks the scheduler cut: of their tasks, only those listed "
        "count.", "partition"),
    _job_gauge("jobs_pending", lambda job: _pending_total(job, 1), "Pending jobs by reason.",
        "partition", "reason"),
    _job_gauge("pending_cpus", lambda job: _pending_total(job, job.cpus),
        "CPUs requested by pending jobs.", "partition"),
    _job_gauge("pending_gpus", lambda job: _pending_total(job, job.gpus),
        "GPUs requested by pending jobs.", "partition"),
    metric_types.gauge("pending_longest_wait_seconds", _longest_wait,
        "Time since the longest waiting job became eligible to start: a job that is held, or waits "
        "for its begin time, for other jobs or for its array's own limit, is not.", "partition"),
    *_job_owner_metrics("account", per_user=False),
    *_job_owner_metrics("user", per_user=True),
)
WAIT = Metric("batchjob_cluster_job_wait_seconds", "histogram",
    "Time from becoming eligible to start to the start, for jobs that started since the exporter "
    "did.", ("partition",))
# fmt: on


def wait_families(reading: JobsReading) -> Iterator[MetricFamily]:
    return metric_types.histogram_families(
        WAIT, {labels(partition=name): histogram for name, histogram in reading.waits.items()}
    )

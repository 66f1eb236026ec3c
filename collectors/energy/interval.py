"""The interval between two snapshots of the node: its energy, and each job's share of it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from collectors.energy.split import Claim, GpuClaim
from collectors.jobs.view import JobCpu, JobName
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading

# A job is listed only when its owner is known, which takes at most a few seconds.
_LISTED_LATE_SECONDS = 5.0


class Key(NamedTuple):
    """The identity of a job, independent of its labels' text."""

    manager: str
    jobid: str
    user: str


class Processors(NamedTuple):
    """Busy CPU seconds of the node since boot, and the number of online CPUs."""

    busy_seconds: float
    cpus: int


class NodeSnapshot(NamedTuple):
    """Everything that is read of the node at one moment."""

    at: float  # Host.monotonic()
    epoch: float  # Host.clock()
    meter: MeterReading | None
    processors: Processors
    jobs: Mapping[Key, JobCpu]
    gpus: Mapping[str, GpuEnergyReading]  # by UUID


class EnergyInterval(NamedTuple):
    """An interval in monotonic seconds, which changes of the clock do not affect."""

    start: float
    end: float

    def lifetime_fraction(self, job: JobCpu | None) -> float:
        """The fraction of the interval in which the job existed, 0 to 1."""
        if job is None or self.end <= self.start:
            return 1.0
        start = self.start if job.started_at is None else max(self.start, job.started_at)
        end = self.end if job.ended_at is None else min(self.end, job.ended_at)
        return min(1.0, max(0.0, (end - start) / (self.end - self.start)))


def job_key(name: JobName) -> Key:
    """The key of the job with this name."""
    return Key(name.manager, name.jobid, name.user)


def interval_between(earlier: NodeSnapshot, later: NodeSnapshot) -> EnergyInterval:
    """The interval between two snapshots."""
    return EnergyInterval(earlier.at, later.at)


def busy_seconds(earlier: NodeSnapshot, later: NodeSnapshot) -> float:
    """CPU seconds for which the node was busy; the counter drops when CPUs go offline."""
    return max(0.0, later.processors.busy_seconds - earlier.processors.busy_seconds)


def cpu_claims(earlier: NodeSnapshot, later: NodeSnapshot) -> dict[Key, Claim]:
    """CPU time and allocation of every job that existed in the interval.

    Jobs without a known allocation share the unallocated CPUs equally.
    """
    interval = interval_between(earlier, later)
    seconds = later.at - earlier.at
    fractions = {key: interval.lifetime_fraction(job) for key, job in later.jobs.items()}
    present = {key: job for key, job in later.jobs.items() if fractions[key] > 0}
    known_cpus = sum(job.cpus for job in present.values() if job.cpus is not None)
    unknown = sum(job.cpus is None for job in present.values())
    cpus_each = max(0.0, later.processors.cpus - known_cpus) / unknown if unknown else 0.0
    # A larger value comes from a clock change, or from another job's counter.
    max_seconds = later.processors.cpus * seconds
    return {
        key: Claim(
            cpu_seconds=min(
                max_seconds, _cpu_seconds_used(earlier.jobs.get(key), job, interval, max_seconds)
            ),
            cpus=fractions[key] * (cpus_each if job.cpus is None else job.cpus),
        )
        for key, job in present.items()
    }


def _cpu_seconds_used(
    earlier: JobCpu | None, later: JobCpu, interval: EnergyInterval, max_seconds: float
) -> float:
    """CPU seconds within the interval; time that cannot be attributed counts as the system's."""
    if later.cpu_seconds is None:
        return 0.0
    if earlier is None:
        return later.cpu_seconds if _started_within(later, interval, max_seconds) else 0.0
    if earlier.cpu_seconds is None:
        return 0.0
    used = later.cpu_seconds - earlier.cpu_seconds
    return used if used >= 0 else later.cpu_seconds  # the job restarted with a new counter


def _started_within(job: JobCpu, interval: EnergyInterval, max_seconds: float) -> bool:
    """Whether all of the job's CPU time falls into this interval."""
    if job.started_at is None:
        return (job.cpu_seconds or 0.0) <= max_seconds
    return job.started_at >= interval.start - _LISTED_LATE_SECONDS


def gpu_claims(
    earlier: GpuEnergyReading,
    later: GpuEnergyReading,
    jobs: Mapping[Key, JobCpu],
    interval: EnergyInterval,
) -> dict[Key, GpuClaim]:
    """The claims of the jobs that used the GPU at the start or the end of the interval."""
    shares_by_job = _shares_by_job(earlier.shares) | _shares_by_job(later.shares)
    claims = {
        key: GpuClaim(
            sum(share.share for share in job_shares),
            _mean_activity(job_shares),
            interval.lifetime_fraction(jobs.get(key)),
        )
        for key, job_shares in shares_by_job.items()
    }
    return {
        key: claim
        for key, claim in claims.items()
        if claim.share > 0 and claim.lifetime_fraction > 0
    }


def _shares_by_job(shares: Iterable[GpuEnergyShare]) -> dict[Key, list[GpuEnergyShare]]:
    jobs: dict[Key, list[GpuEnergyShare]] = {}
    for share in shares:
        jobs.setdefault(job_key(share.job), []).append(share)
    return jobs


def _mean_activity(job_shares: list[GpuEnergyShare]) -> float | None:
    """The mean over a job's shares, weighted by size; None if one of them is unknown."""
    total_share = sum(share.share for share in job_shares)
    if total_share <= 0 or any(share.activity is None for share in job_shares):
        return None
    return sum(share.share * (share.activity or 0.0) for share in job_shares) / total_share

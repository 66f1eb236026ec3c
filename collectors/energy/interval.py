"""The interval between two snapshots of the node: its energy, and each job's share of it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from collectors.energy.split import Claim, GpuClaim
from collectors.jobs.view import JobCpu, JobName
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading

# A job is listed only when its owner is known, which takes at most a few seconds.
_LISTED_LATE_SECONDS = 5.0


class NodeSnapshot(NamedTuple):
    """Everything that is read of the node at one moment."""

    at: float  # Host.monotonic()
    epoch: float  # Host.clock()
    meter: MeterReading | None
    busy_seconds: float  # busy CPU seconds of the node since boot
    cpus: int  # online
    jobs: Mapping[JobName, JobCpu]
    gpus: Mapping[str, GpuEnergyReading]  # by UUID


def lifetime_fraction(start: float, end: float, job: JobCpu | None) -> float:
    """The fraction of an interval in which the job existed, 0 to 1.

    The interval is in monotonic seconds, which changes of the clock do not affect.
    """
    if job is None or end <= start:
        return 1.0
    started = start if job.started_at is None else max(start, job.started_at)
    ended = end if job.ended_at is None else min(end, job.ended_at)
    return min(1.0, max(0.0, (ended - started) / (end - start)))


def busy_seconds(earlier: NodeSnapshot, later: NodeSnapshot) -> float:
    """CPU seconds for which the node was busy; the counter drops when CPUs go offline."""
    return max(0.0, later.busy_seconds - earlier.busy_seconds)


def cpu_claims(earlier: NodeSnapshot, later: NodeSnapshot) -> dict[JobName, Claim]:
    """CPU time and allocation of every job that existed in the interval.

    Jobs without a known allocation share the unallocated CPUs equally.
    """
    fractions = {
        name: lifetime_fraction(earlier.at, later.at, job) for name, job in later.jobs.items()
    }
    present = {name: job for name, job in later.jobs.items() if fractions[name] > 0}
    known_cpus = sum(job.cpus for job in present.values() if job.cpus is not None)
    unknown = sum(job.cpus is None for job in present.values())
    cpus_each = max(0.0, later.cpus - known_cpus) / unknown if unknown else 0.0
    # A larger value comes from a clock change, or from another job's counter.
    max_seconds = later.cpus * (later.at - earlier.at)
    return {
        name: Claim(
            cpu_seconds=min(
                max_seconds,
                _cpu_seconds_used(earlier.jobs.get(name), job, earlier.at, max_seconds),
            ),
            cpus=fractions[name] * (cpus_each if job.cpus is None else job.cpus),
        )
        for name, job in present.items()
    }


def _cpu_seconds_used(
    earlier: JobCpu | None, later: JobCpu, start: float, max_seconds: float
) -> float:
    """CPU seconds within the interval; time that cannot be attributed counts as the system's."""
    if later.cpu_seconds is None:
        return 0.0
    if earlier is None:
        return later.cpu_seconds if _started_within(later, start, max_seconds) else 0.0
    if earlier.cpu_seconds is None:
        return 0.0
    used = later.cpu_seconds - earlier.cpu_seconds
    return used if used >= 0 else later.cpu_seconds  # the job restarted with a new counter


def _started_within(job: JobCpu, start: float, max_seconds: float) -> bool:
    """Whether all of the job's CPU time falls into the interval from `start` on."""
    if job.started_at is None:
        return (job.cpu_seconds or 0.0) <= max_seconds
    return job.started_at >= start - _LISTED_LATE_SECONDS


def gpu_claims(
    earlier: GpuEnergyReading, later: GpuEnergyReading, jobs: Mapping[JobName, JobCpu]
) -> dict[JobName, GpuClaim]:
    """The claims of the jobs that used the GPU at the start or the end of the interval."""
    shares_by_job = _shares_by_job(earlier.shares) | _shares_by_job(later.shares)
    claims = {
        name: GpuClaim(
            sum(share.share for share in job_shares),
            _mean_activity(job_shares),
            lifetime_fraction(earlier.at, later.at, jobs.get(name)),
        )
        for name, job_shares in shares_by_job.items()
    }
    return {
        name: claim
        for name, claim in claims.items()
        if claim.share > 0 and claim.lifetime_fraction > 0
    }


def _shares_by_job(shares: Iterable[GpuEnergyShare]) -> dict[JobName, list[GpuEnergyShare]]:
    jobs: dict[JobName, list[GpuEnergyShare]] = {}
    for share in shares:
        jobs.setdefault(share.job, []).append(share)
    return jobs


def _mean_activity(job_shares: list[GpuEnergyShare]) -> float | None:
    """The mean over a job's shares, weighted by size; None if one of them is unknown."""
    total_share = sum(share.share for share in job_shares)
    if total_share <= 0 or any(share.activity is None for share in job_shares):
        return None
    return sum(share.share * (share.activity or 0.0) for share in job_shares) / total_share

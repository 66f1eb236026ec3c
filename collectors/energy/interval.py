"""The interval between two snapshots of the node: its energy, and each job's share of it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from collectors.energy.split import Claim, GpuClaim
from collectors.jobs.view import JobCpu, JobName
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading

# A job is listed only once its owner is known, which takes a few seconds at most.
_LISTED_LATE_SECONDS = 5.0


class Key(NamedTuple):
    """The identity of a job, independent of its labels' text."""

    manager: str
    jobid: str
    user: str


class Processors(NamedTuple):
    """Busy CPU seconds since boot, and the CPUs that are online.

    The CPU time of the node's jobs is compared with them.
    """

    busy_seconds: float
    cpus: int


class NodeSnapshot(NamedTuple):
    """The node at one moment, everything read together."""

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

    def lived(self, job: JobCpu | None) -> float:
        """The fraction of the interval in which the job existed, 0 to 1."""
        if job is None or self.end <= self.start:
            return 1.0
        start = self.start if job.started_at is None else max(self.start, job.started_at)
        end = self.end if job.ended_at is None else min(self.end, job.ended_at)
        return min(1.0, max(0.0, (end - start) / (self.end - self.start)))


def key_of(name: JobName) -> Key:
    """The job that goes by this name."""
    return Key(name.manager, name.jobid, name.user)


def span(earlier: NodeSnapshot, later: NodeSnapshot) -> EnergyInterval:
    """The time between."""
    return EnergyInterval(earlier.at, later.at)


def busy_seconds(earlier: NodeSnapshot, later: NodeSnapshot) -> float:
    """CPU seconds for which the node was busy; CPUs that go offline take theirs with them."""
    return max(0.0, later.processors.busy_seconds - earlier.processors.busy_seconds)


def claims(earlier: NodeSnapshot, later: NodeSnapshot) -> dict[Key, Claim]:
    """CPU time and allocation of every job that existed in the interval.

    Jobs without a known allocation share the unallocated CPUs equally.
    """
    during = span(earlier, later)
    seconds = later.at - earlier.at
    lived = {key: during.lived(job) for key, job in later.jobs.items()}
    present = {key: job for key, job in later.jobs.items() if lived[key] > 0}
    known = sum(job.cpus for job in present.values() if job.cpus is not None)
    unknown = sum(job.cpus is None for job in present.values())
    each = max(0.0, later.processors.cpus - known) / unknown if unknown else 0.0
    # A larger value comes from a clock change, or from another job's counter.
    most = later.processors.cpus * seconds
    return {
        key: Claim(
            cpu_seconds=min(most, _used(earlier.jobs.get(key), job, during, most)),
            cpus=lived[key] * (each if job.cpus is None else job.cpus),
        )
        for key, job in present.items()
    }


def _used(before: JobCpu | None, now: JobCpu, during: EnergyInterval, most: float) -> float:
    """CPU seconds within the interval; those that cannot be attributed fall to the system."""
    if now.cpu_seconds is None:
        return 0.0
    if before is None:
        return now.cpu_seconds if _born(now, during, most) else 0.0
    if before.cpu_seconds is None:
        return 0.0
    used = now.cpu_seconds - before.cpu_seconds
    return used if used >= 0 else now.cpu_seconds  # the job was started again, with a new counter


def _born(job: JobCpu, during: EnergyInterval, most: float) -> bool:
    """Whether all of the job's CPU time falls into this interval."""
    if job.started_at is None:
        return (job.cpu_seconds or 0.0) <= most
    return job.started_at >= during.start - _LISTED_LATE_SECONDS


def gpu_claims(
    earlier: GpuEnergyReading,
    later: GpuEnergyReading,
    jobs: Mapping[Key, JobCpu],
    during: EnergyInterval,
) -> dict[Key, GpuClaim]:
    """Who held the GPU at either end of the interval, each for its lifetime within it."""
    held = _by_job(earlier.holdings) | _by_job(later.holdings)
    claimed = {
        key: GpuClaim(
            sum(each.share for each in parts), _activity(parts), during.lived(jobs.get(key))
        )
        for key, parts in held.items()
    }
    return {key: claim for key, claim in claimed.items() if claim.share > 0 and claim.lived > 0}


def _by_job(holdings: Iterable[GpuEnergyShare]) -> dict[Key, list[GpuEnergyShare]]:
    jobs: dict[Key, list[GpuEnergyShare]] = {}
    for holding in holdings:
        jobs.setdefault(key_of(holding.job), []).append(holding)
    return jobs


def _activity(parts: list[GpuEnergyShare]) -> float | None:
    """Mean over a job's instances, weighted by size; None if one of them is unknown."""
    whole = sum(each.share for each in parts)
    if whole <= 0 or any(each.activity is None for each in parts):
        return None
    return sum(each.share * (each.activity or 0.0) for each in parts) / whole

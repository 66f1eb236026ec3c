"""The interval between two snapshots of the node, and the division of its energy among jobs.

Every function that divides energy conserves it.

Energy above idle is divided by CPU time as measured on the node; idle energy is divided by
allocation, since an allocation keeps the machine running. The energy of CPU time that no job used
is the system's; that of CPUs that no job reserved is unallocated.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from collectors.jobs.view import JobCpu, JobName
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading

# A job is listed only when its owner is known, which takes at most a few seconds.
_LISTED_LATE_SECONDS = 5.0
_ROUNDING = 1e-9  # of a sum of shares
_UNREAD_SECONDS = 1.0  # of an interval in which the power need not have been read


class NodeSnapshot(NamedTuple):
    """Everything that is read of the node at one moment."""

    at: float  # Host.monotonic()
    epoch: float  # Host.clock()
    meter: MeterReading | None
    busy_seconds: float  # busy CPU seconds of the node since boot
    cpus: int  # online
    jobs: Mapping[JobName, JobCpu]
    gpus: Mapping[str, GpuEnergyReading]  # by UUID


class Claim(NamedTuple):
    cpu_seconds: float  # used
    cpus: float  # allocated CPUs, times the fraction of the interval in which the job existed


class GpuClaim(NamedTuple):
    share: float  # of the compute slices
    activity: float | None  # fraction of the time its instance was busy; None: unknown
    lifetime_fraction: float = 1.0  # fraction of the interval in which the job existed
    power_fraction: float | None = None  # of the integral of its power, while the job held it


class Split(NamedTuple):
    """Joules by account; their sum is the energy that was split."""

    active: Mapping[JobName, float]
    idle: Mapping[JobName, float]
    system: float
    unallocated: float


def split_host(
    joules: float,
    idle_joules: float,
    cpus: float,
    busy_seconds: float,
    claims: Mapping[JobName, Claim],
) -> Split:
    """Divide the energy of a node without its GPUs, `idle_joules` of which are idle energy.

    `cpus` are the node's, `busy_seconds` its CPU time neither idle, waiting for I/O nor stolen. The
    sum of the jobs may exceed the node's (clocks, oversubscription) and is then used instead.
    """
    used = sum(claim.cpu_seconds for claim in claims.values())
    busy = max(busy_seconds, used)
    idle = min(joules, idle_joules) if busy > 0 else joules
    allocated = sum(claim.cpus for claim in claims.values())
    return Split(
        active=_shares(joules - idle, {k: claim.cpu_seconds for k, claim in claims.items()}, busy),
        idle=_shares(idle, {k: claim.cpus for k, claim in claims.items()}, max(cpus, allocated)),
        system=_remainder(joules - idle, used, busy),
        unallocated=_remainder(idle, allocated, max(cpus, allocated)),
    )


def carry_over(
    claims: Mapping[JobName, Claim],
    carried: Mapping[JobName, float],
    busy_seconds: float,
    max_carried_seconds: float,
) -> tuple[dict[JobName, Claim], dict[JobName, float]]:
    """The claims of an interval with carried CPU seconds, and those to carry to the next one.

    Jobs and node are read one after the other. CPU time of jobs beyond the node's busy time is
    counted by the node in the next interval, where it would fall to the system. At most
    `max_carried_seconds` are carried: a larger difference is not skew, but two clocks that differ.
    """
    claimed_seconds = dict(carried)
    for key, claim in claims.items():
        claimed_seconds[key] = claimed_seconds.get(key, 0.0) + claim.cpu_seconds
    total = sum(claimed_seconds.values())
    fraction = min(1.0, busy_seconds / total) if total > 0 and busy_seconds > 0 else 1.0
    now = {
        key: Claim(seconds * fraction, claims[key].cpus if key in claims else 0.0)
        for key, seconds in claimed_seconds.items()
    }
    if fraction == 1:
        return now, {}
    kept = min(1.0, max_carried_seconds / (total - total * fraction))
    return now, {key: seconds * (1 - fraction) * kept for key, seconds in claimed_seconds.items()}


def split_gpu(joules: float, idle_joules: float, claims: Mapping[JobName, GpuClaim]) -> Split:
    """Divide the energy of one GPU: idle energy by slices and time, the rest by activity as well.

    If the activity of an instance is not known, only slices are used; also if the shares add up to
    more than the GPU, because jobs followed one another: an activity is that of the time before a
    reading, which is 0 for a job that came after it. Energy above idle is caused
    by the jobs on the GPU, even if they existed for a small part of the interval; if the idle
    energy is not known (0), the rest contains it and is divided by time as well. The power of an
    instance cannot be measured exactly: it shares memory, clocks and cooling with its siblings.
    Where the power was read all the time, each job gets what its part of the time took.
    """
    if claims and all(claim.power_fraction is not None for claim in claims.values()):
        return _split_by_power(joules, idle_joules, claims)
    idle = min(joules, idle_joules) if claims else joules
    slices = {k: claim.share * claim.lifetime_fraction for k, claim in claims.items()}
    used = sum(slices.values())
    work = {k: slices[k] * (claim.activity or 0.0) for k, claim in claims.items()}
    activities = [claim.activity for claim in claims.values()]
    followed_one_another = sum(claim.share for claim in claims.values()) > 1 + _ROUNDING
    use_activity = not followed_one_another and None not in activities and any(work.values())
    weights = work if use_activity else slices
    job_fraction = sum(claim.share for claim in claims.values()) if idle_joules > 0 else used
    total = sum(weights.values())
    fraction = 0.0 if total == 0 else 1.0 if use_activity else min(1.0, job_fraction)
    job_joules = (joules - idle) * fraction
    return Split(
        active=_shares(job_joules, weights, total),
        idle=_shares(idle, slices, max(1.0, used)),
        system=0.0,
        unallocated=joules - idle - job_joules + _remainder(idle, used, max(1.0, used)),
    )


def _split_by_power(joules: float, idle_joules: float, claims: Mapping[JobName, GpuClaim]) -> Split:
    """Joules by the integral of the power, of which a job's idle part is that of its time."""
    parts = {key: claim.share * (claim.power_fraction or 0.0) for key, claim in claims.items()}
    total = max(1.0, sum(parts.values()))
    of_jobs = {key: joules * part / total for key, part in parts.items()}
    idle = {
        key: min(of_jobs[key], idle_joules * claim.share * claim.lifetime_fraction)
        for key, claim in claims.items()
    }
    return Split(
        active={key: of_jobs[key] - idle[key] for key in claims},
        idle=idle,
        system=0.0,
        unallocated=_remainder(joules, sum(parts.values()), total),
    )


def _shares(joules: float, weights: Mapping[JobName, float], total: float) -> dict[JobName, float]:
    return {k: joules * (weight / total) if total > 0 else 0.0 for k, weight in weights.items()}


def _remainder(joules: float, used: float, total: float) -> float:
    return joules * ((total - used) / total) if total > 0 else joules


def lifetime_fraction(start: float, end: float, job: JobCpu | None) -> float:
    """The fraction of an interval in which the job existed, 0 to 1.

    The interval is in monotonic seconds, which changes of the clock do not affect.
    """
    if end <= start:
        return 1.0
    started, ended = _time_within(start, end, job)
    return min(1.0, max(0.0, (ended - started) / (end - start)))


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
                max_seconds, _cpu_seconds_used(earlier.jobs.get(name), job, earlier.at, max_seconds)
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
    holders = {
        name: (sum(x.share for x in shares), all(x.confirmed for x in shares), jobs.get(name))
        for name, shares in shares_by_job.items()
    }
    power_fractions = _power_fractions(earlier.at, later, holders)
    claims = {
        name: GpuClaim(
            sum(share.share for share in job_shares),
            _mean_activity(job_shares),
            lifetime_fraction(earlier.at, later.at, jobs.get(name)),
            power_fractions.get(name),
        )
        for name, job_shares in shares_by_job.items()
    }
    return {
        name: claim
        for name, claim in claims.items()
        if claim.share > 0 and claim.lifetime_fraction > 0
    }


def _power_fractions(
    start: float,
    later: GpuEnergyReading,
    claims: Mapping[JobName, tuple[float, bool, JobCpu | None]],
) -> dict[JobName, float]:
    """The parts of the integral of a GPU's power since `start` that fall in the jobs' times.

    `claims` are their shares, and whether more than the environment says so. Where jobs overlap and
    claim more than the GPU, those that only name it have none, who held all of it at other times
    has what the others leave, and the parts shrink if that is still more. Nothing if the power was
    not read from the begin of the interval to its end.
    """
    power = later.power
    unread = max(power[0][0] - start, later.at - power[-1][0]) if power else float("inf")
    if unread > _UNREAD_SECONDS:
        return {}
    times = {name: _time_within(start, later.at, job) for name, (*_, job) in claims.items()}
    whole = _joules_at(power, later.at) - _joules_at(power, start)
    fractions = dict.fromkeys(claims, 0.0)
    edges = {start, later.at, *(edge for time in times.values() for edge in time)}
    for began, ended in pairwise(sorted(edges)) if whole > 0 else ():
        present = [n for n, (first, last) in times.items() if first <= began and ended <= last]
        if sum(claims[name][0] for name in present) > 1 + _ROUNDING:
            present = [name for name in present if claims[name][1]] or present
        shares = [claims[name][0] for name in present]
        parts = sum(share for share in shares if share < 1)
        rest = 1 - parts if parts < 1 else 1.0
        crowd = max(1.0, parts + rest * shares.count(1))
        part = (_joules_at(power, ended) - _joules_at(power, began)) / whole / crowd
        for name, share in zip(present, shares, strict=True):
            fractions[name] += part * (rest if share == 1 else 1)
    return fractions if whole > 0 else {}


def _time_within(start: float, end: float, job: JobCpu | None) -> tuple[float, float]:
    ended = end if job is None or job.ended_at is None else min(end, job.ended_at)
    started = start if job is None or job.started_at is None else max(start, job.started_at)
    return min(started, ended), ended


def _joules_at(power: Sequence[tuple[float, float]], at: float) -> float:
    """The integral up to a moment, between its points and no further."""
    after = bisect_right(power, at, key=lambda point: point[0])
    if after in (0, len(power)):
        return power[min(after, len(power) - 1)][1]
    (began, before), (ended, later) = power[after - 1], power[after]
    return before + (later - before) * (at - began) / (ended - began)


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

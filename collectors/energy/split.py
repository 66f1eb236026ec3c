"""The attribution of one interval's energy. Every function here conserves it.

Energy above idle is divided by CPU time as measured on the node; idle energy is divided by
allocation, since a reservation keeps the machine running. What no job used is the system's; what no
job reserved is unallocated.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")


class Claim(NamedTuple):
    """A job's share of a node during one interval."""

    cpu_seconds: float  # used
    cpus: float  # allocated CPUs, times the fraction of the interval in which the job existed


class GpuClaim(NamedTuple):
    """A job's share of a GPU during one interval."""

    share: float  # of the compute slices
    activity: float | None  # fraction of the time its instance was busy; None: unknown
    lived: float = 1.0  # fraction of the interval in which the job existed


class Split(NamedTuple, Generic[K]):
    """Joules by account; their sum is the energy that was split."""

    active: Mapping[K, float]
    idle: Mapping[K, float]
    system: float
    unallocated: float

    def total(self) -> float:
        """The sum of all accounts."""
        return sum(self.active.values()) + sum(self.idle.values()) + self.system + self.unallocated


def split_host(
    joules: float,
    idle_joules: float,
    cpus: float,
    busy_seconds: float,
    claims: Mapping[K, Claim],
) -> Split[K]:
    """Divide the energy of a node without its GPUs, `idle_joules` of which are idle energy.

    `cpus` are the node's, `busy_seconds` its CPU time neither idle, waiting for I/O nor stolen. The
    sum of the jobs may exceed the node's (clocks, oversubscription): then it is the whole.
    """
    used = sum(claim.cpu_seconds for claim in claims.values())
    busy = max(busy_seconds, used)
    idle = min(joules, idle_joules) if busy > 0 else joules
    allocated = sum(claim.cpus for claim in claims.values())
    return Split(
        active=_shares(joules - idle, {k: claim.cpu_seconds for k, claim in claims.items()}, busy),
        idle=_shares(idle, {k: claim.cpus for k, claim in claims.items()}, max(cpus, allocated)),
        system=_rest(joules - idle, used, busy),
        unallocated=_rest(idle, allocated, max(cpus, allocated)),
    )


def carried_over(
    claims: Mapping[K, Claim], carried: Mapping[K, float], busy_seconds: float, most: float
) -> tuple[dict[K, Claim], dict[K, float]]:
    """The claims of an interval with carried CPU seconds, and those to carry to the next one.

    Jobs and node are read one after the other. CPU time of jobs beyond the node's busy time is
    counted by the node in the next interval, where it would fall to the system. At most `most`
    seconds are carried: a larger difference is not skew, but two clocks that differ permanently.
    """
    wanted = {
        key: carried.get(key, 0.0) + (claims[key].cpu_seconds if key in claims else 0.0)
        for key in (*claims, *(key for key in carried if key not in claims))
    }
    total = sum(wanted.values())
    part = min(1.0, busy_seconds / total) if total > 0 and busy_seconds > 0 else 1.0
    kept = min(1.0, most / (total - total * part)) if part < 1 else 0.0
    return (
        {
            key: Claim(seconds * part, claims[key].cpus if key in claims else 0.0)
            for key, seconds in wanted.items()
        },
        {key: seconds * (1 - part) * kept for key, seconds in wanted.items()} if kept else {},
    )


def split_gpu(joules: float, idle_joules: float, claims: Mapping[K, GpuClaim]) -> Split[K]:
    """Divide the energy of one GPU: idle energy by slices and time, the rest by activity as well.

    If the activity of an instance is not known, slices alone decide. Energy above idle is caused by
    those who hold the GPU, however short a part of the interval they existed; where the idle energy
    is not known (0), it is a part of the rest, so that time counts there too. The power of an
    instance cannot be measured exactly: it shares memory, clocks and cooling with its siblings.
    """
    idle = min(joules, idle_joules) if claims else joules
    slices = {k: claim.share * claim.lived for k, claim in claims.items()}
    held = sum(slices.values())
    work = {k: slices[k] * (claim.activity or 0.0) for k, claim in claims.items()}
    by_work = all(claim.activity is not None for claim in claims.values()) and any(work.values())
    weights = work if by_work else slices
    caused = sum(claim.share for claim in claims.values()) if idle_joules > 0 else held
    whole = sum(weights.values())
    part = 0.0 if whole == 0 else 1.0 if by_work else min(1.0, caused)
    by_jobs = (joules - idle) * part
    return Split(
        active=_shares(by_jobs, weights, whole),
        idle=_shares(idle, slices, max(1.0, held)),
        system=0.0,
        unallocated=joules - idle - by_jobs + _rest(idle, held, max(1.0, held)),
    )


def _shares(joules: float, weights: Mapping[K, float], whole: float) -> dict[K, float]:
    return {k: joules * (weight / whole) if whole > 0 else 0.0 for k, weight in weights.items()}


def _rest(joules: float, taken: float, whole: float) -> float:
    return joules * ((whole - taken) / whole) if whole > 0 else joules

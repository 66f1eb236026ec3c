"""Who used the energy of one interval. Every function here conserves it.

The energy above idle follows CPU time, as measured on the node; the idle energy follows allocation,
since who reserves a machine keeps it on. What no job used is the system's; what no job reserved is
unallocated.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")


class Claim(NamedTuple):
    """A job's part of a node during one interval."""

    cpu_seconds: float  # used
    cpus: float  # allocated, times the part of the interval in which the job lived


class GpuClaim(NamedTuple):
    """A job's part of a GPU during one interval."""

    share: float  # of its slices, times the part of the interval in which the job lived
    activity: float | None  # part of the time its instance was at work; None: not known


class Split(NamedTuple, Generic[K]):
    """Joules by account; their sum is the energy that was split."""

    active: Mapping[K, float]
    idle: Mapping[K, float]
    system: float
    unallocated: float

    def total(self) -> float:
        """All accounts together."""
        return sum(self.active.values()) + sum(self.idle.values()) + self.system + self.unallocated


def split_host(
    joules: float,
    idle_joules: float,
    cpus: float,
    busy_seconds: float,
    claims: Mapping[K, Claim],
) -> Split[K]:
    """Divide what a node's host part used, `idle_joules` of it at rest.

    `cpus` are the node's, `busy_seconds` its CPU time neither idle, waiting for I/O nor stolen.
    Jobs may sum to more than the node (clocks, oversubscription): then their sum is the whole.
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
    """The claims of an interval with CPU seconds carried over, and those to carry to the next.

    Jobs and node are read one after the other. What jobs have used beyond the node's busy time, the
    node counts in the next interval, and would be the system's there. `most` seconds are carried at
    most: more is no skew but two clocks that differ for good.
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
    """Divide what one GPU used: at rest by slices, the rest by slices times activity.

    Where the activity of an instance is not known, slices decide alone. The power of an instance
    cannot be had exactly: it shares memory, clocks and cooling with its siblings.
    """
    idle = min(joules, idle_joules) if claims else joules
    slices = {k: claim.share for k, claim in claims.items()}
    held = sum(slices.values())
    work = {k: claim.share * (claim.activity or 0.0) for k, claim in claims.items()}
    by_work = all(claim.activity is not None for claim in claims.values()) and any(work.values())
    weights, whole = (work, sum(work.values())) if by_work else (slices, max(1.0, held))
    return Split(
        active=_shares(joules - idle, weights, whole),
        idle=_shares(idle, slices, max(1.0, held)),
        system=0.0,
        unallocated=_rest(joules - idle, sum(weights.values()), whole)
        + _rest(idle, held, max(1.0, held)),
    )


def _shares(joules: float, weights: Mapping[K, float], whole: float) -> dict[K, float]:
    return {k: joules * (weight / whole) if whole > 0 else 0.0 for k, weight in weights.items()}


def _rest(joules: float, taken: float, whole: float) -> float:
    return joules * ((whole - taken) / whole) if whole > 0 else joules

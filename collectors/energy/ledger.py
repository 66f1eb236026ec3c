"""The energy accounts: joules and grams by job, and those of no job, over all intervals.

With the idle power that divides them: configured, or measured while nothing runs.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from collectors.emissions.providers.provider import EmissionFactor
from collectors.energy.split import (
    NodeSnapshot,
    Split,
    carry_over,
    cpu_claims,
    gpu_claims,
    split_gpu,
    split_host,
)
from collectors.jobs.view import JobName
from collectors.power.meter import GpuEnergyReading, Meter, MeterReading, energy_between

_WINDOW_SECONDS = 60.0
# Hardware ages and is replaced: a minimum measured once must not apply forever.
_RISE_PER_DAY = 0.01
_DAY_SECONDS = 86400.0

LearnedIdlePower = tuple[float, float]
"""The watts of the lowest mean of an idle minute, and its time in epoch seconds."""


@dataclass(eq=False)
class IdlePower:
    """The idle power; 0 until an idle minute was measured: all energy is split by CPU time.

    Busy minutes are not used: the lowest power of a node that is never idle is not its idle power.
    """

    configured: float | None = None
    learned: LearnedIdlePower | None = None
    _joules: float = 0.0
    _seconds: float = 0.0

    def watts(self, epoch: float) -> float | None:
        """The current idle power; None while it is not known."""
        if self.configured is not None or self.learned is None:
            return self.configured
        return _learned_watts(self.learned, epoch)

    def joules(self, seconds: float, epoch: float) -> float:
        return (self.watts(epoch) or 0.0) * seconds

    def observe(self, joules: float, seconds: float, epoch: float, is_idle: bool) -> None:
        """Record an interval; `is_idle`: almost nothing ran."""
        if not is_idle:
            self._joules = self._seconds = 0.0
            return
        self._joules += joules
        self._seconds += seconds
        if self._seconds < _WINDOW_SECONDS:
            return
        mean = self._joules / self._seconds
        self._joules = self._seconds = 0.0
        if self.learned is None or mean <= _learned_watts(self.learned, epoch):
            self.learned = mean, epoch


def _learned_watts(learned: LearnedIdlePower, epoch: float) -> float:
    watts, learned_at = learned
    days = max(0.0, epoch - learned_at) / _DAY_SECONDS
    return watts * (1 + _RISE_PER_DAY * days)


Component = Literal["host", "gpu"]
Kind = Literal["active", "idle"]
Consumer = Literal["jobs", "system", "unallocated"]

_JOULES_PER_KWH = 3.6e6
# A node counts as idle while less than this fraction of its CPU time is used.
_IDLE_CPU_RATIO = 0.05
# How long a job is kept after the last snapshot that lists it: after a restart, the exporter finds
# its jobs one by one.
_JOB_RETENTION_SECONDS = 120.0
# Longest gap between two counter readings. The energy of a longer gap is known, but can no longer
# be attributed to jobs.
_MAX_COUNTER_GAP_SECONDS = 300.0


class JobAccount(NamedTuple):
    """One job's totals since it was first seen."""

    name: JobName
    joules: Mapping[tuple[Component, Kind], float]
    grams: Mapping[str, float]  # by provider


class EnergyAccounts(NamedTuple):
    """What a scrape exposes: the state of the ledger and its meters; replaced at each tick."""

    jobs: tuple[JobAccount, ...] = ()
    node: Mapping[tuple[Component, Consumer], float] = {}
    metered_joules: float = 0.0  # total of the meters, for comparison with the accounts
    overdrawn_joules: float = 0.0  # energy of the GPUs beyond that of the meter that includes them
    seconds_without_data: float = 0.0
    gpu_seconds_without_data: float = 0.0
    idle_watts: float | None = None
    idle_configured: bool = False
    meter: Meter | None = None
    includes_gpus: bool = False
    read_at: Mapping[str, float] = {}  # by meter, in Host.monotonic() seconds
    tick_errors: int = 0

    def deviation(self) -> float | None:
        """The fraction of the metered energy by which the accounts differ from it."""
        if self.metered_joules <= 0:
            return None
        return abs(sum(self.node.values()) - self.metered_joules) / self.metered_joules


class LedgerEntry:
    def __init__(self, seen_at: float) -> None:
        self.joules: dict[tuple[Component, Kind], float] = defaultdict(float)
        self.grams: dict[str, float] = defaultdict(float)
        self.seen_at = seen_at


class Ledger:
    """The energy accounts of the node and its jobs. Written by one thread only."""

    def __init__(
        self, idle: IdlePower, includes_gpus: bool = False, max_gap_seconds: float = 30.0
    ) -> None:
        """`max_gap_seconds`: power readings further apart are not interpolated."""
        self.includes_gpus = includes_gpus
        self.max_gap_seconds = max_gap_seconds
        self.idle = idle
        self.gpu_idle: dict[str, IdlePower] = defaultdict(IdlePower)
        self.jobs: dict[JobName, LedgerEntry] = {}
        self.node: dict[tuple[Component, Consumer], float] = defaultdict(float)
        self.metered_joules = 0.0
        self.overdrawn_joules = 0.0
        self.seconds_without_data = 0.0
        self.gpu_seconds_without_data = 0.0
        self.last_snapshot: NodeSnapshot | None = None  # up to which the node is booked
        self._carried_cpu_seconds: dict[JobName, float] = {}  # not yet counted by /proc/stat
        self.last_gpu_readings: dict[str, GpuEnergyReading] = {}
        self.accounted_until: float | None = None  # earlier energy is booked or counted as missing

    def book(
        self, snapshot: NodeSnapshot, factors: Iterable[EmissionFactor] = ()
    ) -> EnergyAccounts:
        """Attribute the energy since the last snapshot, and return the accounts."""
        if self.accounted_until is None:
            self.accounted_until = self.last_snapshot.at if self.last_snapshot else snapshot.at
        self._add_splits(
            (*self._gpu_splits(snapshot), *self._host_splits(snapshot)), factors, snapshot.at
        )
        self._drop_ended_jobs(snapshot)
        return self._accounts(snapshot)

    def book_gpus(self, snapshot: NodeSnapshot, factors: Iterable[EmissionFactor] = ()) -> None:
        """Attribute only the energy of the GPUs, which does not need a meter of the node."""
        self._add_splits(self._gpu_splits(snapshot), factors, snapshot.at)

    def _host_splits(self, snapshot: NodeSnapshot) -> Iterator[tuple[Component, Split]]:
        earlier = self.last_snapshot
        if not self._has_new_reading(snapshot):
            if earlier is None or snapshot.at - earlier.at > self._max_gap(earlier):
                self.last_snapshot = None
                self._count_gap(snapshot)
            return
        joules = None if earlier is None else self._host_joules(earlier, snapshot)
        self.last_snapshot = snapshot
        if earlier is None or joules is None:
            self._count_gap(snapshot)
            return
        self.accounted_until = snapshot.at
        self.metered_joules += joules
        yield "host", self._split_host(joules, earlier, snapshot)

    def _split_host(self, joules: float, earlier: NodeSnapshot, snapshot: NodeSnapshot) -> Split:
        assert earlier.meter is not None
        assert snapshot.meter is not None
        seconds = snapshot.meter.at - earlier.meter.at
        # The counter drops when CPUs go offline.
        busy = max(0.0, snapshot.busy_seconds - earlier.busy_seconds)
        cpus = snapshot.cpus
        is_idle = busy < _IDLE_CPU_RATIO * cpus * (snapshot.at - earlier.at)
        self.idle.observe(joules, seconds, snapshot.epoch, is_idle)
        idle = self.idle.joules(seconds, snapshot.epoch)
        max_cpu_seconds = cpus * (snapshot.at - earlier.at)
        carried = {
            key: used for key, used in self._carried_cpu_seconds.items() if key in snapshot.jobs
        }
        claims, self._carried_cpu_seconds = carry_over(
            cpu_claims(earlier, snapshot), carried, busy, max_cpu_seconds
        )
        return split_host(joules, idle, cpus, busy, claims)

    def _host_joules(self, earlier: NodeSnapshot, snapshot: NodeSnapshot) -> float | None:
        """The energy of the node without its GPUs; None if a part of it is unknown."""
        assert earlier.meter is not None
        assert snapshot.meter is not None
        node = energy_between(earlier.meter, snapshot.meter, self._max_gap(earlier))
        if node is None or not self.includes_gpus:
            return node
        gpu_joules = 0.0
        for uuid in earlier.gpus.keys() | snapshot.gpus.keys():
            joules = _gpu_joules(earlier.gpus.get(uuid), snapshot.gpus.get(uuid))
            if joules is None:
                return None
            gpu_joules += joules
        self.overdrawn_joules += max(0.0, gpu_joules - node)
        return max(0.0, node - gpu_joules)

    def _gpu_splits(self, snapshot: NodeSnapshot) -> Iterator[tuple[Component, Split]]:
        """Attribute the energy of each GPU between its own two latest readings."""
        for uuid, later in snapshot.gpus.items():
            earlier = self.last_gpu_readings.get(uuid)
            if earlier is not None and later.at <= earlier.at:
                continue
            self.last_gpu_readings[uuid] = later
            if earlier is None:
                continue
            joules = _gpu_joules(earlier, later)
            if joules is None:
                self.gpu_seconds_without_data += later.at - earlier.at
                continue
            claims = gpu_claims(earlier, later, snapshot.jobs)
            idle = self.gpu_idle[uuid]
            idle.observe(joules, later.at - earlier.at, snapshot.epoch, is_idle=not claims)
            self.metered_joules += joules
            yield (
                "gpu",
                split_gpu(joules, idle.joules(later.at - earlier.at, snapshot.epoch), claims),
            )

    def _has_new_reading(self, snapshot: NodeSnapshot) -> bool:
        """Whether the meter, and each GPU that must be subtracted from it, has a new reading."""
        earlier = self.last_snapshot
        if snapshot.meter is None or earlier is None or earlier.meter is None:
            return snapshot.meter is not None
        uuids = earlier.gpus.keys() & snapshot.gpus.keys() if self.includes_gpus else ()
        return snapshot.meter.at > earlier.meter.at and all(
            snapshot.gpus[uuid].at > earlier.gpus[uuid].at for uuid in uuids
        )

    def _max_gap(self, earlier: NodeSnapshot) -> float:
        has_counter = earlier.meter is not None and earlier.meter.joules is not None
        return max(self.max_gap_seconds, _MAX_COUNTER_GAP_SECONDS if has_counter else 0.0)

    def _count_gap(self, snapshot: NodeSnapshot) -> None:
        assert self.accounted_until is not None
        self._carried_cpu_seconds = {}
        self.seconds_without_data += snapshot.at - self.accounted_until
        self.accounted_until = snapshot.at

    def _add_splits(
        self,
        splits: Iterable[tuple[Component, Split]],
        factors: Iterable[EmissionFactor],
        at: float,
    ) -> None:
        grams_per_joule = {x.provider: x.grams_per_kilowatt_hour / _JOULES_PER_KWH for x in factors}
        for component, split in splits:
            self._add_shares(component, "active", split.active, grams_per_joule, at)
            self._add_shares(component, "idle", split.idle, grams_per_joule, at)
            self.node[component, "unallocated"] += split.unallocated
            if component == "host":
                self.node[component, "system"] += split.system

    def _add_shares(
        self,
        component: Component,
        kind: Kind,
        shares: Mapping[JobName, float],
        grams_per_joule: Mapping[str, float],
        at: float,
    ) -> None:
        self.node[component, "jobs"] += sum(shares.values())
        for key, joules in shares.items():
            job = self.jobs.setdefault(key, LedgerEntry(at))
            job.joules[component, kind] += joules
            for provider, rate in grams_per_joule.items():
                job.grams[provider] += joules * rate

    def _drop_ended_jobs(self, snapshot: NodeSnapshot) -> None:
        for key in snapshot.jobs.keys() & self.jobs.keys():
            self.jobs[key].seen_at = snapshot.at
        self.jobs = {
            key: job
            for key, job in self.jobs.items()
            if snapshot.at - job.seen_at <= _JOB_RETENTION_SECONDS
        }

    def _accounts(self, snapshot: NodeSnapshot) -> EnergyAccounts:
        return EnergyAccounts(
            jobs=tuple(
                JobAccount(name, dict(job.joules), dict(job.grams))
                for name, job in self.jobs.items()
                if name in snapshot.jobs
            ),
            node=dict(self.node),
            metered_joules=self.metered_joules,
            overdrawn_joules=self.overdrawn_joules,
            seconds_without_data=self.seconds_without_data,
            gpu_seconds_without_data=self.gpu_seconds_without_data,
            idle_watts=self.idle.watts(snapshot.epoch),
            idle_configured=self.idle.configured is not None,
            includes_gpus=self.includes_gpus,
        )


def _gpu_joules(earlier: GpuEnergyReading | None, later: GpuEnergyReading | None) -> float | None:
    if earlier is None or later is None:
        return None
    first, second = (MeterReading(x.at, joules=x.joules, series=x.series) for x in (earlier, later))
    return energy_between(first, second, _MAX_COUNTER_GAP_SECONDS)

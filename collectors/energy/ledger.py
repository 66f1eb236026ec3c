"""The accounts: joules and grams by job, and those of no job, summed over all intervals."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from collectors.emissions.factor import EmissionFactor
from collectors.energy.idle import IdlePower
from collectors.energy.interval import (
    EnergyInterval,
    Key,
    NodeSnapshot,
    busy_seconds,
    claims,
    gpu_claims,
)
from collectors.energy.split import Split, carried_over, split_gpu, split_host
from collectors.jobs.view import JobName
from collectors.power.meter import GpuEnergyReading, MeterReading, energy_between

Component = Literal["host", "gpu"]
Kind = Literal["active", "idle"]
Consumer = Literal["jobs", "system", "unallocated"]

_JOULES_PER_KWH = 3.6e6
# A node is quiet while less than this fraction of its CPU time is used.
_QUIET = 0.05
# How long a job is kept after the last snapshot that lists it: after a restart, the exporter finds
# the jobs one by one.
_KEPT_SECONDS = 120.0
# Longest gap between two counter readings. The energy of a longer gap is known, but can no longer
# be attributed to jobs.
_COUNTERS_BRIDGE_SECONDS = 300.0


class JobAccount(NamedTuple):
    """One job's totals since it was first seen."""

    name: JobName
    joules: Mapping[tuple[Component, Kind], float]
    grams: Mapping[str, float]  # by provider


class EnergyAccounts(NamedTuple):
    """The published state of the ledger; immutable."""

    jobs: tuple[JobAccount, ...] = ()
    node: Mapping[tuple[Component, Consumer], float] = {}
    metered_joules: float = 0.0  # total of the meters, for comparison with the accounts
    overdrawn_joules: float = 0.0  # energy of the GPUs beyond that of the meter that includes them
    seconds_without_data: float = 0.0
    gpu_seconds_without_data: float = 0.0
    idle_watts: float | None = None

    def deviation(self) -> float | None:
        """The fraction of the metered energy by which the accounts differ from it."""
        if self.metered_joules <= 0:
            return None
        return abs(sum(self.node.values()) - self.metered_joules) / self.metered_joules


class LedgerEntry:
    """The ledger's entry for a job."""

    def __init__(self, seen_at: float) -> None:
        self.joules: dict[tuple[Component, Kind], float] = defaultdict(float)
        self.grams: dict[str, float] = defaultdict(float)
        self.seen_at = seen_at


class Ledger:
    """Written by one thread only."""

    def __init__(self, idle: IdlePower, includes_gpus: bool = False, longest: float = 30.0) -> None:
        """`longest`: maximum seconds between two power readings that may be interpolated."""
        self.includes_gpus = includes_gpus
        self.longest = longest
        self.idle = idle
        self.gpu_idle: dict[str, IdlePower] = defaultdict(IdlePower)
        self.jobs: dict[Key, LedgerEntry] = {}
        self.node: dict[tuple[Component, Consumer], float] = defaultdict(float)
        self.metered_joules = 0.0
        self.overdrawn_joules = 0.0
        self.seconds_without_data = 0.0
        self.gpu_seconds_without_data = 0.0
        self.since: NodeSnapshot | None = None  # the snapshot up to which the node is booked
        self._carried: dict[Key, float] = {}  # CPU seconds that /proc/stat had not counted yet
        self.gpus_since: dict[str, GpuEnergyReading] = {}
        self.settled_until: float | None = None  # earlier energy is booked or counted as missing

    def book(self, look: NodeSnapshot, factors: Iterable[EmissionFactor] = ()) -> EnergyAccounts:
        """Attribute the energy since the last snapshot, and return the accounts."""
        if self.settled_until is None:
            self.settled_until = self.since.at if self.since else look.at
        self._enter((*self._gpus(look), *self._host(look)), factors, look.at)
        self._forget(look)
        return self._accounts(look)

    def book_gpus(self, look: NodeSnapshot, factors: Iterable[EmissionFactor] = ()) -> None:
        """Attribute the energy of GPUs alone: unlike the rest of the node's, it needs no meter."""
        self._enter(self._gpus(look), factors, look.at)

    def _host(self, look: NodeSnapshot) -> Iterator[tuple[Component, Split[Key]]]:
        since = self.since
        if not self._is_new(look):
            if since is None or look.at - since.at > self._bridges(since):
                self.since = None
                self._missed(look)
            return
        joules = None if since is None else self._host_joules(since, look)
        self.since = look
        if since is None or joules is None:
            self._missed(look)
            return
        self.settled_until = look.at
        self.metered_joules += joules
        yield "host", self._split_host(joules, since, look)

    def _split_host(self, joules: float, since: NodeSnapshot, look: NodeSnapshot) -> Split[Key]:
        assert since.meter is not None
        assert look.meter is not None
        seconds = look.meter.at - since.meter.at
        busy = busy_seconds(since, look)
        cpus = look.processors.cpus
        quiet = busy < _QUIET * cpus * (look.at - since.at)
        self.idle.observe(joules, seconds, look.epoch, quiet)
        idle = self.idle.joules(seconds, look.epoch)
        most = cpus * (look.at - since.at)
        carried = {key: used for key, used in self._carried.items() if key in look.jobs}
        held, self._carried = carried_over(claims(since, look), carried, busy, most)
        return split_host(joules, idle, cpus, busy, held)

    def _host_joules(self, since: NodeSnapshot, look: NodeSnapshot) -> float | None:
        """The node without its GPUs; None if a part of the sum is not known."""
        assert since.meter is not None
        assert look.meter is not None
        node = energy_between(since.meter, look.meter, self._bridges(since))
        if node is None or not self.includes_gpus:
            return node
        taken = 0.0
        for uuid in since.gpus.keys() | look.gpus.keys():
            joules = _gpu_joules(since.gpus.get(uuid), look.gpus.get(uuid))
            if joules is None:
                return None
            taken += joules
        self.overdrawn_joules += max(0.0, taken - node)
        return max(0.0, node - taken)

    def _gpus(self, look: NodeSnapshot) -> Iterator[tuple[Component, Split[Key]]]:
        """Each GPU by itself, from its own last reading to the next."""
        for uuid, now in look.gpus.items():
            since = self.gpus_since.get(uuid)
            if since is not None and now.at <= since.at:
                continue
            self.gpus_since[uuid] = now
            if since is None:
                continue
            joules = _gpu_joules(since, now)
            if joules is None:
                self.gpu_seconds_without_data += now.at - since.at
                continue
            during = EnergyInterval(since.at, now.at)
            held = gpu_claims(since, now, look.jobs, during)
            idle = self.gpu_idle[uuid]
            idle.observe(joules, now.at - since.at, look.epoch, quiet=not held)
            self.metered_joules += joules
            yield "gpu", split_gpu(joules, idle.joules(now.at - since.at, look.epoch), held)

    def _is_new(self, look: NodeSnapshot) -> bool:
        """Whether the meter, and each GPU that must be subtracted from it, has a new reading."""
        since = self.since
        if look.meter is None or since is None or since.meter is None:
            return look.meter is not None
        both = since.gpus.keys() & look.gpus.keys() if self.includes_gpus else ()
        return look.meter.at > since.meter.at and all(
            look.gpus[uuid].at > since.gpus[uuid].at for uuid in both
        )

    def _bridges(self, since: NodeSnapshot) -> float:
        counts = since.meter is not None and since.meter.joules is not None
        return max(self.longest, _COUNTERS_BRIDGE_SECONDS) if counts else self.longest

    def _missed(self, look: NodeSnapshot) -> None:
        assert self.settled_until is not None
        self._carried = {}
        self.seconds_without_data += look.at - self.settled_until
        self.settled_until = look.at

    def _enter(
        self,
        splits: Iterable[tuple[Component, Split[Key]]],
        factors: Iterable[EmissionFactor],
        at: float,
    ) -> None:
        rates = {x.provider: x.grams_per_kilowatt_hour / _JOULES_PER_KWH for x in factors}
        for component, split in splits:
            self._enter_split(component, split, rates, at)

    def _enter_split(
        self, component: Component, split: Split[Key], rates: Mapping[str, float], at: float
    ) -> None:
        kinds: tuple[tuple[Kind, Mapping[Key, float]], ...] = (
            ("active", split.active),
            ("idle", split.idle),
        )
        for kind, shares in kinds:
            for key, joules in shares.items():
                job = self.jobs.setdefault(key, LedgerEntry(at))
                job.joules[component, kind] += joules
                self.node[component, "jobs"] += joules
                for provider, grams_per_joule in rates.items():
                    job.grams[provider] += joules * grams_per_joule
        self.node[component, "jobs"] += 0.0
        self.node[component, "unallocated"] += split.unallocated
        if component == "host":
            self.node[component, "system"] += split.system

    def _forget(self, look: NodeSnapshot) -> None:
        for key in look.jobs.keys() & self.jobs.keys():
            self.jobs[key].seen_at = look.at
        kept = {k: job for k, job in self.jobs.items() if look.at - job.seen_at <= _KEPT_SECONDS}
        self.jobs = kept

    def _accounts(self, look: NodeSnapshot) -> EnergyAccounts:
        return EnergyAccounts(
            jobs=tuple(
                JobAccount(look.jobs[key].name, dict(job.joules), dict(job.grams))
                for key, job in self.jobs.items()
                if key in look.jobs
            ),
            node=dict(self.node),
            metered_joules=self.metered_joules,
            overdrawn_joules=self.overdrawn_joules,
            seconds_without_data=self.seconds_without_data,
            gpu_seconds_without_data=self.gpu_seconds_without_data,
            idle_watts=self.idle.watts(look.epoch),
        )


def _gpu_joules(since: GpuEnergyReading | None, now: GpuEnergyReading | None) -> float | None:
    if since is None or now is None:
        return None
    earlier, later = (MeterReading(x.at, joules=x.joules, series=x.series) for x in (since, now))
    return energy_between(earlier, later, _COUNTERS_BRIDGE_SECONDS)

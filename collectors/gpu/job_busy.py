"""The use of GPUs by job: samples of 200 ms or a second, and the jobs that held the GPU in each.

And the most memory that each job had on each GPU, from all changes that the driver showed.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from batchjob.quantities.gpu import PROFILE_PEAKS, PROFILED_SECONDS
from collectors.gpu.busy import BusySample
from collectors.gpu.devices import Unit, units_of
from collectors.gpu.holders import Holding
from collectors.gpu.reading import GpuProcess, GpuReading, ProfileSample
from collectors.jobs.view import JobLifetime, JobName

_SETTLED_SECONDS = 30.0
"""Age at which a sample is given to a job: processes are looked for every 15 s, and GPUs read every
10 s, so a holder is known by then."""

_MPS_MARGIN_SECONDS = 5.0
"""Clients of MPS are listed each second, and holders looked up every 2 s."""

_Sample = TypeVar("_Sample", BusySample, ProfileSample)

GpuSums = Mapping[str, float]
"""Counters and peaks by their names in COUNTED or JOB_COUNTED of `metrics`."""

_UnitOfJob = tuple[JobName, str, str]  # with the GPU's UUID and the GPU instance


class FreeGpuTime(NamedTuple):
    """The node's GPUs that no job verifiably held, added up over the time of a job."""

    busy_seconds: float = 0.0
    observed_seconds: float = 0.0


@dataclass
class Tenure:
    """The time in which a job held a GPU, in epoch seconds."""

    began: float
    ended: float = float("inf")
    is_confirmed: bool = False  # at any time of it

    def overlaps(self, sample: BusySample | ProfileSample) -> bool:
        return self.began < sample.ended and self.ended > sample.began

    def fraction_of(self, sample: BusySample | ProfileSample) -> float:
        overlap = min(self.ended, sample.ended) - max(self.began, sample.began)
        return overlap / (sample.ended - sample.began)


class JobBusyCounters:
    """The sums of all jobs, for one thread; a copy of `sums` is for all."""

    def __init__(self) -> None:
        self.sums: dict[_UnitOfJob, GpuSums] = {}
        self.free: Mapping[JobName, FreeGpuTime] = {}
        self.free_on_node = FreeGpuTime()
        # By job: what of this was before its begin, and the job's sum once its end is divided.
        self.free_before: dict[JobName, FreeGpuTime] = {}
        self.free_at_end: dict[JobName, FreeGpuTime] = {}
        # By the GPU's UUID, with `/` and the GPU instance for one of these.
        self.tenures: dict[str, dict[JobName, Tenure]] = {}
        self.divided_until: dict[str, float] = {}
        self._profiled_until: dict[str, float] = {}
        # The last time without interruption in which processes under MPS were seen.
        self.under_mps: dict[str, tuple[float, float]] = {}

    def update(
        self,
        readings: Iterable[GpuReading],
        holdings: Iterable[Holding],
        lifetimes: Mapping[JobName, JobLifetime],
        now: float,
        memory: Iterable[tuple[_UnitOfJob, float]] = (),
    ) -> None:
        """Take note of the holders and of their memory, and divide the samples that are old enough.

        A job's sums are kept as long as it has a lifetime. `now` are epoch seconds.
        """
        self.sums = {key: sums for key, sums in self.sums.items() if key[0] in lifetimes}
        free_before = self.free_on_node
        held: dict[str, dict[JobName, Holding]] = {}
        for each in holdings:
            if each.share is not None or each.processes:  # else others contradict its claim
                held.setdefault(_key(each.unit), {})[each.job] = each
        for reading in readings:
            self._add_reading(reading, held, lifetimes, now)
        for unit, total in memory:
            if unit[0] in lifetimes:
                self._add(unit, {}, {"memory_peak_bytes": total})
        if self.divided_until:
            self._add_free_time(lifetimes, free_before, now - _SETTLED_SECONDS)

    def _add_reading(
        self,
        reading: GpuReading,
        held: Mapping[str, Mapping[JobName, Holding]],
        lifetimes: Mapping[JobName, JobLifetime],
        now: float,
    ) -> None:
        uuid = reading.gpu.uuid
        units = {unit.gpu_instance: _key(unit) for unit in units_of(reading.gpu)}
        for key in units.values():
            self._follow_holders(key, held.get(key, {}), lifetimes, now)
        if reading.busy_samples is not None:
            for job in held.get(uuid, ()):
                self._add((job, uuid, ""), {"busy_seconds": 0.0, "observed_seconds": 0.0})
            for busy in _settled(uuid, reading.busy_samples, now, self.divided_until):
                self._divide_busy(uuid, busy, lifetimes)
        for sample in _settled(uuid, reading.profile, now, self._profiled_until):
            if sample.gpu_instance in units:
                self._divide_profile(uuid, units[sample.gpu_instance], sample, lifetimes)
        self._follow_mps(reading, now)

    def _add(self, key: _UnitOfJob, more: GpuSums, peaks: GpuSums = MappingProxyType({})) -> None:
        before = self.sums.get(key, {})
        sums = {name: value + before.get(name, 0.0) for name, value in more.items()}
        highest = {name: max(value, before.get(name, 0.0)) for name, value in peaks.items()}
        self.sums[key] = {**before, **sums, **highest}

    def _divide_busy(self, uuid: str, sample: BusySample, exposed: Container[JobName]) -> None:
        """Give a sample to its holders, and to the node's free time if none is confirmed."""
        seconds = sample.ended - sample.began
        if not any(each.is_confirmed for each in self._tenures_in(uuid, sample).values()):
            self.free_on_node = FreeGpuTime(
                self.free_on_node.busy_seconds + sample.busy_seconds,
                self.free_on_node.observed_seconds + seconds,
            )
        for job, (work, part, reason) in self._parts(uuid, sample).items():
            time = seconds * part
            busy = {"busy_seconds": sample.busy_seconds * work, "observed_seconds": time}
            if job in exposed:
                self._add((job, uuid, ""), {f"{reason}_seconds": time} if reason else busy)

    def _divide_profile(
        self, uuid: str, key: str, sample: ProfileSample, exposed: Container[JobName]
    ) -> None:
        """Give a sample to the unit's holders, if they are not several at a time.

        A peak is what was one job's alone.
        """
        values, seconds = sample.values, sample.values[PROFILED_SECONDS]
        for job, (work, part, reason) in self._parts(key, sample).items():
            own = {name: value * work for name, value in values.items()}
            own[PROFILED_SECONDS] = seconds * part
            ratios = {name: values[of] / seconds for name, of in PROFILE_PEAKS.items()}
            if job in exposed and not reason:
                peaks = ratios if work == 1.0 else {}
                self._add((job, uuid, sample.gpu_instance), own, peaks)

    def _add_free_time(
        self, lifetimes: Mapping[JobName, JobLifetime], before: FreeGpuTime, until: float
    ) -> None:
        """Give each job the free time since its begin, when the samples of its begin are divided.

        `before` is the node's sum before this update, `until` the time that it covers now.
        """
        free = {}
        for job, life in lifetimes.items():
            if job not in self.free_before and (life.started_at or 0.0) > until:
                continue
            begin = self.free_before.setdefault(job, before)
            so_far = FreeGpuTime(*(x - y for x, y in zip(self.free_on_node, begin, strict=True)))
            if life.ended_at is not None and life.ended_at <= until:
                so_far = self.free_at_end.setdefault(job, so_far)
            else:
                self.free_at_end.pop(job, None)
            free[job] = so_far
        self.free = free
        self.free_before = {job: self.free_before[job] for job in free}
        self.free_at_end = {job: self.free_at_end[job] for job in self.free_at_end.keys() & free}

    def _follow_holders(
        self,
        key: str,
        holdings: Mapping[JobName, Holding],
        lifetimes: Mapping[JobName, JobLifetime],
        now: float,
    ) -> None:
        tenures = self.tenures.setdefault(key, {})
        for job, holding in holdings.items():
            if job not in tenures:
                life = lifetimes.get(job)
                started = life.started_at if life and life.started_at else 0.0
                tenures[job] = Tenure(max(started, now - _SETTLED_SECONDS))
            tenures[job].began = min(tenures[job].began, now)  # the clock may have been set back
            tenures[job].ended = float("inf")
            tenures[job].is_confirmed |= holding.confirmed
        for job in tenures.keys() - holdings.keys():
            if tenures[job].ended > now:
                life = lifetimes.get(job)
                tenures[job].ended = min(life.ended_at, now) if life and life.ended_at else now
        oldest = now - 2 * _SETTLED_SECONDS
        self.tenures[key] = {job: each for job, each in tenures.items() if each.ended > oldest}

    def _follow_mps(self, reading: GpuReading, now: float) -> None:
        if any(each.mps for each in reading.processes or ()):
            first, last = self.under_mps.get(reading.gpu.uuid, (now, now))
            first = first if now - last < _MPS_MARGIN_SECONDS else now
            self.under_mps[reading.gpu.uuid] = first, now

    def _tenures_in(self, key: str, sample: _Sample) -> dict[JobName, Tenure]:
        tenures = self.tenures.get(key, {})
        return {job: each for job, each in tenures.items() if each.overlaps(sample)}

    def _parts(self, key: str, sample: _Sample) -> dict[JobName, tuple[float, float, str]]:
        """Each holder's part of the work in a sample and of its time; why not told ("": it is).

        The work in a sample is its only holder's, or divided by time among jobs that followed one
        another. A job whose environment alone names the GPU takes nothing from confirmed holders.
        """
        tenures = self._tenures_in(key, sample)
        confirmed = {job: each for job, each in tenures.items() if each.is_confirmed}
        holders = confirmed or tenures
        first, last = self.under_mps.get(key.partition("/")[0], (float("inf"), float("-inf")))
        under_mps = first - _MPS_MARGIN_SECONDS < sample.ended < last + _MPS_MARGIN_SECONDS
        in_turn = sorted(holders.values(), key=lambda each: each.began)
        is_shared = any(one.ended > other.began for one, other in pairwise(in_turn))
        shared = "shared" if confirmed else "claimed"
        reason = "mps" if under_mps else shared if is_shared else ""
        only = len(holders) == 1
        times = {job: each.fraction_of(sample) for job, each in tenures.items()}
        return {
            job: (1.0 if only else time, time, reason if job in holders else reason or "shared")
            for job, time in times.items()
        }


def _key(unit: Unit) -> str:
    return f"{unit.gpu.uuid}/{unit.gpu_instance}" if unit.instance else unit.gpu.uuid


def _settled(
    uuid: str, samples: Sequence[_Sample], now: float, divided_until: dict[str, float]
) -> Iterator[_Sample]:
    """Those that are old enough, each of them once."""
    until = min(now, divided_until.get(uuid, 0.0))
    for sample in samples:
        if until < sample.ended <= now - _SETTLED_SECONDS:
            until = sample.ended
            yield sample
    divided_until[uuid] = until


def memory_of_jobs(
    changes: Iterable[tuple[str, tuple[GpuProcess, ...]]],
    readings: Mapping[str, GpuReading],
    job_of_process: Mapping[tuple[str, int], JobName],
) -> Iterator[tuple[_UnitOfJob, float]]:
    """The bytes of jobs after each change, which has a GPU's UUID and its processes, and now.

    A process whose memory is unknown leaves its job without a value at that moment.
    """
    now = ((uuid, reading.processes or ()) for uuid, reading in readings.items())
    for uuid, processes in (*changes, *now):
        if uuid not in readings:
            continue
        reading = readings[uuid]._replace(processes=processes)
        for unit in units_of(reading.gpu):
            of_jobs: dict[JobName, list[float | None]] = {}
            for each in reading.processes_on(unit) or ():
                job = job_of_process.get((uuid, each.pid))
                if job is not None:
                    of_jobs.setdefault(job, []).append(each.memory_bytes)
            for job, sizes in of_jobs.items():
                known = [size for size in sizes if size is not None]
                if len(known) == len(sizes):
                    yield (job, uuid, unit.gpu_instance), sum(known)

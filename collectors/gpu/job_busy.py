"""The busy seconds of GPUs by job: samples of 200 ms, and the jobs that held the GPU in each.

And the most memory that each job had on each GPU, from all changes that the driver showed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from collectors.gpu.busy import LONGEST_INTERVAL_SECONDS, BusySample
from collectors.gpu.devices import units_of
from collectors.gpu.holders import Holding
from collectors.gpu.reading import GpuProcess, GpuReading
from collectors.jobs.view import JobLifetime, JobName

_SETTLED_SECONDS = 30.0
"""Age at which a sample is given to a job: processes are looked for every 15 s, and GPUs read every
10 s, so a holder is known by then."""

_MPS_MARGIN_SECONDS = 2 * LONGEST_INTERVAL_SECONDS


class JobGpuBusy(NamedTuple):
    """The sums of a job on a GPU; the last two are of time in which its use could not be told."""

    busy_seconds: float = 0.0
    observed_seconds: float = 0.0
    shared_seconds: float = 0.0
    mps_seconds: float = 0.0


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

    def overlaps(self, sample: BusySample) -> bool:
        return self.began < sample.ended and self.ended > sample.began

    def fraction_of(self, sample: BusySample) -> float:
        overlap = min(self.ended, sample.ended) - max(self.began, sample.began)
        return overlap / (sample.ended - sample.began)


class JobBusyCounters:
    """The sums of all jobs, for one thread; `totals` may be read by any."""

    def __init__(self) -> None:
        self.totals: Mapping[tuple[JobName, str], JobGpuBusy] = {}  # by job and GPU UUID
        self.free: Mapping[JobName, FreeGpuTime] = {}
        self.free_on_node = FreeGpuTime()
        # By job: what of this was before its begin, and the job's sum once its end is divided.
        self.free_before: dict[JobName, FreeGpuTime] = {}
        self.free_at_end: dict[JobName, FreeGpuTime] = {}
        self.tenures: dict[str, dict[JobName, Tenure]] = {}
        self.divided_until: dict[str, float] = {}
        # The last time without interruption in which processes under MPS were seen.
        self.under_mps: dict[str, tuple[float, float]] = {}

    def update(
        self,
        readings: Iterable[GpuReading],
        holdings: Iterable[Holding],
        lifetimes: Mapping[JobName, JobLifetime],
        now: float,
    ) -> None:
        """Take note of the holders, and divide the samples that are old enough.

        A job's sums are kept as long as it has a lifetime. `now` are epoch seconds.
        """
        totals = {key: sums for key, sums in self.totals.items() if key[0] in lifetimes}
        holdings, free_before = list(holdings), self.free_on_node
        for reading in readings:
            if reading.busy_samples is None:
                continue
            uuid = reading.gpu.uuid
            held = {each.job: each for each in holdings if _holds_board(each, uuid)}
            for job in held:
                totals.setdefault((job, uuid), JobGpuBusy())
            self._follow_holders(uuid, held, lifetimes, now)
            divided_until = min(now, self.divided_until.get(uuid, 0.0))
            for sample in reading.busy_samples:
                if divided_until < sample.ended <= now - _SETTLED_SECONDS:
                    self._divide(uuid, sample, totals)
                    divided_until = sample.ended
            self.divided_until[uuid] = divided_until
            self._follow_mps(reading, now)
        self.totals = totals
        if self.divided_until:
            self._add_free_time(lifetimes, free_before, now - _SETTLED_SECONDS)

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
        uuid: str,
        holdings: Mapping[JobName, Holding],
        lifetimes: Mapping[JobName, JobLifetime],
        now: float,
    ) -> None:
        tenures = self.tenures.setdefault(uuid, {})
        for job, holding in holdings.items():
            if job in tenures:
                tenures[job].ended = float("inf")
            else:
                life = lifetimes.get(job)
                started = life.started_at if life and life.started_at else 0.0
                tenures[job] = Tenure(max(started, now - _SETTLED_SECONDS))
            tenures[job].is_confirmed |= holding.confirmed
        for job in tenures.keys() - holdings.keys():
            if tenures[job].ended > now:
                life = lifetimes.get(job)
                tenures[job].ended = life.ended_at if life and life.ended_at else now
        oldest = now - 2 * _SETTLED_SECONDS
        self.tenures[uuid] = {job: each for job, each in tenures.items() if each.ended > oldest}

    def _follow_mps(self, reading: GpuReading, now: float) -> None:
        if any(each.mps for each in reading.processes or ()):
            first, last = self.under_mps.get(reading.gpu.uuid, (now, now))
            first = first if now - last < _MPS_MARGIN_SECONDS else now
            self.under_mps[reading.gpu.uuid] = first, now

    def _divide(
        self, uuid: str, sample: BusySample, totals: dict[tuple[JobName, str], JobGpuBusy]
    ) -> None:
        """Give a sample whole to its only holder, or by time to jobs that followed one another."""
        tenures = self.tenures[uuid]
        holders = {job: each for job, each in tenures.items() if each.overlaps(sample)}
        first, last = self.under_mps.get(uuid, (float("inf"), float("-inf")))
        under_mps = first - _MPS_MARGIN_SECONDS < sample.ended < last + _MPS_MARGIN_SECONDS
        in_turn = sorted(holders.values(), key=lambda each: each.began)
        is_shared = any(one.ended > other.began for one, other in pairwise(in_turn))
        seconds = sample.ended - sample.began
        if not any(each.is_confirmed for each in holders.values()):
            self.free_on_node = FreeGpuTime(
                self.free_on_node.busy_seconds + sample.busy_seconds,
                self.free_on_node.observed_seconds + seconds,
            )
        for job, tenure in holders.items():
            sums = totals.get((job, uuid))
            if sums is None:
                continue  # the job is not exposed any more
            fraction = 1.0 if len(holders) == 1 else tenure.fraction_of(sample)
            if under_mps:
                sums = sums._replace(mps_seconds=sums.mps_seconds + seconds * fraction)
            elif is_shared:
                sums = sums._replace(shared_seconds=sums.shared_seconds + seconds * fraction)
            else:
                sums = sums._replace(
                    busy_seconds=sums.busy_seconds + sample.busy_seconds * fraction,
                    observed_seconds=sums.observed_seconds + seconds * fraction,
                )
            totals[job, uuid] = sums


def _holds_board(holding: Holding, uuid: str) -> bool:
    """Whether the job holds or uses the whole GPU; a claim that others contradict is neither."""
    is_holder = holding.share is not None or bool(holding.processes)
    return holding.unit.gpu.uuid == uuid and holding.unit.instance is None and is_holder


JobMemoryPeaks = Mapping[tuple[JobName, str, str], float]
"""Bytes by job, the GPU's UUID, and the MIG instance ("": the whole GPU)."""


def add_peaks(
    peaks: JobMemoryPeaks,
    changes: Iterable[tuple[str, tuple[GpuProcess, ...]]],
    readings: Mapping[str, GpuReading],
    job_of_process: Mapping[tuple[str, int], JobName],
    exposed: Iterable[JobName],
) -> JobMemoryPeaks:
    """The peaks with these changes, each of which has a GPU's UUID and its processes then.

    A process whose memory is unknown leaves its job without a peak at that moment. Jobs that are
    not exposed any more are left out.
    """
    kept = set(exposed)
    found = {key: peak for key, peak in peaks.items() if key[0] in kept}
    now = ((uuid, reading.processes or ()) for uuid, reading in readings.items())
    for uuid, processes in (*changes, *now):
        if uuid not in readings:
            continue
        reading = readings[uuid]._replace(processes=processes)
        for unit in units_of(reading.gpu):
            sums: dict[JobName, float | None] = {}
            for each in reading.processes_on(unit) or ():
                job = job_of_process.get((uuid, each.pid))
                if job in kept:
                    sums[job] = _add(sums.get(job, 0.0), each.memory_bytes)
            for job, total in sums.items():
                key = job, uuid, unit.gpu_instance
                if total is not None:
                    found[key] = max(total, found.get(key, 0.0))
    return found


def _add(total: float | None, more: float | None) -> float | None:
    return None if total is None or more is None else total + more

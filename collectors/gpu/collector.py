"""The GPU collector: NVIDIA and AMD GPUs and the jobs to which they are allocated."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from batchjob.runtime.background import Refresher
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration, one_of, with_metavar
from collectors.collector import Collector, CollectorModule
from collectors.gpu import checkpoint
from collectors.gpu.allocation import AllottedDevices, read_context
from collectors.gpu.busy import LONGEST_INTERVAL_SECONDS
from collectors.gpu.checkpoint import GpuCounters
from collectors.gpu.devices import Gpu, GpuTable, Unit, read_mig_minors
from collectors.gpu.families import families
from collectors.gpu.holders import AllocationConflict, GpuMap, Holding, build_map
from collectors.gpu.job_busy import JobBusyCounters, memory_of_jobs
from collectors.gpu.job_files import PrologFiles
from collectors.gpu.metrics import METRICS, UTILIZATION
from collectors.gpu.reading import GpuReading, GpuValues, KnownGpu, max_reading_age
from collectors.gpu.vendor import vendors
from collectors.host import Host
from collectors.jobs.view import JobLifetime, JobName
from collectors.metric import MetricFamily
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare
from collectors.state import StateFile

if TYPE_CHECKING:
    from collectors.jobs.collector import JobsCollector

__all__ = ["METRICS", "GpuOptions", "build"]

log = logging.getLogger(__name__)

# After a restart, jobs are found one by one.
_JOBS_FOUND_SECONDS = 120.0


@with_metavar("DIRECTORY")
def _parse_directory(value: Any) -> str:
    if isinstance(value, str) and (value == "" or os.path.isabs(value)):
        return value
    raise ValueError(f"expected an absolute path, got {value!r}")


@dataclass(frozen=True)
class GpuOptions:
    """How GPUs are read and mapped to jobs."""

    # fmt: off
    interval: float = option(10.0,
        "Interval between readings of a GPU; at most 10 s for NVIDIA's, whose driver forgets after "
        "14 s how busy they were.", parse=duration)
    job_files: str = option("",
        "Directory in which a prolog records the jobs of each GPU, in the format of "
        "dcgm-exporter's --hpc-job-mapping-dir.", parse=_parse_directory)
    slurm_numbers: str = option("index",
        "Meaning of Slurm's GPU numbers: NVML index (AutoDetect=nvml) or minor number of the "
        "device file (File= in gres.conf).", parse=one_of("index", "minor"))
    pbs_home: tuple[str, ...] = option(("/var/spool/pbs", "/var/spool/torque"),
        "PBS_HOME, or Torque's home directory, which contains the jobs' aux files.",
        parse=_parse_directory, repeat=True)
    # fmt: on


class _HeldGpu(NamedTuple):
    """When a GPU was last read (monotonic seconds), and who held it since the reading before."""

    read_at: float
    holders: Mapping[tuple[JobName, Unit], Holding]
    since: Mapping[tuple[JobName, Unit], Holding]  # who held it since it was read


class GpuCollector(Collector):
    """Reads GPUs in the background; a scrape exposes the last readings."""

    def __init__(self, host: Host, options: GpuOptions, jobs: "JobsCollector | None") -> None:
        self._host = host
        self._options = options
        self._jobs = jobs
        self._prolog_files = PrologFiles(options.job_files)
        self._allotted = AllottedDevices(host)
        self._vendors = vendors(host, options.interval)
        self.table = GpuTable(())
        self._current_conflicts: frozenset[tuple[str, JobName]] = frozenset()
        self._conflict_counts: Counter[str] = Counter()
        self._last_map = GpuMap()
        self._job_busy = JobBusyCounters()
        self.counters = GpuCounters()
        self._published_at = float("-inf")
        self._state = StateFile(host, checkpoint.FILE, "GPU counters")
        self._restored_jobs: frozenset[JobName] = frozenset()
        self._restored_until = float("-inf")
        self._restore()
        self._map_lock = threading.Lock()
        self._held_gpus: Mapping[str, _HeldGpu] = {}  # by UUID
        # The map is refreshed more often than the GPUs are read: it is cheap, and short jobs use
        # GPUs too.
        self.mapper = Refresher(
            "gpu-map",
            self.refresh_map,
            min(options.interval, LONGEST_INTERVAL_SECONDS) / 5,
            max_reading_age(options.interval),
            host.monotonic,
        )

    def start(self) -> None:
        for vendor in self._vendors.values():
            vendor.on_new_process = self.mapper.refresh
            vendor.start()
        self.mapper.start()

    def stop(self) -> None:
        self.mapper.stop()
        for vendor in self._vendors.values():
            vendor.stop()

    def collect(self) -> list[MetricFamily]:
        errors = [each.errors() for each in self._vendors.values()]
        return families(
            gpus=self._known_gpus(),
            now=self._host.monotonic(),
            holdings=self._current_map().holdings,
            counters=self.counters,
            conflicts=self._conflict_counts,
            errors={key: count for each in errors for key, count in each.items()},
            drivers={name: vendor.version for name, vendor in self._vendors.items()},
        )

    def gpu_energy(self) -> list[GpuEnergyReading]:
        """The energy of each GPU with a current reading, and its holders then; thread-safe."""
        gpus = self._known_gpus()
        if self._is_newer_than_map(gpus):
            self.mapper.refresh()
        held_gpus = self._held_gpus
        result = []
        for each in gpus:
            uuid, energy = each.gpu.uuid, each.observed.value.energy if each.observed else None
            if each.observed is None or energy is None:
                continue
            metered = [other for other in gpus if uuid in (other.gpu.uuid, other.meter)]
            held = tuple(
                _energy_share(holding, other.observed.value, len(metered))
                for other in metered
                if other.observed and other.gpu.uuid in held_gpus
                for holding in held_gpus[other.gpu.uuid].holders.values()
                if holding.share
            )
            power = () if each.gpu.partitioned else each.observed.value.power
            result.append(
                GpuEnergyReading(uuid, energy.at, energy.joules, energy.series, held, power)
            )
        return result

    def holdings(self) -> list[tuple[Holding, GpuValues]]:
        """The GPUs that jobs hold now, each with its readings; thread-safe.

        An instance's own values take precedence over those of its board, such as power and
        temperature.
        """
        readings = {
            each.gpu.uuid: each.observed.value for each in self._known_gpus() if each.observed
        }
        return [
            (each, {**reading.values, **reading.values_of(each.unit)} if reading else {})
            for each in self._current_map().holdings
            for reading in [readings.get(each.unit.gpu.uuid)]
        ]

    def refresh_map(self) -> GpuMap:
        """Map GPUs to the current jobs; thread-safe."""
        with self._map_lock:
            changes = [x for vendor in self._vendors.values() for x in vendor.process_changes()]
            gpus, before = self._known_gpus(), self._last_map.job_of_process
            readings = {each.gpu.uuid: each.observed.value for each in gpus if each.observed}
            current = self._build_map(gpus, readings) if gpus else GpuMap()
            self._held_gpus = {
                each.gpu.uuid: self._held_gpu(each.gpu.uuid, each.observed.at, current)
                for each in gpus
                if each.observed
            }
            self._job_busy.update(
                readings.values(),
                current.holdings,
                self._lifetimes(),
                self._host.clock(),
                memory_of_jobs(changes, readings, {**before, **current.job_of_process}),
            )
            self._publish()
            self._count_conflicts(current.conflicts)
            return current

    def _lifetimes(self) -> dict[JobName, JobLifetime]:
        """Of all exposed jobs; after a restart also of jobs that are not found again yet."""
        found = dict(self._jobs.lifetimes()) if self._jobs else {}
        if self._host.monotonic() < self._restored_until:
            found = dict.fromkeys(self._restored_jobs, JobLifetime(None, None)) | found
        return found

    def _publish(self) -> None:
        """Save the counters, then expose them, as often as GPUs are read."""
        now = self._host.monotonic()
        interval = min(self._options.interval, LONGEST_INTERVAL_SECONDS)
        if now - self._published_at < interval and self.counters.boards:
            return
        self._published_at = now
        counting = [x for each in self._vendors.values() for x in each.busy_counters.items()]
        boards = {uuid: each for uuid, each in counting if each.last_stamp is not None}
        profiles = {k: v for each in self._vendors.values() for k, v in each.profiles.items()}
        sums = dict(profiles)
        for uuid, each in boards.items():
            busy = {"busy_seconds": each.busy_seconds, "observed_seconds": each.observed_seconds}
            sums[uuid, ""] = {**sums.get((uuid, ""), {}), **busy}
        jobs = self._job_busy
        counters = GpuCounters(dict(jobs.sums), jobs.free, sums)
        if sums:
            self._state.save(checkpoint.document(boards, jobs, profiles))
        self.counters = counters

    def _restore(self) -> None:
        document = self._state.load()
        try:
            if self._state.is_of_boot(document):
                checkpoint.restore(document, self._vendors["nvidia"], self._job_busy)
        except ValueError as error:
            self._state.refuse(error)
        self._restored_jobs = frozenset(
            [*self._job_busy.free_before, *(job for job, *_ in self._job_busy.sums)]
        )
        self._restored_until = self._host.monotonic() + _JOBS_FOUND_SECONDS

    def _held_gpu(self, uuid: str, read_at: float, current: GpuMap) -> _HeldGpu:
        """Its holders, including jobs that held it since the reading before and have ended."""
        now = {(x.job, x.unit): x for x in current.holdings if x.unit.gpu.uuid == uuid}
        previous = self._held_gpus.get(uuid, _HeldGpu(read_at, {}, {}))
        since = _with_largest_shares(previous.since, now)
        if previous.read_at != read_at:
            return _HeldGpu(read_at, since, now)
        return _HeldGpu(read_at, _with_largest_shares(previous.holders, now), since)

    def _is_newer_than_map(self, gpus: list[KnownGpu]) -> bool:
        latest = self.mapper.latest()
        mapped_at = latest.at if latest else float("-inf")
        return any(each.observed.at > mapped_at for each in gpus if each.observed)

    def _build_map(self, gpus: list[KnownGpu], readings: Mapping[str, GpuReading]) -> GpuMap:
        table = self._update_table(tuple(each.gpu for each in gpus))
        holders = self._jobs.holders() if self._jobs else []
        context = read_context(self._host, table, self._prolog_files.read())
        context = context._replace(
            slurm_numbers=self._options.slurm_numbers,
            pbs_homes=self._options.pbs_home,
            allotted=self._allotted.of_jobs(holders, table, context.capability_major),
        )
        self._last_map = build_map(holders, context, readings, self._last_map)
        return self._last_map

    def _count_conflicts(self, conflicts: frozenset[AllocationConflict]) -> None:
        """Count each conflict once per job as long as it persists."""
        current = {(kind, job): subject for kind, job, subject in conflicts}
        for (kind, job), subject in current.items():
            if (kind, job) not in self._current_conflicts:
                self._conflict_counts[kind] += 1
                log.info("GPU map: %s: job %s of %s: %.200s", kind, job.jobid, job.user, subject)
        self._current_conflicts = frozenset(current)

    def _update_table(self, gpus: tuple[Gpu, ...]) -> GpuTable:
        complete = all(vendor.complete for vendor in self._vendors.values())
        if gpus != self.table.gpus or complete != self.table.complete:
            self.table = GpuTable(gpus, read_mig_minors(self._host), complete)
        return self.table

    def _known_gpus(self) -> list[KnownGpu]:
        return [gpu for vendor in self._vendors.values() for gpu in vendor.known_gpus()]

    def _current_map(self) -> GpuMap:
        """The last map, without the jobs that have ended since."""
        latest = self.mapper.latest()
        if latest is None:
            return GpuMap()
        running = {holder.name for holder in self._jobs.holders()} if self._jobs else set()
        return GpuMap(tuple(each for each in latest.value.holdings if each.job in running))


def _with_largest_shares(
    before: Mapping[tuple[JobName, Unit], Holding], now: Mapping[tuple[JobName, Unit], Holding]
) -> Mapping[tuple[JobName, Unit], Holding]:
    """A holder's share was smaller while others held the GPU too, which their times tell."""
    shares = {
        key: max(before[key].share or 0.0, now[key].share or 0.0) for key in before.keys() & now
    }
    return {**before, **now} | {key: now[key]._replace(share=x) for key, x in shares.items() if x}


def _energy_share(holding: Holding, reading: GpuReading, metered: int) -> GpuEnergyShare:
    """A job's share of the GPUs of one meter, and its activity relative to that share."""
    share = holding.share or 0.0
    utilization = holding.utilization
    if utilization is None:
        activity = reading.values_of(holding.unit).get(UTILIZATION)
    else:
        activity = utilization / share if share else None
    part = holding.unit.fraction * share / metered
    return GpuEnergyShare(holding.job, part, activity, holding.confirmed)


def build(host: Host, options: GpuOptions, built: Mapping[str, Collector]) -> GpuCollector:
    """Build the collector; without a jobs collector, GPUs are read but not mapped."""
    return GpuCollector(host, options, cast("JobsCollector | None", built.get("jobs")))


COLLECTOR = CollectorModule(GpuOptions, METRICS, build)

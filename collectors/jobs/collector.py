"""The jobs collector: discovers jobs, watches for their ends, scans processes, reads cgroups."""

import resource
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from batchjob.quantities.job import DEFAULT_METRIC_GROUPS, METRIC_GROUPS
from batchjob.quantities.reading import JobReading, job_reading
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration, one_of
from batchjob.schedulers.layout import Layout
from collectors import state
from collectors.collector import Collector, CollectorModule
from collectors.host import Host, Moment
from collectors.jobs import families
from collectors.jobs.cgroups import v1, v2
from collectors.jobs.cgroups.formats import DeviceNames
from collectors.jobs.cgroups.job_cgroup import CgroupFiles
from collectors.jobs.cgroups.kernel_log import KernelLog
from collectors.jobs.cgroups.reader import ReadErrors
from collectors.jobs.discovery.site_layouts import all_layouts, site_layouts
from collectors.jobs.discovery.walk import CgroupWalker
from collectors.jobs.discovery.watch import CgroupWatcher
from collectors.jobs.processes.exits import ExitWatcher
from collectors.jobs.processes.identifier import UserNames
from collectors.jobs.processes.ledger import ProcessLedger
from collectors.jobs.processes.scanner import ProcessScanner
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import IGNORED_REASONS, OVERFLOW, JobTable, Sampler
from collectors.jobs.view import JobCpu, JobHolder, JobIdentity, JobLifetime, JobName
from collectors.metric import Labels, MetricFamily, labelled_family

# Interval between walks of all trees, which find trees that appear in directories not watched.
_WALK_INTERVAL_SECONDS = 60.0
_STALE_INTERVALS = 3.0
SCAN_WAIT_SECONDS = 0.5
_SETTLED_POLL_SECONDS = 0.01
# The group of files in which a group of metrics is, where it has another name.
_FILE_GROUPS = {"memory-detail": "memory", "faults": "memory", "throttling": "cpu"}


def _parse_directory(value: Any) -> str:
    if isinstance(value, str) and value.startswith(("/", "~/")):
        return value
    raise ValueError(f"expected a directory such as /var/lib/docker, got {value!r}")


@dataclass(frozen=True)
class JobsOptions:
    # fmt: off
    metrics: tuple[str, ...] = option(DEFAULT_METRIC_GROUPS,
        f"Groups of metrics: {', '.join(METRIC_GROUPS)}.", parse=one_of(*METRIC_GROUPS),
        repeat=True, metavar="GROUP")
    linger: float = option(300.0,
        "How long the final values of a finished job are exposed; at least twice the longest "
        "scrape interval.", parse=duration)
    max: int = option(5000,
        "Maximum number of running jobs to expose; the rest are only counted.")
    max_ended: int = option(10000, "Maximum number of finished jobs to keep.")
    processes_interval: float = option(15.0,
        "Interval between scans of the jobs' processes.", parse=duration)
    name: bool = option(False, "Add the job's name as a label of batchjob_job_info.")
    container_directories: tuple[str, ...] = option((
        "/var/lib/docker", "/var/lib/containers/storage",
        "~/.local/share/docker", "~/.local/share/containers/storage"),
        "Directories of Docker and Podman with the state of their containers, if they are enabled "
        "as jobs. `~`: the home directory of the user whose container it is.",
        parse=_parse_directory, repeat=True, metavar="DIR")
    layouts: tuple[Layout, ...] = option((),
        "Additional cgroup layouts of the site; built-in ones are enabled or disabled by name.",
        parse=site_layouts, flag=False)
    # fmt: on


class JobsCollector(Collector):
    """The families of all jobs, and `usage()` and `holders()` for other collectors.

    The public attributes are its parts; each can also be driven without its thread.
    """

    def __init__(self, host: Host, options: JobsOptions, names: UserNames | None = None) -> None:
        groups = frozenset(options.metrics)
        # The groups of files that must be read for these groups of metrics.
        file_groups = frozenset(_FILE_GROUPS.get(group, group) for group in groups) | {"cpu"}
        self._host = host
        self._options = options
        self._metrics = families.job_metrics(groups)
        self._errors = ReadErrors()
        self._kernel_log = KernelLog(f"{host.dev}/kmsg")
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        descriptors = threading.Semaphore(soft_limit // 2)  # half of them are for cgroup files
        devices = DeviceNames(host.sysfs, self._errors)
        files = CgroupFiles(
            v1.sources(file_groups, devices),
            v2.sources(file_groups, devices),
            descriptors,
            self._kernel_log,
            self._errors,
        )
        self.table = JobTable(host, files, options.linger, options.max, options.max_ended)
        self._exits = ExitWatcher(self._read_after_exit, self._read_ending, descriptors)
        self.scanner = ProcessScanner(
            host, self.table, names or UserNames(), options, self._exits, self._errors
        )
        self.sampler = Sampler(self.table)
        self.watcher = CgroupWatcher(self.table, self._wake_threads, self._errors)
        self.walker = CgroupWalker(
            self.table,
            all_layouts(options.layouts),
            self.watcher.watch_branch,
            self.watcher.watch_job,
            self._errors,
        )
        self.watcher.walker = self.walker
        self._next_walk_at = float("-inf")
        self._read_lock = threading.Lock()
        self._fresh_seconds = _STALE_INTERVALS * options.processes_interval + 60.0

    def start(self) -> None:
        boot = state.boot_id(self._host.procfs)
        self.scanner.ledger = ProcessLedger(self._host.state_directory, boot)
        self.walker.walk_all()
        self._next_walk_at = self._host.monotonic() + _WALK_INTERVAL_SECONDS
        self.watcher.start()
        self.scanner.start()
        self.sampler.start()

    def stop(self) -> None:
        self.watcher.stop()
        self.sampler.stop()
        self.scanner.stop()
        self._exits.stop()
        self.table.close()
        self._kernel_log.close()

    def update(self) -> None:
        self.walker.walk_all()
        self.scanner.scan()

    def wait(self, seconds: float) -> None:
        """Wait until every existing job has been identified, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.is_settled():
            time.sleep(_SETTLED_POLL_SECONDS)

    def is_settled(self) -> bool:
        """Whether every running job has been identified, ignored, or found to be empty."""
        return all(
            job.identity is not None or job.ignored_reason is not None or job.populated() is False
            for job in self.table.running()
        )

    def collect(self) -> list[MetricFamily]:
        readings = self._read_jobs()
        self.scanner.request_scan()
        return [*families.job_families(self._metrics, readings), *self._own_families()]

    def readings(self) -> list[tuple[JobName, JobReading]]:
        """A reading of every visible job, including ended ones that linger; thread-safe.

        The processes are scanned first. A scrape does not wait for that, and uses the last scan.
        """
        self.scanner.refresh(SCAN_WAIT_SECONDS)
        return [(identity.name, reading) for identity, reading in self._read_jobs()]

    def usage(self) -> list[JobCpu]:
        """The CPU usage of every visible job, read now; thread-safe."""
        now = self._host.now()
        job_cpus = []
        for job, identity in self._visible_jobs():
            reading = self._reading(job, now, "cpu")
            user, system = reading.cpu_user_seconds, reading.cpu_system_seconds
            seconds = None if user is None or system is None else user + system
            job_cpus.append(
                JobCpu(
                    identity.name,
                    seconds,
                    reading.cgroup.cpus,
                    ended_at=None if job.ended is None else job.ended.monotonic,
                    started_at=None if job.started is None else job.started.monotonic,
                )
            )
        return job_cpus

    def holders(self) -> list[JobHolder]:
        """Processes and GPU variables of the running jobs, from the last scan; thread-safe."""
        job_holders = []
        for job, identity in self._visible_jobs():
            scan = job.last_scan
            if job.ended is None and scan is not None:
                paths = tuple(path for _, path in job.directories())
                uid = -1 if identity.uid is None else identity.uid
                job_holders.append(JobHolder(identity.name, uid, scan.pids, scan.environs, paths))
        return job_holders

    def lifetimes(self) -> dict[JobName, JobLifetime]:
        """Every visible job, including ended ones that linger; thread-safe, and reads nothing."""
        return {
            each.name: JobLifetime(_epoch(job.started or job.appeared), _epoch(job.ended))
            for job, each in self._visible_jobs()
        }

    def _wake_threads(self) -> None:
        self.scanner.wake()
        self.sampler.wake()

    def _read_after_exit(self, job: Job) -> None:
        job.read_remaining(self._host.now())
        self.scanner.request_job_scan(job)

    def _read_ending(self, job: Job) -> bool:
        job.read(self._host.now())
        return job.ended is None

    def _read_jobs(self) -> list[families.IdentifiedReading]:
        with self._read_lock:
            now = self._host.now()
            if now.monotonic >= self._next_walk_at or not self.watcher.complete:
                self.walker.walk_all(is_new=True)
                self._next_walk_at = now.monotonic + _WALK_INTERVAL_SECONDS
            self.scanner.abandon_stuck_read()
            readings = [
                (identity, self._reading(job, now)) for job, identity in self._visible_jobs()
            ]
            self.table.prune()
            return readings

    def _visible_jobs(self) -> Iterable[tuple[Job, JobIdentity]]:
        """The visible jobs that have been identified, and one run of each.

        After a requeue the earlier run of the job may linger in a directory of another name, with
        processes that outlive it: a running one comes before an ended one, and the one that began
        later before an earlier one. An exporter that starts finds directories in any order.
        """
        jobs: dict[Labels, tuple[Job, JobIdentity]] = {}
        for job in self.table.visible():
            identity = job.identity
            if identity is None:
                continue
            name = identity.name.labels
            if name not in jobs or _run_order(job) >= _run_order(jobs[name][0]):
                jobs[name] = job, identity
        return jobs.values()

    def _reading(self, job: Job, now: Moment, group: str | None = None) -> JobReading:
        cgroup = job.read(now, group)  # may mark the job as ended
        scan = job.last_scan
        if cgroup.cpus is None and scan is not None and scan.cpus is not None:
            cgroup = cgroup._replace(cpus=scan.cpus)
        processes = job.processes(now.monotonic, self._fresh_seconds)
        if cgroup.cpu_user_seconds is None and not job.is_counted_by_processes(now.monotonic):
            processes = processes._replace(cpu_user_seconds=None, cpu_system_seconds=None)
        started_at = _epoch(job.started or job.appeared)
        reading = job_reading(started_at, _epoch(job.ended), cgroup, processes)
        if job.file_systems and not job.shares_file_systems:
            return reading._replace(file_systems=job.file_systems)
        return reading

    def _own_families(self) -> list[MetricFamily]:
        ignored = dict.fromkeys(IGNORED_REASONS, 0)
        ignored[OVERFLOW] = len(self.table.overflow)
        for job in self.table.all():
            if job.ignored_reason is not None:
                ignored[job.ignored_reason] += 1
        return [
            labelled_family(families.IGNORED, ignored),
            labelled_family(families.ERRORS, self._errors.counts()),
        ]


def _run_order(job: Job) -> tuple[bool, float]:
    began = job.started or job.appeared
    return job.ended is None, float("-inf") if began is None else began.monotonic


def _epoch(moment: Moment | None) -> float | None:
    return None if moment is None else moment.epoch


COLLECTOR = CollectorModule(
    JobsOptions, families.METRICS, lambda host, options, _: JobsCollector(host, options)
)

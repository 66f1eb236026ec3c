"""Jobs of a real Slurm on cgroup v1 whose resource usage is known at any time from the kernel.

Each job runs as a different user. The cgroups that Slurm creates for the user count the CPU time
and the peak memory of all cgroups below, including removed ones; an extra child cgroup keeps Slurm
from removing them. They are read five times a second.
"""

import bisect
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.e2e import slurm, slurm_files
from tests.e2e.workload import PYTHON
from tests.life.ground_truth import Usage

_CGROUPS = Path("/sys/fs/cgroup")
_CPU, _MEMORY = "cpuacct/{}/cpuacct.usage", "memory/{}/memory.max_usage_in_bytes"
_READING_INTERVAL_SECONDS = 0.2
_RATE_SCRAPES = 2  # the smallest window: rates over longer ones lie between its extremes
_FAR_FUTURE = 1 << 40  # epoch seconds
_PROGRAM = """
import mmap, os, time
held, begun, pages = [], time.monotonic(), range(0, 1 << 19, mmap.PAGESIZE)
while not os.path.exists("finish") and (at := time.monotonic()) < begun + 1800:
    if len(held) < 400:
        held.append(mmap.mmap(-1, 1 << 19, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        for page in pages:
            held[-1][page] = 1
    while time.monotonic() < at + (0.15 if os.path.exists("less_cpu") else 0.5):
        pass
    time.sleep(max(0.0, at + 1 - time.monotonic()))
"""
COMMAND = f"{PYTHON} -S -E -c '{_PROGRAM}'"
"""Each second: half a second of CPU time and half a MiB more memory; see `WatchedJob.set_flag`."""


class _Reading(NamedTuple):
    time: float
    counters: tuple[float, ...]  # CPU seconds of each node, then bytes of each


class WatchedJob:
    """A run of a job with COMMAND; start and end are in the far future until they are known."""

    interval = 5
    accounting_error = 0.15  # of sacct, which samples
    # Clock ticks; memory that the kernel caches for the user or needs for the cgroups themselves;
    # and the time between a scrape's timestamp and its values on a busy machine.
    counting_errors = MappingProxyType(
        {"cpu_seconds": 0.1, "memory_bytes": float(1 << 20), "cpus_in_use": 0.1}
    )

    def __init__(
        self, cluster: slurm.Cluster, jobid: str, user: str, nodes: int, memory_mb: int
    ) -> None:
        self.jobid, self.user, self.nodes = jobid, user, nodes
        self._cluster = cluster
        uid = slurm_files.USERS[user]
        self._nodes = cluster.nodes
        folders = [f"slurm_{node}/uid_{uid}" for node in self._nodes]
        cpu = [_CGROUPS / _CPU.format(folder) for folder in folders]
        memory = [_CGROUPS / _MEMORY.format(folder) for folder in folders]
        self._files = [*cpu, *memory]
        for file in self._files:
            (file.parent / "keep").mkdir(parents=True, exist_ok=True)
        for file in memory:
            file.write_text("0")  # start at zero
        self._initial_cpu_counters = [int(file.read_text()) for file in cpu]
        self._allocated_bytes = memory_mb << 20
        self._readings = [_Reading(time.time(), (0.0,) * len(self._files))]
        self.submit, self.start, self.end = int(time.time()), _FAR_FUTURE, _FAR_FUTURE
        self.sample_times: Mapping[str, Sequence[float]] = {}
        """Times of Prometheus' samples, by node."""
        self._suspension = (_FAR_FUTURE, _FAR_FUTURE)
        for name in ("less_cpu", "finish"):
            (cluster.home(user) / name).unlink(missing_ok=True)

    def set_flag(self, flag: str) -> None:
        """Make the job use "less_cpu", or "finish"."""
        (self._cluster.home(self.user) / flag).touch()

    def read_counters(self) -> None:
        """Read the kernel's counters now."""
        at = time.time()
        counters = [int(file.read_text()) for file in self._files]
        cpu = (
            (now - before) / 1e9
            for now, before in zip(counters, self._initial_cpu_counters, strict=False)
        )
        self._readings.append(_Reading(at, (*cpu, *counters[len(self._nodes) :])))

    def update_from_slurm(self) -> str:
        """Update the times of submission, start, suspension and end from Slurm; the job's state."""
        text = self._cluster.command("scontrol", "--oneliner", "show", "job", self.jobid)
        fields = dict(re.findall(r"(\w+)=(\S+)", text))
        self.submit = int(fields["SubmitTime"])
        if fields["JobState"] in ("PENDING", "CONFIGURING"):
            return fields["JobState"]
        self.start = int(fields["StartTime"])
        if fields["JobState"] in slurm.FINAL_STATES:
            self.end = int(fields["EndTime"])
        elif seconds_before := int(fields["SecsPreSuspend"]):
            is_suspended = fields["JobState"] == "SUSPENDED"
            resume_time = _FAR_FUTURE if is_suspended else int(fields["SuspendTime"])
            self._suspension = (self.start + seconds_before, resume_time)
        return fields["JobState"]

    def suspended_seconds(self, at: float) -> float:
        """See KnownRun."""
        begin, end = self._suspension
        return max(0.0, min(at, end) - begin)

    def active_seconds(self, at: float) -> float:
        """See KnownRun."""
        until = min(at, self.end)
        return max(0.0, until - self.start - self.suspended_seconds(until))

    def _last_sample_times(self, at: float) -> list[float]:
        """Time of each node's last sample; any sample after the end covers the whole run."""
        latest = math.inf if at >= self.end else at
        sample_times_by_node = [
            [t for t in times if t <= latest] for times in self.sample_times.values()
        ]
        last_sample_times = [
            min(max(times, default=self.start), at, self.end) for times in sample_times_by_node
        ]
        return last_sample_times + [float(self.start)] * (self.nodes - len(last_sample_times))

    def max_delay(self, at: float) -> float:
        """See KnownRun; the last sample may be on its way."""
        return self.interval + 1 + min(at, self.end) - min(self._last_sample_times(at))

    def coverage_at(self, at: float) -> float:
        """The part of the nodes' run time up to a moment that samples cover."""
        mean_sample_time = sum(self._last_sample_times(at)) / self.nodes
        return (mean_sample_time - self.start) / max(1.0, at - self.start)

    def usage_at(self, at: float, *, as_measured: bool = False) -> Usage:
        """See KnownRun; nothing is known of a node before its first sample."""
        counters = self._readings[-1].counters if at >= self.end else self._counters_at(at)
        has_samples = [
            not as_measured or any(each <= at for each in self.sample_times.get(node, ()))
            for node in self._nodes
        ]
        cpu_seconds, memory_bytes = (
            sum(number for number, known in zip(part, has_samples, strict=True) if known)
            for part in (counters[: len(has_samples)], counters[len(has_samples) :])
        )
        nodes = min(sum(has_samples), self.nodes)
        elapsed = max(1.0, self.active_seconds(at)) * nodes / self.nodes
        return Usage(
            cpu_seconds, memory_bytes, None, math.nan, max(elapsed, 0.01), self._cpus_in_use(at),
            cpus=self.nodes, memory=max(nodes, 1) * self._allocated_bytes,
        )  # fmt: skip

    def _counters_at(self, at: float) -> tuple[float, ...]:
        """Counters at a time, interpolated between two readings."""
        index = bisect.bisect_left(self._readings, at, key=lambda reading: reading.time)
        if index in (0, len(self._readings)):
            return self._readings[max(index - 1, 0)].counters
        before, after = self._readings[index - 1 : index + 1]
        ratio = (at - before.time) / (after.time - before.time)
        pairs = zip(before.counters, after.counters, strict=True)
        return tuple(one + ratio * (other - one) for one, other in pairs)

    def _cpus_in_use(self, at: float) -> float:
        """CPUs in use over the last scrape intervals."""
        seconds = float(_RATE_SCRAPES * self.interval)
        now, before = (
            sum(self._counters_at(each)[: len(self._nodes)]) for each in (at, at - seconds)
        )
        return (now - before) / seconds


class JobWatcher:
    """Reads the counters of jobs in a thread."""

    def __init__(self) -> None:
        self.jobs: list[WatchedJob] = []
        self._stopped = threading.Event()
        self._reading_rounds = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "JobWatcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def wait_for_readings(self) -> float:
        """Wait until all counters were read after this call; the time of the call."""
        now, wanted_rounds = time.time(), self._reading_rounds + 2
        while self._reading_rounds < wanted_rounds:
            assert self._thread.is_alive()
            time.sleep(_READING_INTERVAL_SECONDS / 4)
        return now

    def _run(self) -> None:
        while not self._stopped.wait(_READING_INTERVAL_SECONDS):
            for job in list(self.jobs):
                job.read_counters()
            self._reading_rounds += 1

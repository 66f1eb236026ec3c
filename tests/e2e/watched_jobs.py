"""Jobs of a real Slurm on cgroup v1 whose use is known at every moment: the kernel counts it.

Each job has a user of its own. The directories that Slurm makes for the user count the CPU time and
the highest memory use of all below them, also of what was removed; one of ours in each keeps Slurm
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
from tests.life.truth import Use

_CGROUPS = Path("/sys/fs/cgroup")
_CPU, _MEMORY = "cpuacct/{}/cpuacct.usage", "memory/{}/memory.max_usage_in_bytes"
_LOOK_SECONDS = 0.2
_RATE_SCRAPES = 2  # over so few, a rate is as large and as small as it can be over some more
_NEVER = 1 << 40  # epoch seconds
_PROGRAM = """
import mmap, os, time
held, begun, pages = [], time.monotonic(), range(0, 1 << 19, mmap.PAGESIZE)
while not os.path.exists("enough") and (at := time.monotonic()) < begun + 1800:
    if len(held) < 400:
        held.append(mmap.mmap(-1, 1 << 19, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        for page in pages:
            held[-1][page] = 1
    while time.monotonic() < at + (0.15 if os.path.exists("less") else 0.5):
        pass
    time.sleep(max(0.0, at + 1 - time.monotonic()))
"""
COMMAND = f"{PYTHON} -S -E -c '{_PROGRAM}'"
"""Is busy for half of each second, and touches half a MiB more; see `WatchedJob.tell`."""


class _Look(NamedTuple):
    time: float
    counted: tuple[float, ...]  # CPU seconds of each node, then bytes of each


class WatchedJob:
    """A run of a job that runs COMMAND; its start and end are far away until they are known."""

    interval = 5
    accounting_error = 0.15  # of sacct, which samples
    # Ticks; what the kernel keeps in stock for the user, and of the directories themselves; and the
    # time between a scrape's timestamp and its values, on a machine that is busy with others.
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
            (file.parent / "held").mkdir(parents=True, exist_ok=True)
        for file in memory:
            file.write_text("0")  # start at zero
        self._before = [int(file.read_text()) for file in cpu]
        self._allocated = memory_mb << 20
        self._course = [_Look(time.time(), (0.0,) * len(self._files))]
        self.submit, self.start, self.end = int(time.time()), _NEVER, _NEVER
        self.sampled: Mapping[str, Sequence[float]] = {}
        """When Prometheus took samples, by node."""
        self._pause = (_NEVER, _NEVER)
        for name in ("less", "enough"):
            (cluster.home(user) / name).unlink(missing_ok=True)

    def tell(self, word: str) -> None:
        """Have it do "less", or end when it had "enough"."""
        (self._cluster.home(self.user) / word).touch()

    def look(self) -> None:
        """Note what the kernel has counted by now."""
        at = time.time()
        counted = [int(file.read_text()) for file in self._files]
        cpu = ((now - before) / 1e9 for now, before in zip(counted, self._before, strict=False))
        self._course.append(_Look(at, (*cpu, *counted[len(self._nodes) :])))

    def ask_slurm(self) -> str:
        """Take over when it was submitted, began, was suspended and ended; its state."""
        text = self._cluster.command("scontrol", "--oneliner", "show", "job", self.jobid)
        told = dict(re.findall(r"(\w+)=(\S+)", text))
        self.submit = int(told["SubmitTime"])
        if told["JobState"] in ("PENDING", "CONFIGURING"):
            return told["JobState"]
        self.start = int(told["StartTime"])
        if told["JobState"] in slurm.FINAL_STATES:
            self.end = int(told["EndTime"])
        elif before := int(told["SecsPreSuspend"]):
            stopped = told["JobState"] == "SUSPENDED"
            resumed = _NEVER if stopped else int(told["SuspendTime"])
            self._pause = (self.start + before, resumed)
        return told["JobState"]

    def paused(self, at: float) -> float:
        """See Subject."""
        begin, end = self._pause
        return max(0.0, min(at, end) - begin)

    def active(self, at: float) -> float:
        """See Subject."""
        until = min(at, self.end)
        return max(0.0, until - self.start - self.paused(until))

    def _last_samples(self, at: float) -> list[float]:
        """Of each node the time up to which its last sample tells; one after the end tells all."""
        known = math.inf if at >= self.end else at
        nodes = [[t for t in times if t <= known] for times in self.sampled.values()]
        found = [min(max(times, default=self.start), at, self.end) for times in nodes]
        return found + [float(self.start)] * (self.nodes - len(found))

    def late(self, at: float) -> float:
        """See Subject; the last sample may be on its way."""
        return self.interval + 1 + min(at, self.end) - min(self._last_samples(at))

    def covered(self, at: float) -> float:
        """The part of its nodes' time up to a moment of which what was measured tells."""
        seen = sum(self._last_samples(at)) / self.nodes
        return (seen - self.start) / max(1.0, at - self.start)

    def used(self, at: float, *, as_seen: bool = False) -> Use:
        """See Subject; until a node has its first sample, nothing is known of it."""
        counted = self._course[-1].counted if at >= self.end else self._at(at)
        seen = [
            not as_seen or any(each <= at for each in self.sampled.get(node, ()))
            for node in self._nodes
        ]
        cpu, memory = (
            sum(number for number, known in zip(part, seen, strict=True) if known)
            for part in (counted[: len(seen)], counted[len(seen) :])
        )
        nodes = min(sum(seen), self.nodes)
        elapsed = max(1.0, self.active(at)) * nodes / self.nodes
        return Use(
            cpu, memory, None, math.nan, max(elapsed, 0.01), self._rate(at), cpus=self.nodes,
            memory=max(nodes, 1) * self._allocated,
        )  # fmt: skip

    def _at(self, at: float) -> tuple[float, ...]:
        """What was counted by a moment, which is between two looks."""
        place = bisect.bisect_left(self._course, at, key=lambda look: look.time)
        if place in (0, len(self._course)):
            return self._course[max(place - 1, 0)].counted
        before, after = self._course[place - 1 : place + 1]
        part = (at - before.time) / (after.time - before.time)
        pairs = zip(before.counted, after.counted, strict=True)
        return tuple(one + part * (other - one) for one, other in pairs)

    def _rate(self, at: float) -> float:
        """CPUs in use over the last scrapes."""
        seconds = float(_RATE_SCRAPES * self.interval)
        now, before = (sum(self._at(each)[: len(self._nodes)]) for each in (at, at - seconds))
        return (now - before) / seconds


class Watch:
    """Looks at jobs in a thread."""

    def __init__(self) -> None:
        self.jobs: list[WatchedJob] = []
        self._stopped = threading.Event()
        self._looks = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def seen(self) -> float:
        """Wait until all that is by now was looked at; the time."""
        now, wanted = time.time(), self._looks + 2
        while self._looks < wanted:
            assert self._thread.is_alive()
            time.sleep(_LOOK_SECONDS / 4)
        return now

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            for job in list(self.jobs):
                job.look()
            self._looks += 1

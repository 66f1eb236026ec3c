"""A node made of files: cgroup directories and processes as the kernel would show them."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchjob_exporter import exposition
from collectors.host import Host
from collectors.jobs import collector

SCOPE = "system.slice/slurmstepd.scope"


def overwrite(path: Path, text: str) -> None:
    """Replace a file's text in one step: who reads it at this moment never finds it empty."""
    with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
        file.write(os.fsencode(text))
        file.truncate()


class Node:
    """A cgroup v2 node with a clock of its own; nothing changes but by the test."""

    def __init__(self, top: Path) -> None:
        self.now = 1_800_000_000.0
        self.clock_offset_seconds = 0.0
        self.cgroup, self.proc = top / "cgroup", top / "proc"
        self.host = Host(
            procfs=str(self.proc),
            sysfs=str(top / "sys"),
            cgroupfs=str(self.cgroup),
            dev=str(top / "dev"),
            clock=lambda: self.now + self.clock_offset_seconds,
            monotonic=lambda: self.now - 1_700_000_000.0,
        )
        (self.cgroup / SCOPE).mkdir(parents=True)
        (self.cgroup / "cgroup.controllers").write_text("cpu memory\n")
        (self.proc / "1" / "ns").mkdir(parents=True)
        (self.proc / "stat").write_text(f"btime {int(self.now) - 1000}\n")
        self.collectors = []

    def add_job(self, name="job_1", scope=SCOPE, cpu=(1_000_000, 500_000), pids=(), populated=None):
        """Make a job's directory with one task; `cpu` is user and system time in microseconds."""
        job = self.cgroup / scope / name
        task = job / "step_batch" / "user" / "task_0"
        task.mkdir(parents=True, exist_ok=True)
        self.set_cpu(job, cpu)
        (job / "memory.current").write_text("4096\n")
        (job / "memory.peak").write_text("8192\n")
        (job / "memory.max").write_text("max\n")
        (job / "cgroup.procs").write_text("")
        (task / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        self.set_populated(job, bool(pids) if populated is None else populated)
        return job

    def set_cpu(self, job, cpu):
        user, system = cpu
        overwrite(
            job / "cpu.stat",
            f"usage_usec {user + system}\nuser_usec {user}\nsystem_usec {system}\n",
        )

    def set_populated(self, job, populated):
        (job / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")

    def create_kernel_log(self):
        """Make /dev/kmsg, still empty; the collector reads what is added to it."""
        kmsg = Path(self.host.dev) / "kmsg"
        kmsg.parent.mkdir()
        kmsg.touch()
        return kmsg

    def add_process(self, pid, uid=1000, parent=1, io=(0, 0, 0, 0), environ=b"", started=50_000,
                cpu=(0, 0, 0, 0), program="a.out"):  # fmt: skip
        """Make /proc/<pid>; `cpu` is utime, stime, cutime, cstime in ticks."""
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        before = " ".join(["0"] * 9)
        times = " ".join(map(str, cpu))
        keys = ("read_bytes", "write_bytes", "rchar", "wchar")
        files = {
            "stat": f"{pid} ({program}) S {parent} {before} {times} 20 0 1 0 {started} 0 0\n",
            "status": f"Name:\t{program}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n",
            "io": "".join(f"{key}: {value}\n" for key, value in zip(keys, io, strict=True)),
            "environ": os.fsdecode(environ),
            "cmdline": program,
        }
        for name, text in files.items():
            overwrite(directory / name, text)
        return directory

    def remove_process(self, pid):
        shutil.rmtree(self.proc / str(pid))

    def collector(self, names=None, **options):
        """The collector, its threads not started: `update()` does their work."""
        jobs = collector.JobsCollector(self.host, collector.JobsOptions(**options), names)
        self.collectors.append(jobs)
        return jobs

    def watching_collector(self, **options):
        """A collector whose watcher runs; the test itself calls the scans of processes."""
        jobs = self.collector(**options)
        jobs.update()
        jobs.watcher.start()
        return jobs


def samples(jobs):
    """Samples of a scrape: (name, jobid, other labels but cgroup) → value."""
    found = {}
    text = exposition.render(jobs.collect()).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            hidden = ("manager", "jobid", "user", "cgroup")
            extra = tuple(value for key, value in sample.labels.items() if key not in hidden)
            name = sample.name.removeprefix("batchjob_job_")
            found[(name, sample.labels.get("jobid", ""), *extra)] = sample.value
    return found


def users(jobs):
    """jobid → user of all jobs shown."""
    text = exposition.render(jobs.collect()).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name == "batchjob_job_info":
            found.update((s.labels["jobid"], s.labels["user"]) for s in family.samples)
    return found


def inotify_watch_count():
    """How many files and directories this process watches (proc(5), fdinfo)."""
    count = 0
    for descriptor in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += descriptor.read_text().count("inotify wd:")
    return count


requires_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")

"""Job trees to measure on: real cgroups made here and removed again, or a copy of their files.

    with trees.make("v1", jobs=100) as tree:
        ...                             # an exporter with --path.cgroupfs=tree.cgroupfs sees them

`v1`: this machine's cgroup v1 hierarchies, in the shape Slurm gives them; all numbers are real.
`unified`: this machine's cgroup2; without controllers it has CPU and pressure, but no memory.
`copy`: all files that Slurm on cgroup v2 gives a job, as plain files on tmpfs. The kernel does not
format them on each read, so a reader's own cost stands out more than on a real machine.
Each job has one process of an ordinary user that waits; `stir()` has all of them use some CPU and
memory, so that their files change as those of working jobs do. Needs root.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.waiting import until

UID = 20001
KINDS = ("v1", "unified", "copy")
V1_HIERARCHIES = ("cpuacct", "cpuset", "devices", "freezer", "memory")
V1_STEP_ONLY = ("cpuset", "freezer")  # Slurm creates no task directories in these

_MEMORY_STAT = (
    "anon file kernel kernel_stack pagetables sec_pagetables percpu sock vmalloc shmem "
    "zswap zswapped file_mapped file_dirty file_writeback swapcached anon_thp file_thp "
    "shmem_thp inactive_anon active_anon inactive_file active_file unevictable "
    "slab_reclaimable slab_unreclaimable slab workingset_refault_anon "
    "workingset_refault_file workingset_activate_anon workingset_activate_file "
    "workingset_restore_anon workingset_restore_file workingset_nodereclaim pgscan "
    "pgsteal pgscan_kswapd pgscan_direct pgscan_khugepaged pgsteal_kswapd "
    "pgsteal_direct pgsteal_khugepaged pgfault pgmajfault pgrefill pgactivate "
    "pgdeactivate pglazyfree pglazyfreed zswpin zswpout thp_fault_alloc "
    "thp_collapse_alloc"
)
# A job's directory with Slurm 24.11 and Linux 6.12, with io and pids enabled.
FILES = {
    "cgroup.controllers": "cpuset cpu io memory pids\n",
    "cgroup.events": "populated 1\nfrozen 0\n",
    "cpu.stat": "usage_usec 181532406\nuser_usec 179924710\nsystem_usec 1607696\n"
    "nice_usec 0\ncore_sched.force_idle_usec 0\nnr_periods 0\nnr_throttled 0\n"
    "throttled_usec 0\nnr_bursts 0\nburst_usec 0\n",
    "cpu.max": "max 100000\n",
    "cpuset.cpus": "0-3\n",
    "cpuset.cpus.effective": "0-3\n",
    "memory.current": "538259456\n",
    "memory.peak": "541655040\n",
    "memory.max": "1073741824\n",
    "memory.swap.current": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "memory.stat": "".join(
        f"{name} {value}\n"
        for value, name in enumerate(
            _MEMORY_STAT.split(),
            start=1000,
        )
    ),
    "cpu.pressure": "some avg10=0.12 avg60=0.08 avg300=0.02 total=1810225\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=1790021\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=12\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2213\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=2101\n",
    "io.stat": "259:0 rbytes=31457280 wbytes=10485760 rios=120 wios=40 dbytes=0 dios=0\n",
    "pids.current": "6\n",
    "pids.max": "max\n",
    "pids.events": "max 0\n",
}

# A job's process keeps each line of its standard input in memory.
IDLER = "while read line; do all=$all$line; done"
# What changes in a copy at each simulated activity: files, and the numbers in them.
CHANGING = {
    "cpu.stat": r"(?<=_usec )[1-9]\d*",
    "memory.current": r"\d+",
    "memory.stat": r"(?<= )\d+",
    "cpu.pressure": r"(?<=total=)\d+",
}


class Tree:
    """A node's scope or top directories, with jobs that come and go."""

    def __init__(self, kind: str, cgroupfs: Path) -> None:
        self.kind = kind
        self.cgroupfs = cgroupfs
        self.name = f"bench{os.getpid()}"
        self.tops = self._tops()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stirred = 0

    def _tops(self) -> list[Path]:
        if self.kind == "v1":
            return [self.cgroupfs / each / f"slurm_{self.name}" for each in V1_HIERARCHIES]
        return [self.cgroupfs / f"{self.name}_slurmstepd.scope"]

    def add(self, jobid: int) -> None:
        """Make the job's directories and start its process in them."""
        environ = {"SLURM_JOB_ID": str(jobid), "SLURM_JOB_ACCOUNT": "physics"}
        process = subprocess.Popen(
            ["/bin/sh", "-c", IDLER], stdin=subprocess.PIPE, user=UID, group=UID, env=environ,
            cwd="/",
        )  # fmt: skip
        self._processes[jobid] = process
        for top in self.tops:
            task = self._task(top, jobid)
            task.mkdir(parents=True)
            if self.kind == "copy":
                self._write_files(top / f"job_{jobid}", task)
            elif top.parent.name == "cpuset":
                _inherit_cpuset(task)
            (task / "cgroup.procs").write_text(f"{process.pid}\n")

    def remove(self, jobid: int) -> None:
        """End the process and remove the directories."""
        process = self._processes.pop(jobid)
        process.kill()
        process.communicate()
        for top in self.tops:
            _remove(self._job(top, jobid), plain=self.kind == "copy")

    def stir(self) -> None:
        """Let every job work for a moment."""
        self._stirred += 1
        for jobid, process in self._processes.items():
            if self.kind == "copy":
                for file, pattern in CHANGING.items():
                    text = re.sub(pattern, self._changed, FILES[file])
                    (self._job(self.tops[0], jobid) / file).write_text(text)
            else:
                assert process.stdin is not None
                process.stdin.write(b"x" * 1000 + b"\n")
                process.stdin.flush()
        time.sleep(0.02 + len(self._processes) / 5000)

    def _changed(self, match: re.Match[str]) -> str:
        return str(int(match[0]) + self._stirred)

    def tasks(self, jobid: int) -> list[Path]:
        """The directories that hold the job's processes."""
        return [self._task(top, jobid) for top in self.tops]

    def close(self) -> None:
        """Remove everything."""
        for jobid in list(self._processes):
            self.remove(jobid)
        for top in self.tops:
            _remove(top, plain=self.kind == "copy")

    def _job(self, top: Path, jobid: int) -> Path:
        return top / f"uid_{UID}/job_{jobid}" if self.kind == "v1" else top / f"job_{jobid}"

    def _task(self, top: Path, jobid: int) -> Path:
        step = self._job(top, jobid) / "step_batch"
        if self.kind != "v1":
            return step / "user/task_0"
        return step if top.parent.name in V1_STEP_ONLY else step / "task_0"

    def _write_files(self, job: Path, task: Path) -> None:
        for folder in (job, *job.rglob("*/")):
            for name, text in FILES.items():
                (folder / name).write_text(text)
            if folder != task:
                (folder / "cgroup.procs").write_text("")


def _inherit_cpuset(task: Path) -> None:
    """A new cpuset is empty and takes no process until it has CPUs and memory nodes."""
    for folder in reversed([task, *task.parents]):
        for name in ("cpuset.cpus", "cpuset.mems"):
            file = folder / name
            if file.exists() and not file.read_text().strip():
                file.write_text((folder.parent / name).read_text())


def _remove(top: Path, plain: bool) -> None:
    if plain:
        shutil.rmtree(top, ignore_errors=True)
        return
    until(lambda: _removed(top), f"removal of {top}")


def _removed(top: Path) -> bool:
    """A directory is busy until its last process is gone altogether."""
    for folder in sorted([*top.rglob("*/"), top], reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not top.exists()


@contextlib.contextmanager
def make(kind: str, jobs: int, first: int = 1) -> Iterator[Tree]:
    """A tree with as many jobs, removed at the end."""
    with contextlib.ExitStack() as stack:
        if kind == "copy":
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
            root.chmod(0o755)
            (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        else:
            root = Path("/sys/fs/cgroup")
            root = root / "unified" if kind == "unified" and (root / "unified").is_dir() else root
        tree = Tree(kind, root)
        stack.callback(tree.close)
        for top in tree.tops:
            top.mkdir()
        for jobid in range(first, first + jobs):
            tree.add(jobid)
        yield tree

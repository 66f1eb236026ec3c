"""How near the exporter's figures are to the kernel's own, on a real Slurm with unlike jobs.

    python -m benchmarks.accuracy

Runs some forty jobs on cgroup v1, among them such as end badly, while slurmd and the exporter are
restarted, and compares what a scrape every 5 s kept of them with the kernel's exit records of every
task (taskstats) and with sacct. Prints a row per quantity, and the jobs that are off most. Needs
root, Debian's Slurm with its database, and some 3 minutes.
"""

import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import taskstats
from tests.e2e import exporter, slurm, slurm_files
from tests.e2e.processes import daemon, until
from tests.e2e.workload import PYTHON, command

SCRAPE_SECONDS = 5.0
LINGER = "120s"
MIB = 1 << 20
_MAPPED = """
import mmap, os
file = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 64 << 20)
held = mmap.mmap(file, 64 << 20)
for page in range(0, 64 << 20, mmap.PAGESIZE):
    held[page:page + 8] = b"accuracy"
held.flush()
"""
_THREADED = """
import hashlib, threading, time
end = time.monotonic() + 5
def work():
    while time.monotonic() < end:
        hashlib.sha256(bytes(1 << 20)).digest()
for _ in range(4):
    threading.Thread(target=work).start()
"""


def _python(program: str) -> str:
    return f"{PYTHON} -S -E - <<'PROGRAM'\n{program}\nPROGRAM"


_DIRECT = """
dd if=/dev/zero of=direct bs=1M count=80 oflag=direct status=none
dd if=direct of=/dev/null bs=1M iflag=direct status=none
"""
_PAGED = """
dd if=/dev/zero of=paged bs=64k count=800 conv=fsync status=none
sleep 1
cat paged paged > /dev/null
"""
_DAEMON = f"setsid {command(cpu=5)} > /dev/null 2>&1 &\nsleep 9"


class Kind(NamedTuple):
    """Jobs of one shape."""

    script: str
    options: Sequence[str] = ()
    count: int = 3


KINDS: Mapping[str, Kind] = {
    "busy": Kind(command(cpu=6, memory_mb=40)),
    "daemonised child": Kind(_DAEMON),
    "1,000 short children": Kind("for n in $(seq 1000); do /bin/true; done"),
    "short children that work": Kind(f"for n in $(seq 12); do {command(cpu=0.3)}; done"),
    "threads": Kind(_python(_THREADED), ("--cpus-per-task=2",)),
    "two steps on two nodes": Kind(
        f"srun {command(cpu=2)}\nsrun {command(cpu=2)}", ("--nodes=2", "--ntasks=2")
    ),
    "O_DIRECT": Kind(f"{_DIRECT}\n{command(cpu=2)}"),
    "page cache": Kind(f"{_PAGED}\n{command(cpu=2)}"),
    "mmap": Kind(f"{_python(_MAPPED)}\n{command(cpu=2)}"),
    "killed outright": Kind(command(cpu=600)),  # scancel -s KILL --full
    "cancelled": Kind(command(cpu=600)),
    "suspended": Kind(command(cpu=8)),
    "requeued": Kind(command(cpu=7)),
    "short": Kind(command(cpu=0.4), count=6),
    "over a restart": Kind(command(cpu=10), count=4),
}


class Job(NamedTuple):
    """One that was run, and what was seen of it."""

    kind: str
    jobid: str
    uid: int


class Error(NamedTuple):
    """By how much a figure of a job is off."""

    job: Job
    truth: float
    told: float

    @property
    def ratio(self) -> float:
        """1 is all of it."""
        return abs(self.told - self.truth) / self.truth


def run() -> tuple[list[Job], "Counters", list[taskstats.Record], "Cgroups"]:
    """Run all jobs: what was seen of them, and by the kernel of their tasks."""
    names = [(kind, number) for kind, each in KINDS.items() for number in range(each.count)]
    users = {f"user{number:02}": 21_000 + number for number in range(len(names))}
    # A user for each job: the kernel's records have the user's id.
    slurm_files.USERS.update(users)
    slurm_files.ACCOUNTS.update(all=tuple(users))
    counters = Counters()
    jobs: list[Job] = []
    with (
        slurm.cluster(cgroup=1, nodes=4, cpus=4) as cluster,
        taskstats.recording() as records,
        _cgroups() as cgroups,
    ):
        with _scraped(counters):
            for (kind, _), (user, uid) in zip(names, users.items(), strict=True):
                script = f"cd ~\n{KINDS[kind].script}"
                jobid = cluster.submit(
                    user, script, "--mem=150M", "--time=30", *KINDS[kind].options
                )
                jobs.append(Job(kind, jobid, uid))
            _disturb(cluster, jobs)
        with _scraped(counters), _restarted(cluster, cluster.nodes[0]):
            cluster.wait(*(job.jobid for job in jobs), timeout=900)
            time.sleep(2 * SCRAPE_SECONDS)
            counters.accounted = {job.jobid: _accounted(cluster, job.jobid) for job in jobs}
    return jobs, counters, records, cgroups


def _disturb(cluster: slurm.Cluster, jobs: Sequence[Job]) -> None:
    """Do to the jobs what their kinds say, once each has run for some seconds."""
    commands = {
        "suspended": (("scontrol", "suspend"), ("scontrol", "resume")),
        "requeued": (("scontrol", "requeue"),),
        "killed outright": (("scancel", "--signal=KILL", "--full"),),
        "cancelled": (("scancel",),),
        "over a restart": (),
    }
    for job in jobs:
        if job.kind in commands:
            until(partial(_started, cluster, job), f"start of {job}", 300)
            for command_line in commands[job.kind]:
                time.sleep(3)
                cluster.command(*command_line, job.jobid)


def _started(cluster: slurm.Cluster, job: Job) -> bool:
    return cluster.states()[job.jobid] != "PENDING"


class Cgroups(NamedTuple):
    """What was seen in the jobs' own cgroups."""

    owners: Mapping[int, str]  # the job of a thread, for slurmstepd's, which are root's
    used: Mapping[tuple[str, int], float]  # last CPU seconds by job and inode


class Counters:
    """What scrapes had of each job's counters; one that falls goes on from where it was."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], float] = {}
        self._sums: dict[tuple[str, str], float] = defaultdict(float)
        self.accounted: Mapping[str, float] = {}

    def take(self, scrape: exporter.Scrape) -> None:
        """Add a scrape."""
        for name, series in scrape.samples.items():
            if not name.startswith("batchjob_job_") or not name.endswith("_total"):
                continue
            for labels, value in series:
                key = (labels["jobid"], name, str(sorted(labels.items())))
                before = self._last.get(key, 0.0)
                self._sums[key[:2]] += value - before if value >= before else value
                self._last[key] = value

    def of(self, jobid: str, name: str) -> float:
        """A counter's total over all its labels."""
        return self._sums[jobid, f"batchjob_job_{name}_total"]


@contextlib.contextmanager
def _scraped(counters: Counters) -> Iterator[None]:
    """Run an exporter as its unit does, with the right to see processes' files, and scrape it."""
    rights = {"AmbientCapabilities": "CAP_DAC_READ_SEARCH CAP_SYS_PTRACE"}
    flags = (
        "--collector.disable-defaults", "--collector.jobs", f"--collector.jobs.linger={LINGER}",
        "--collector.jobs.metrics=cpu", "--collector.jobs.metrics=process-io",
    )  # fmt: skip
    with exporter.as_the_unit(*flags, changed=rights) as target:
        stopped = threading.Event()

        def scrape() -> None:
            while not stopped.is_set():
                counters.take(target.scrape())
                stopped.wait(SCRAPE_SECONDS)

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            counters.take(target.scrape())


@contextlib.contextmanager
def _cgroups() -> Iterator[Cgroups]:
    """Look at the jobs' cgroups ten times a second."""
    owners: dict[int, str] = {}
    used: dict[tuple[str, int], float] = {}
    stopped = threading.Event()

    def look() -> None:
        while not stopped.wait(0.1):
            for folder, _, files in os.walk("/sys/fs/cgroup/cpuacct"):  # what goes meanwhile, goes
                job = next((part for part in folder.split("/") if part.startswith("job_")), "")
                with contextlib.suppress(OSError):
                    if job and "tasks" in files:
                        tasks = Path(folder, "tasks").read_text().split()
                        owners.update(dict.fromkeys(map(int, tasks), job[4:]))
                    if job and folder.endswith(job):  # a new inode for each run on each node
                        seconds = int(Path(folder, "cpuacct.usage").read_text()) / 1e9
                        used[job[4:], os.stat(folder).st_ino] = seconds

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield Cgroups(owners, used)
    finally:
        stopped.set()
        thread.join()


@contextlib.contextmanager
def _restarted(cluster: slurm.Cluster, node: str) -> Iterator[None]:
    """Stop a node's slurmd, and run another in its place."""
    pid = int((cluster.root / f"slurmd-{node}.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    log = cluster.root / "log" / "slurmd-again.out"
    time.sleep(2)
    argv = cluster.inside("slurmd", "-D", "-N", node)
    with daemon(argv, log, cluster.environ):
        yield


def _accounted(cluster: slurm.Cluster, jobid: str) -> float:
    """CPU seconds of all runs of a job, as sacct has them."""
    text = cluster.command(
        "sacct", "--parsable2", "--noheader", "--duplicates",
        f"--jobs={jobid}", "--format=JobID,TotalCPU",
    )  # fmt: skip
    rows = [line.split("|") for line in text.splitlines()]
    return sum(_seconds(seconds) for name, seconds in rows if "." in name)


def _seconds(text: str) -> float:
    """As sacct writes them: [DD-[HH:]]MM:SS[.mmm]."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return total + 86400 * int(days or 0)


class Truth(NamedTuple):
    """A job by the kernel's records."""

    cpu_seconds: float
    characters_read: float
    characters_written: float


def truth_of(job: Job, records: Sequence[taskstats.Record], cgroups: Cgroups) -> Truth:
    """Of the tasks of its user, and of slurmstepd's threads in its cgroups.

    A task's record lacks its last slice of time, so that of many short ones much is missing; the
    cgroup's own counter lacks what is used after the last look at it. So the larger one is nearer.
    """
    own = [each for each in records if each.uid == job.uid]
    steps = [each for each in records if each.task in cgroups.owners and not each.uid]
    by_task = sum(
        each.cpu_seconds
        for each in (*own, *(each for each in steps if cgroups.owners[each.task] == job.jobid))
    )
    by_cgroup = sum(used for (jobid, _), used in cgroups.used.items() if jobid == job.jobid)
    return Truth(
        max(by_task, by_cgroup),
        sum(each.read_characters for each in own),
        sum(each.written_characters for each in own),
    )


def row(name: str, errors: Sequence[Error]) -> str:
    """A line of the table."""
    sizes = sorted(error.ratio for error in errors)
    if not sizes:
        return f"| {name} | 0 | | | |"
    told = (sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))], sizes[-1])
    worst = max(errors, key=lambda error: error.ratio).job.kind
    cells = " | ".join(f"{100 * each:.2f} %" for each in told)
    return f"| {name} | {len(sizes)} | {cells} | {worst} |"


def main() -> None:
    """Run, compare, print."""
    jobs, counters, records, cgroups = run()
    cpu, slurms, read, written = [], [], [], []
    for job in jobs:
        truth = truth_of(job, records, cgroups)
        cpu.append(Error(job, truth.cpu_seconds, counters.of(job.jobid, "cpu_seconds")))
        slurms.append(Error(job, truth.cpu_seconds, counters.accounted[job.jobid]))
        for found, true, name in (
            (read, truth.characters_read, "process_io_read_characters"),
            (written, truth.characters_written, "process_io_written_characters"),
        ):
            if true > MIB:
                found.append(Error(job, true, counters.of(job.jobid, name)))
    print(f"{len(jobs)} jobs, {len(records)} tasks ended")
    print("| quantity | jobs | median | p90 | maximum | of which kind |")
    print("|---|---|---|---|---|---|")
    print(row("CPU time", cpu))
    print(row("CPU time by sacct", slurms))
    print(row("read by system calls", read))
    print(row("written by system calls", written))
    for error in sorted(cpu, key=lambda error: error.ratio, reverse=True)[:8]:
        print(f"{error.job.kind}: {error.told:.3f} s of {error.truth:.3f} s")
    unseen = [error.job.kind for error in cpu if not error.told]
    print(f"not seen: {', '.join(unseen) or 'none'}")


if __name__ == "__main__":
    main()

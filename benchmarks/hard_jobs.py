"""Jobs of a real Slurm that are hard to measure, and what is done to them while they run."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tests.e2e import slurm
from tests.e2e.workload import PYTHON, command
from tests.helpers.processes import daemon
from tests.helpers.waiting import until

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
ON_TWO_NODES = frozenset(("two steps on two nodes",))
INTERRUPTED = frozenset(("suspended", "requeued"))
"""Kinds whose time is not all from their first task's start to the last one's end."""

USERS = {
    f"user{number:02}": 21_000 + number
    for number in range(sum(kind.count for kind in KINDS.values()))
}
"""One for each job, since the kernel's records have the user's id."""


class Job(NamedTuple):
    """One that was run."""

    kind: str
    jobid: str
    uid: int


def submit(cluster: slurm.Cluster) -> list[Job]:
    """Submit them all."""
    kinds = [kind for kind, each in KINDS.items() for _ in range(each.count)]
    return [submitted(cluster, kind, user) for kind, user in zip(kinds, USERS, strict=True)]


def submitted(cluster: slurm.Cluster, kind: str, user: str) -> Job:
    """Submit one."""
    script = f"cd ~\n{KINDS[kind].script}"
    jobid = cluster.submit(user, script, "--mem=150M", "--time=30", *KINDS[kind].options)
    return Job(kind, jobid, USERS[user])


def disturb(cluster: slurm.Cluster, jobs: Sequence[Job]) -> None:
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
            until(partial(started, cluster, job), f"start of {job}", 300)
            for command_line in commands[job.kind]:
                time.sleep(3)
                cluster.command(*command_line, job.jobid)


def started(cluster: slurm.Cluster, job: Job) -> bool:
    """Whether it waits no more."""
    return cluster.states()[job.jobid] != "PENDING"


@contextlib.contextmanager
def restarted(cluster: slurm.Cluster, node: str) -> Iterator[None]:
    """Stop a node's slurmd, and run another in its place."""
    pid = int((cluster.root / f"slurmd-{node}.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    log = cluster.root / "log" / "slurmd-again.out"
    time.sleep(2)
    argv = cluster.inside("slurmd", "-D", "-N", node)
    with daemon(argv, log, cluster.environ):
        yield

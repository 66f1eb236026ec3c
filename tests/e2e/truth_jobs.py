"""Unusual jobs for a real Slurm, each by a user of its own, and what the kernel counts of them.

The cgroups that Slurm creates for a user count the CPU time and the peak memory of all cgroups
below, including removed ones; an extra child keeps Slurm from removing them.
"""

import bisect
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.e2e import slurm
from tests.e2e.workload import PYTHON, command
from tests.helpers.waiting import until

MIB = 1 << 20
_CGROUPS = Path("/sys/fs/cgroup")
_READING_INTERVAL_SECONDS = 0.3


def _python(program: str) -> str:
    return f"{PYTHON} -S -E -c {shlex.quote(program)}"


_HALF = """import time
for _ in range(12):
    until = time.time() + 0.5
    while time.time() < until: pass
    time.sleep(0.5)
"""
_THREADS = """import threading, time
for _ in range(150):
    threading.Thread(target=time.sleep, args=(8,)).start()
"""
_ZOMBIES = """import os, time
for _ in range(20):
    if not os.fork(): os._exit(0)
time.sleep(8)
"""
_RAMP = """import time
held = []
for _ in range(12):
    held.append(bytearray(8 << 20))
    time.sleep(1)
"""
_SHARED = """import mmap, os, time
held = mmap.mmap(-1, 64 << 20)
held.write(b'x' * len(held))
os.fork()
time.sleep(6)
"""
_DIRECTLY = """import mmap, os, time
page = mmap.mmap(-1, 1 << 20)
file = os.open(os.path.expanduser('~/out'), os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
for _ in range(24):
    os.write(file, page)
    time.sleep(0.5)
time.sleep(8)
"""
_HELD = """import mmap, time
held = mmap.mmap(-1, {} << 20, flags=34)
held.write(b'x' * len(held))
"""
_THREE = "import time\nwhile time.process_time() < 3: pass"
_ON_TWO_NODES = ("--nodes=2", "--ntasks=2", "--ntasks-per-node=1")
_SPIKE = _python(_HELD.format(150) + "time.sleep(0.05)")
_TOO_MUCH = _python(_HELD.format(400) + "time.sleep(20)")
_DIRECT = "dd if=/dev/zero of=~/out{} bs=1M count={} oflag=direct status=none"


class Kind(NamedTuple):
    """A kind of job."""

    script: str
    options: Sequence[str] = ()
    act: Callable[[slurm.Cluster, str], None] | None = None
    """What is done to it once it runs, or waits if it is held."""
    written_bytes: int | None = None
    """What its processes write to disk, where that is known."""
    starts: bool = True


def _after(seconds: float, *words: str) -> Callable[[slurm.Cluster, str], None]:
    """Run a command of Slurm for the job; {} stands for its id."""

    def act(cluster: slurm.Cluster, jobid: str) -> None:
        time.sleep(seconds)
        cluster.command(*(word.format(jobid) for word in words))

    return act


def _suspended(cluster: slurm.Cluster, jobid: str) -> None:
    time.sleep(6)
    cluster.command("scontrol", "suspend", jobid)
    time.sleep(9)
    cluster.command("scontrol", "resume", jobid)


def _cancelled_while(*words: str) -> Callable[[slurm.Cluster, str], None]:
    """Do something to the job, and cancel it some seconds later."""

    def act(cluster: slurm.Cluster, jobid: str) -> None:
        _after(6, "scontrol", *words, "{}")(cluster, jobid)
        _after(5, "scancel", "{}")(cluster, jobid)

    return act


def _requeued(cluster: slurm.Cluster, jobid: str) -> None:
    time.sleep(8)
    cluster.command("scontrol", "requeue", jobid)
    cluster.wait(jobid, state="PENDING")
    # Slurm lets a requeued job wait for two minutes; the end of the first run is an earlier second.
    time.sleep(2)
    cluster.command("scontrol", "update", f"JobId={jobid}", "StartTime=now")


KINDS: Mapping[str, Kind] = {
    "busy": Kind(command(8)),
    "busier": Kind(command(20, 50, 1)),
    "short": Kind(command(0.3)),
    "instant": Kind("true"),
    "idle": Kind("sleep 15"),
    "half": Kind(_python(_HALF)),
    "system": Kind("dd if=/dev/zero of=/dev/null bs=64k count=150000 status=none; sleep 2"),
    "twothreads": Kind(f"{command(4)} & {command(4)} & wait"),
    "children": Kind("for i in $(seq 200); do /bin/true; done; sleep 2"),
    "threads": Kind(_python(_THREADS)),
    "processes": Kind("for i in $(seq 150); do sleep 8 & done; wait", ("--mem=400M",)),
    "nice": Kind(f"nice -n 19 {command(4, sleep=2)}"),
    "zombies": Kind(_python(_ZOMBIES)),
    "stopped": Kind(f"{command(5)} & sleep 1; kill -STOP $!; sleep 8; kill -CONT $!; wait"),
    "orphan": Kind(f"setsid {command(3, 30, 30)} & sleep 8"),
    "background": Kind(f"{command(3)} & wait"),
    "srun": Kind(f"srun {command(5, 30)}"),
    "steps": Kind(f"for i in 1 2 3; do srun {command(1.5, 20)}; done"),
    "manysteps": Kind("for i in $(seq 8); do srun true; done"),
    "parallel": Kind(
        f"srun --exact -n1 {command(4)} & srun --exact -n1 {command(3)} & wait", ("-n2",)
    ),
    "laststep": Kind(f"sleep 6; srun {command(0.5, 60)}"),
    "stepkilled": Kind("srun sh -c 'kill -SEGV $$'; sleep 3"),
    "exit3": Kind(f"{command(1)}; exit 3"),
    "exit137": Kind(f"{command(1)}; exit 137"),
    "signalled": Kind(f"{command(1)}; kill -ABRT $$"),
    "killed": Kind(command(60, 20), act=_after(8, "scancel", "--signal=KILL", "--full", "{}")),
    "cancelled": Kind(command(60, 20), act=_after(10, "scancel", "{}")),
    "cancelledsoon": Kind("sleep 60", act=_after(0, "scancel", "{}")),
    "trapped": Kind(
        "trap 'exit 0' TERM; sleep 60 & wait",
        act=_after(8, "scancel", "--batch", "--signal=TERM", "{}"),
    ),
    "timeout": Kind(f"{command(6, 40)}; sleep 300", ("--time=1",)),
    "suspended": Kind(f"{command(10, 30)}", act=_suspended),
    "suspendedend": Kind(command(60, 20), act=_cancelled_while("suspend")),
    "requeued": Kind(
        f"{command(4, 40)}; [ ${{SLURM_RESTART_COUNT:-0}} -gt 0 ] || sleep 600", ("--requeue",),
        _requeued,
    ),
    "requeuehold": Kind(
        f"{command(3)}; sleep 600", ("--requeue",), _cancelled_while("requeuehold")
    ),
    "oom": Kind(_TOO_MUCH, ("--mem=120M",)),
    "oomstep": Kind(f"srun {_TOO_MUCH}; sleep 4", ("--mem=120M",)),
    "spike": Kind(f"{_SPIKE}; sleep 6", ("--mem=400M",)),
    "spikeend": Kind(f"sleep 6; {_SPIKE}", ("--mem=400M",)),
    "ramp": Kind(_python(_RAMP), ("--mem=300M",)),
    "shm": Kind(
        "dd if=/dev/zero of=/dev/shm/truth$$ bs=1M count=80 status=none; sleep 5; "
        "rm /dev/shm/truth$$",
        ("--mem=300M",),
    ),
    "shared": Kind(_python(_SHARED), ("--mem=300M",)),
    "cache": Kind("dd if=/dev/zero of=~/out bs=1M count=120 status=none; sleep 6", ("--mem=300M",)),
    "direct": Kind(f"{_DIRECT.format('', 60)}; sleep 8"),
    "directlong": Kind(_python(_DIRECTLY), written_bytes=24 * MIB),
    "directshort": Kind(
        f"for i in $(seq 10); do {_DIRECT.format('$i', 4)}; done; sleep 3",
        written_bytes=40 * MIB,
    ),
    "read": Kind(
        f"{_DIRECT.format('', 40)}; dd if=~/out of=/dev/null bs=1M iflag=direct; sleep 6"
    ),
    "array": Kind(command(2, 20, 2), ("--array=1-4",)),
    "arraymixed": Kind(f"{command(1)}; exit $((SLURM_ARRAY_TASK_ID % 2))", ("--array=3,5-6%1",)),
    "het": Kind(f"srun --het-group=0,1 {command(2)}", ("-n1", ":", "-n1")),
    "twonodes": Kind(f"srun {command(6, 30)}", _ON_TWO_NODES),
    "oneends": Kind(
        f"srun sh -c '[ $SLURM_PROCID = 0 ] && exec sleep 16; exec {PYTHON} -c \"{_THREE}\"'",
        _ON_TWO_NODES,
    ),
    "oneidle": Kind(command(6, 30, 4), ("--nodes=2",)),
    "fournodes": Kind(f"srun {command(1.5, 10, 3)}", ("--nodes=4", "--ntasks=4")),
    "held": Kind(command(2), ("--hold",), _after(8, "scontrol", "release", "{}")),
    "heldcancelled": Kind("true", ("--hold",), _after(8, "scancel", "{}"), starts=False),
    "later": Kind(command(2), ("--begin=now+6",)),
    "neverbegun": Kind("true", ("--begin=now+1hour",), _after(5, "scancel", "{}"), starts=False),
    "exclusive": Kind(command(4, 30, 4), ("--exclusive",)),
    "twocpus": Kind(f"srun -n1 -c2 {command(4)}", ("--cpus-per-task=2",)),
    "oddname": Kind(command(2), ("--job-name=a \"b\" =1+1;<b>ü|x",)),
    "noname": Kind(command(2), ("--job-name=",)),
    "commented": Kind(command(2), ("--comment=100%|a,b",)),
    "resized": Kind(
        f"srun {command(2)}; scontrol update JobId=$SLURM_JOB_ID NumNodes=1; sleep 8",
        ("--nodes=2",),
    ),
    "longerlimit": Kind(
        command(4, sleep=4), ("--time=2",),
        _after(3, "scontrol", "update", "JobId={}", "TimeLimit=9"),
    ),
    "shorterlimit": Kind(
        f"{command(3)}; sleep 300", ("--time=9",),
        _after(6, "scontrol", "update", "JobId={}", "TimeLimit=1"),
    ),
    "lastmoment": Kind(f"sleep 9; {command(0.5)}"),
    "burst": Kind(f"{command(1)}; sleep 9; {command(1)}"),
    "selfcancel": Kind(f"{command(1)}; scancel $SLURM_JOB_ID; sleep 30"),
}  # fmt: skip


class Truth:
    """What the kernel counts of the jobs of one user."""

    def __init__(self, cluster: slurm.Cluster, user: str) -> None:
        folders = [f"slurm_{node}/uid_{cluster.users[user]}" for node in cluster.nodes]
        self._cpu = [_CGROUPS / f"cpuacct/{folder}/cpuacct.usage" for folder in folders]
        self._memory = [
            _CGROUPS / f"memory/{folder}/memory.max_usage_in_bytes" for folder in folders
        ]
        for file in (*self._cpu, *self._memory):
            (file.parent / "keep").mkdir(parents=True, exist_ok=True)
        self._readings: list[tuple[float, float]] = [(time.time(), 0.0)]

    def read(self) -> None:
        """Read the CPU time now."""
        self._readings.append((time.time(), self.cpu_seconds()))

    def cpu_seconds(self) -> float:
        """All CPU time."""
        return sum(int(file.read_text()) for file in self._cpu) / 1e9

    def peak_bytes(self) -> int:
        """Sum of the nodes' peaks."""
        return sum(int(file.read_text()) for file in self._memory)

    def cpu_seconds_at(self, at: float) -> float:
        """CPU time until then, interpolated between two readings."""
        index = bisect.bisect_left(self._readings, (at, 0.0))
        if index in (0, len(self._readings)):
            return self._readings[max(index - 1, 0)][1]
        (before, low), (after, high) = self._readings[index - 1 : index + 1]
        return low + (high - low) * (at - before) / (after - before)


class Watcher:
    """Reads what the kernel counts of all jobs, in a thread; young jobs begin between readings."""

    def __init__(self, truths: Mapping[str, Truth]) -> None:
        self._truths = truths
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_READING_INTERVAL_SECONDS):
            for truth in self._truths.values():
                truth.read()


def act(cluster: slurm.Cluster, user: str, jobid: str) -> None:
    """Do to a job what is done to its kind, in a thread of its own."""
    kind = KINDS[user]
    if kind.act is None:
        return
    if "--hold" not in kind.options and kind.starts:
        until(lambda: cluster.states().get(jobid) != "PENDING", f"start of {user}", 600, 0.5)
    kind.act(cluster, jobid)

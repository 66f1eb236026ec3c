"""What jobs used by the kernel's own counts, apart from any exporter.

Each job has a user of its own. On cgroup v1 the directory that Slurm makes for the user in
`cpuacct` counts what all directories below it did, also of those that were removed: one of ours in
it keeps Slurm from removing it, and so it is exact when the job is long over. On v2 the node's own
directory counts so; with one job after the other, the difference is the job's. Peaks of memory are
those of the job's own directories, looked at many times a second. What processes read, wrote and
when they ran is in the records of the tasks that ended.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.hard_jobs import ON_TWO_NODES, USERS, Job
from benchmarks.taskstats import Record
from tests.e2e import slurm

_CGROUPS = Path("/sys/fs/cgroup")
_CPUACCT = _CGROUPS / "cpuacct"
_NOT_THE_JOB = "sbatch"  # runs as the job's user, but only submits the job


class Truth(NamedTuple):
    """A job by the kernel."""

    cpu_seconds: float
    recorded_cpu_seconds: float  # from the task records, which lack each task's last time slice
    peak_memory_bytes: float
    elapsed_seconds: float
    characters_read: float
    characters_written: float


class Looks(NamedTuple):
    """What was seen in the jobs' own directories."""

    owners: dict[int, str]  # thread → job, for threads of slurmstepd, which belong to root
    peaks: dict[Path, int]  # directory of a job on a node → bytes


class _Files(NamedTuple):
    """Where a hierarchy has them: in a job's directory, and two below it."""

    peaks: str
    tasks: str


_FILES = {
    1: _Files("memory/slurm_*/uid_*/job_*/memory.max_usage_in_bytes",
              "cpuacct/slurm_*/uid_*/job_*/step_*/task_*/tasks"),
    2: _Files("system.slice/*_slurmstepd.scope/job_*/memory.peak",
              "system.slice/*_slurmstepd.scope/job_*/step_*/slurm/cgroup.threads"),
}  # fmt: skip


def hold(cluster: slurm.Cluster) -> None:
    """Keep Slurm from removing the users' directories."""
    for node in cluster.nodes:
        for uid in USERS.values():
            (_CPUACCT / f"slurm_{node}" / f"uid_{uid}" / "held").mkdir(parents=True)


def cpu_seconds_of_jobs(cluster: slurm.Cluster) -> float:
    """Of all jobs of cgroup v2 so far: without what Slurm has beside them to keep their place."""
    scopes = [scope for node in cluster.nodes for scope in cluster.cgroups(node)]
    beside = [
        each for scope in scopes for each in scope.glob("*/") if not each.name.startswith("job_")
    ]
    return sum(map(_usage, scopes)) - sum(map(_usage, beside))


def _usage(directory: Path) -> float:
    name, microseconds = (directory / "cpu.stat").read_text().split()[:2]
    assert name == "usage_usec"
    return int(microseconds) / 1e6


def cpu_seconds(cluster: slurm.Cluster) -> dict[int, float]:
    """Of all that each user ran on cgroup v1, on all nodes."""
    return {
        uid: sum(
            int((_CPUACCT / f"slurm_{node}" / f"uid_{uid}" / "cpuacct.usage").read_text())
            for node in cluster.nodes
        )
        / 1e9
        for uid in USERS.values()
    }


@contextlib.contextmanager
def looking(cgroup: int = 1) -> Iterator[Looks]:
    """Look at the jobs' directories again and again."""
    looks = Looks({}, {})
    stopped = threading.Event()
    threads = [
        threading.Thread(target=_repeat, args=(look, _FILES[cgroup], looks, seconds, stopped))
        for look, seconds in ((_look_at_peaks, 0.05), (_look_at_owners, 0.2))
    ]
    for each in threads:
        each.start()
    try:
        yield looks
    finally:
        stopped.set()
        for each in threads:
            each.join()


def _repeat(
    look: Callable[[_Files, Looks], None], files: _Files, looks: Looks, seconds: float,
    stopped: threading.Event,
) -> None:  # fmt: skip
    while not stopped.wait(seconds):
        look(files, looks)


def _look_at_peaks(files: _Files, looks: Looks) -> None:
    for file in _found(files.peaks):
        with contextlib.suppress(OSError):
            job = file.parent
            looks.peaks[job] = max(looks.peaks.get(job, 0), int(file.read_text()))


def _look_at_owners(files: _Files, looks: Looks) -> None:
    for file in _found(files.tasks):
        with contextlib.suppress(OSError):
            tasks = map(int, file.read_text().split())
            looks.owners.update(dict.fromkeys(tasks, _jobid(file.parents[2])))


def _found(pattern: str) -> list[Path]:
    """Files of the jobs that are there; none where one goes meanwhile: the next look is soon."""
    try:
        return list(_CGROUPS.glob(pattern))
    except OSError:
        return []


def _jobid(directory: Path) -> str:
    return directory.name.removeprefix("job_")


def truth_of(job: Job, records: Sequence[Record], looks: Looks, used: Mapping[int, float]) -> Truth:
    """Of the tasks of its user, and of slurmstepd's threads in its directories."""
    own = [each for each in records if each.uid == job.uid and each.command != _NOT_THE_JOB]
    steps = [each for each in records if not each.uid and looks.owners.get(each.task) == job.jobid]
    both = (*own, *steps)
    peaks = [peak for folder, peak in looks.peaks.items() if _jobid(folder) == job.jobid] or [0]
    return Truth(
        used[job.uid],
        sum(each.cpu_seconds for each in both),
        # If on one node: the maximum over the job's runs.
        sum(peaks) if job.kind in ON_TWO_NODES else max(peaks),
        max(each.ended for each in both) - min(each.ended - each.elapsed_seconds for each in both),
        sum(each.read_characters for each in own),
        sum(each.written_characters for each in own),
    )

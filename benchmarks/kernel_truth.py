"""What jobs of cgroup v1 used by the kernel's own counts, apart from any exporter.

Each job has a user of its own. The directory that Slurm makes for the user in `cpuacct` counts
what all directories below it did, also of those that were removed: one of ours in it keeps Slurm
from removing it, and so it is exact when the job is long over. Peaks of memory are those of the
job's own directories, looked at twenty times a second. What processes read, wrote and when they ran
is in the records of the tasks that ended.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.hard_jobs import ON_TWO_NODES, USERS, Job
from benchmarks.taskstats import Record
from tests.e2e import slurm

_CPUACCT = Path("/sys/fs/cgroup/cpuacct")
_MEMORY = Path("/sys/fs/cgroup/memory")
_NOT_THE_JOB = "sbatch"  # ran as the job's user to submit it


class Truth(NamedTuple):
    """A job by the kernel."""

    cpu_seconds: float
    recorded_cpu_seconds: float  # by the records, which lack each task's last slice of time
    peak_memory_bytes: float
    elapsed_seconds: float
    characters_read: float
    characters_written: float


class Looks(NamedTuple):
    """What was seen in the jobs' own directories."""

    owners: dict[int, str]  # the job of a thread, for slurmstepd's, which are root's
    peaks: dict[tuple[str, str], int]  # bytes by job and node


def hold(cluster: slurm.Cluster) -> None:
    """Keep Slurm from removing the users' directories."""
    for node in cluster.nodes:
        for uid in USERS.values():
            (_CPUACCT / f"slurm_{node}" / f"uid_{uid}" / "held").mkdir(parents=True)


def cpu_seconds(cluster: slurm.Cluster) -> dict[int, float]:
    """Of all that each user ran, on all nodes."""
    return {
        uid: sum(
            int((_CPUACCT / f"slurm_{node}" / f"uid_{uid}" / "cpuacct.usage").read_text())
            for node in cluster.nodes
        )
        / 1e9
        for uid in USERS.values()
    }


@contextlib.contextmanager
def looking() -> Iterator[Looks]:
    """Look at the jobs' directories again and again."""
    looks = Looks({}, {})
    stopped = threading.Event()
    threads = [
        threading.Thread(target=_repeat, args=(look, looks, seconds, stopped))
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
    look: Callable[[Looks], None], looks: Looks, seconds: float, stopped: threading.Event
) -> None:
    while not stopped.wait(seconds):
        look(looks)


def _look_at_peaks(looks: Looks) -> None:
    for file in _MEMORY.glob("slurm_*/uid_*/job_*/memory.max_usage_in_bytes"):
        with contextlib.suppress(OSError):  # what goes meanwhile, goes
            key = file.parts[-2][4:], file.parts[-4]
            looks.peaks[key] = max(looks.peaks.get(key, 0), int(file.read_text()))


def _look_at_owners(looks: Looks) -> None:
    for file in _CPUACCT.glob("slurm_*/uid_*/job_*/step_*/task_*/tasks"):
        with contextlib.suppress(OSError):
            tasks = map(int, file.read_text().split())
            looks.owners.update(dict.fromkeys(tasks, file.parts[-4][4:]))


def truth_of(job: Job, records: Sequence[Record], looks: Looks, used: Mapping[int, float]) -> Truth:
    """Of the tasks of its user, and of slurmstepd's threads in its directories."""
    own = [each for each in records if each.uid == job.uid and each.command != _NOT_THE_JOB]
    steps = [each for each in records if not each.uid and looks.owners.get(each.task) == job.jobid]
    both = (*own, *steps)
    peaks = [peak for (jobid, _), peak in looks.peaks.items() if jobid == job.jobid] or [0]
    return Truth(
        used[job.uid],
        sum(each.cpu_seconds for each in both),
        sum(peaks) if job.kind in ON_TWO_NODES else max(peaks),  # or of each of its runs
        max(each.ended for each in both) - min(each.ended - each.elapsed_seconds for each in both),
        sum(each.read_characters for each in own),
        sum(each.written_characters for each in own),
    )

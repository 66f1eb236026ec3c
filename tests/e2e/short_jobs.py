"""Short jobs in this machine's own cgroups, and how much of them an exporter shows.

The trees have the shape Slurm makes; counters and events are the kernel's own. Needs root.
"""

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from tests.e2e import exporter
from tests.e2e.workload import argv

UID = 20001
SCRAPE_INTERVAL = 15.0
_V1_HIERARCHIES = ("cpuacct", "memory", "freezer")

Version = Literal[1, 2]


class Job(NamedTuple):
    """One finished job and what the kernel had counted when its directory was removed."""

    jobid: str
    cpu_seconds: float


class Kept(NamedTuple):
    """What an exporter showed of the jobs in the end."""

    jobs: int
    unseen: list[str]
    part: float  # of all CPU seconds
    scrapes: int


def mounts(version: Version) -> list[Path]:
    """Where the hierarchies are mounted; none where this machine lacks one."""
    rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    if version == 2:
        return [Path(target) for _, target, kind, *_ in rows if kind == "cgroup2"][:1]
    found = {
        name: Path(target)
        for _, target, kind, options, *_ in rows
        if kind == "cgroup"
        for name in _V1_HIERARCHIES
        if name in options.split(",")
    }
    return [found[name] for name in _V1_HIERARCHIES] if len(found) == len(_V1_HIERARCHIES) else []


@contextlib.contextmanager
def scopes(version: Version) -> Iterator[list[Path]]:
    """Directories named as Slurm names a node's, one in each hierarchy; removed at the end."""
    name = f"e2e-{os.getpid()}"
    tops = [
        mount / (f"{name}_slurmstepd.scope" if version == 2 else f"slurm_{name}")
        for mount in mounts(version)
    ]
    for top in tops:
        top.mkdir()
    try:
        yield tops
    finally:
        for top in tops:
            _remove(top)


@contextlib.contextmanager
def full_node(each_cpu: int = 3) -> Iterator[None]:
    """Busy processes on every CPU, as the jobs of a full node are."""
    count = each_cpu * len(os.sched_getaffinity(0))
    busy = [subprocess.Popen(argv(cpu=1e6)) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measured(
    tops: Sequence[Path],
    target: exporter.Target,
    jobs: int,
    at_once: int,
    removed_after: float,
    seconds: tuple[float, float] = (0.3, 3.0),
) -> Kept:
    """Run the jobs, scrape as Prometheus would, and compare what was shown with the kernel's."""
    first = 1000 * os.getpid()
    scrapes = []
    with ThreadPoolExecutor(at_once) as pool:
        running = [
            pool.submit(_run, tops, first + number, random.uniform(*seconds), removed_after)
            for number in range(jobs)
        ]
        while not all(each.done() for each in running):
            scrapes.append(target.scrape())
            _sleep_until_done(running)
    scrapes.append(target.scrape())
    done = [each.result() for each in running]
    shown = {job: _last_cpu_seconds(scrapes, job.jobid) for job in done}
    return Kept(
        jobs,
        [job.jobid for job, value in shown.items() if value is None],
        sum(value or 0.0 for value in shown.values()) / sum(job.cpu_seconds for job in done),
        len(scrapes),
    )


def _run(tops: Sequence[Path], jobid: int, lifetime: float, removed_after: float) -> Job:
    """Make the job's directories, run its only process as an ordinary user, remove them."""
    version: Version = 2 if tops[0].name.endswith(".scope") else 1
    top_of = [
        top / f"job_{jobid}" if version == 2 else top / f"uid_{UID}/job_{jobid}" for top in tops
    ]
    below = "step_batch/user/task_0" if version == 2 else "step_batch/task_0"
    tasks = [job / below for job in top_of]
    for task in tasks:
        task.mkdir(parents=True)
    busy = lifetime * random.uniform(0.3, 0.9)
    setpriv = f"setpriv --reuid={UID} --regid={UID} --clear-groups"
    enter = " ".join(f"echo $$ > {task}/cgroup.procs;" for task in tasks)
    program = argv(cpu=busy, sleep=lifetime - busy)
    environ = {"SLURM_JOB_ID": str(jobid), "PATH": os.environ["PATH"]}
    script = f'{enter} exec {setpriv} "$@"'
    subprocess.run(["/bin/sh", "-c", script, "sh", *program], env=environ, check=True)
    time.sleep(removed_after)
    used = _cpu_seconds(top_of[0], version)
    for job in top_of:
        _remove(job)
    return Job(str(jobid), used)


def _cpu_seconds(job: Path, version: Version) -> float:
    if version == 1:
        return int((job / "cpuacct.usage").read_text()) / 1e9
    cpu = dict(line.split() for line in (job / "cpu.stat").read_text().splitlines())
    return int(cpu["usage_usec"]) / 1e6


def _remove(top: Path) -> None:
    for folder in sorted([*top.rglob("*/"), top], reverse=True):
        folder.rmdir()


def _last_cpu_seconds(scrapes: list[exporter.Scrape], jobid: str) -> float | None:
    name = "batchjob_job_cpu_seconds_total"
    seen = [each for each in scrapes if each.series(name, jobid=jobid, manager="slurm")]
    return seen[-1].total(name, jobid=jobid, manager="slurm") if seen else None


def _sleep_until_done(running: Sequence[object]) -> None:
    deadline = time.monotonic() + SCRAPE_INTERVAL
    while not all(each.done() for each in running) and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.05)

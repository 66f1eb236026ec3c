"""Short jobs in this machine's cgroups, and how much of them an exporter reports.

The cgroups are laid out as by Slurm; counters and events come from the kernel. Needs root.
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

CgroupVersion = Literal[1, 2]


class FinishedJob(NamedTuple):
    """A finished job and the kernel's count when its cgroup was removed."""

    jobid: str
    cpu_seconds: float


class ExporterCoverage(NamedTuple):
    """How much of the jobs an exporter reported in its scrapes."""

    job_count: int
    unseen_jobs: list[str]
    cpu_seconds_ratio: float  # reported CPU seconds / those of the kernel
    scrape_count: int


def cgroup_mounts(version: CgroupVersion) -> list[Path]:
    """Mount points of the hierarchies; empty if this machine lacks one of them."""
    rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    if version == 2:
        return [Path(target) for _, target, kind, *_ in rows if kind == "cgroup2"][:1]
    mount_by_hierarchy = {
        name: Path(target)
        for _, target, kind, options, *_ in rows
        if kind == "cgroup"
        for name in _V1_HIERARCHIES
        if name in options.split(",")
    }
    return (
        [mount_by_hierarchy[name] for name in _V1_HIERARCHIES]
        if len(mount_by_hierarchy) == len(_V1_HIERARCHIES)
        else []
    )


@contextlib.contextmanager
def slurm_cgroups(version: CgroupVersion) -> Iterator[list[Path]]:
    """Create top cgroups named as by Slurm, one in each hierarchy; remove them at the end."""
    name = f"e2e-{os.getpid()}"
    top_cgroups = [
        mount / (f"{name}_slurmstepd.scope" if version == 2 else f"slurm_{name}")
        for mount in cgroup_mounts(version)
    ]
    for top_cgroup in top_cgroups:
        top_cgroup.mkdir()
    try:
        yield top_cgroups
    finally:
        for top_cgroup in top_cgroups:
            _remove_cgroup_tree(top_cgroup)


@contextlib.contextmanager
def busy_cpus(processes_per_cpu: int = 3) -> Iterator[None]:
    """Keep every CPU busy, as on a fully allocated node."""
    process_count = processes_per_cpu * len(os.sched_getaffinity(0))
    processes = [subprocess.Popen(argv(cpu=1e6)) for _ in range(process_count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_and_scrape_jobs(
    top_cgroups: Sequence[Path],
    target: exporter.Target,
    jobs: int,
    concurrency: int,
    removal_delay: float,
    lifetime_range: tuple[float, float] = (0.3, 3.0),
) -> ExporterCoverage:
    """Run the jobs, scrape as Prometheus would, and compare the result with the kernel's counts."""
    first_jobid = 1000 * os.getpid()
    scrapes = []
    with ThreadPoolExecutor(concurrency) as pool:
        futures = [
            pool.submit(
                _run_job,
                top_cgroups,
                first_jobid + number,
                random.uniform(*lifetime_range),
                removal_delay,
            )
            for number in range(jobs)
        ]
        while not all(each.done() for each in futures):
            scrapes.append(target.scrape())
            _sleep_until_done(futures)
    scrapes.append(target.scrape())
    finished = [each.result() for each in futures]
    shown_cpu_seconds = {job: _last_cpu_seconds(scrapes, job.jobid) for job in finished}
    return ExporterCoverage(
        jobs,
        [job.jobid for job, value in shown_cpu_seconds.items() if value is None],
        sum(value or 0.0 for value in shown_cpu_seconds.values())
        / sum(job.cpu_seconds for job in finished),
        len(scrapes),
    )


def _run_job(
    top_cgroups: Sequence[Path], jobid: int, lifetime: float, removal_delay: float
) -> FinishedJob:
    """Create the job's cgroups, run its only process as an ordinary user, remove them."""
    version: CgroupVersion = 2 if top_cgroups[0].name.endswith(".scope") else 1
    job_cgroups = [
        top_cgroup / f"job_{jobid}" if version == 2 else top_cgroup / f"uid_{UID}/job_{jobid}"
        for top_cgroup in top_cgroups
    ]
    task_path = "step_batch/user/task_0" if version == 2 else "step_batch/task_0"
    task_cgroups = [job_cgroup / task_path for job_cgroup in job_cgroups]
    for task_cgroup in task_cgroups:
        task_cgroup.mkdir(parents=True)
    busy_seconds = lifetime * random.uniform(0.3, 0.9)
    setpriv = f"setpriv --reuid={UID} --regid={UID} --clear-groups"
    join_cgroups = " ".join(
        f"echo $$ > {task_cgroup}/cgroup.procs;" for task_cgroup in task_cgroups
    )
    workload_argv = argv(cpu=busy_seconds, sleep=lifetime - busy_seconds)
    environ = {"SLURM_JOB_ID": str(jobid), "PATH": os.environ["PATH"]}
    script = f'{join_cgroups} exec {setpriv} "$@"'
    subprocess.run(["/bin/sh", "-c", script, "sh", *workload_argv], env=environ, check=True)
    time.sleep(removal_delay)
    cpu_seconds = _cpu_seconds(job_cgroups[0], version)
    for job_cgroup in job_cgroups:
        _remove_cgroup_tree(job_cgroup)
    return FinishedJob(str(jobid), cpu_seconds)


def _cpu_seconds(job_cgroup: Path, version: CgroupVersion) -> float:
    if version == 1:
        return int((job_cgroup / "cpuacct.usage").read_text()) / 1e9
    cpu_stat = dict(line.split() for line in (job_cgroup / "cpu.stat").read_text().splitlines())
    return int(cpu_stat["usage_usec"]) / 1e6


def _remove_cgroup_tree(top_cgroup: Path) -> None:
    for folder in sorted([*top_cgroup.rglob("*/"), top_cgroup], reverse=True):
        folder.rmdir()


def _last_cpu_seconds(scrapes: list[exporter.Scrape], jobid: str) -> float | None:
    metric = "batchjob_job_cpu_seconds_total"
    scrapes_with_job = [
        each for each in scrapes if each.series(metric, jobid=jobid, manager="slurm")
    ]
    return (
        scrapes_with_job[-1].total(metric, jobid=jobid, manager="slurm")
        if scrapes_with_job
        else None
    )


def _sleep_until_done(futures: Sequence[object]) -> None:
    deadline = time.monotonic() + SCRAPE_INTERVAL
    while not all(each.done() for each in futures) and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.05)

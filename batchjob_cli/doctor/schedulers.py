"""Schedulers on this node: their daemons, trees and jobs, and what their accounting knows.

Facts about Slurm: slurm.conf(5), cgroup.conf(5), as `scontrol show config` prints them. What
batchjob was tried with is in docs/schedulers/slurm.md.
"""

import os
import time
from collections.abc import Iterator
from functools import partial

from batchjob.runtime.background import PostponedError
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.runtime.values import size_bytes
from batchjob.schedulers import registry
from batchjob.schedulers.fields import FieldReader, RowError, clock_duration, epoch
from batchjob.schedulers.node import JobManager
from batchjob.schedulers.pbs.accounting.log_line import parse_line
from batchjob.schedulers.pbs.cluster import accounting_directory
from batchjob.schedulers.slurm.accounting.site_accounting import task_sampling_seconds
from batchjob_cli.doctor.finding import (
    Checks,
    ExaminedNode,
    Finding,
    missing,
    ok,
    warning,
)
from collectors.cluster.collector import find_readers
from collectors.host import read_text

SCHEDULERS = tuple(side for side in registry.job_managers().values() if side.advice)


def _check_scheduler(scheduler: JobManager, node: ExaminedNode) -> Finding | None:
    trees = node.survey.trees_of(scheduler.manager)
    jobs = node.survey.jobids(scheduler.manager)
    if trees or jobs:
        return ok(f"{_format_count(len(jobs))} in {_describe_trees(node, scheduler.manager)}")
    running = scheduler.daemons & _running_commands(node.host.procfs)
    if running:
        seen = f"{min(running)} is running, but there are no cgroups of its jobs"
        return missing(seen, f"if it has run a job since boot: {scheduler.advice}")
    return None


def _check_others(node: ExaminedNode) -> Finding | None:
    """Managers of the site's own layouts, and local runs."""
    known = {scheduler.manager for scheduler in SCHEDULERS}
    others = [each for each in node.survey.managers() if each not in known]
    if not others:
        return None
    parts = [f"{each}: {_format_count(len(node.survey.jobids(each)))}" for each in others]
    return ok("; ".join(parts))


def _check_any(node: ExaminedNode) -> Finding:
    managers = node.survey.managers()
    if managers:
        return ok(f"jobs of {', '.join(managers)} can be seen")
    return missing(
        "no cgroups of a scheduler in any hierarchy",
        "start the scheduler's daemon or a first job: some create their cgroups only then; "
        "describe custom layouts under collector.jobs.layouts in the configuration file",
    )


def _format_count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs or 'no'} jobs"


def _describe_trees(node: ExaminedNode, manager: str) -> str:
    trees = node.survey.trees_of(manager)
    places = sorted({tree.path for tree in trees})
    shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    versions = sorted({tree.hierarchy.version for tree in trees})
    return f"{shown} (cgroup v{' and v'.join(map(str, versions))})" if trees else "cgroups"


def _running_commands(procfs: str) -> set[str]:
    try:
        pids = [name for name in os.listdir(procfs) if name.isdigit()]
    except OSError:
        return set()
    # A zombie still has a name, but no command line.
    return {
        read_text(f"{procfs}/{pid}/comm") for pid in pids if read_text(f"{procfs}/{pid}/cmdline")
    }


def _check_cluster(node: ExaminedNode) -> Finding | None:
    """Query each part once, unless the collector is off."""
    options = node.options.get("cluster")
    if options is None:
        return None
    try:
        scheduler, sources = find_readers(options)
    except SettingsError as error:
        return missing(str(error), "run the collector on a host that has the scheduler's commands")
    answered, silent = [], []
    for part, read in sources._asdict().items():
        if read is None or part in options.without:
            continue
        begun = time.monotonic()
        try:
            read()
        except (SchedulerError, PostponedError) as error:
            silent.append(f"{part}: {error}")
        else:
            answered.append(f"{part} in {time.monotonic() - begun:.1f} s")
    shown = f"{scheduler} reports {', '.join(answered) or 'nothing'}"
    if not silent:
        return ok(shown)
    return Finding(
        "warning" if answered else "missing",
        f"{shown}; {'; '.join(silent)}",
        "run the command as the exporter's user, or exclude the part with "
        "collector.cluster.without; see docs/cluster.md",
    )


_TRIED = ("22.05", "24.11", "26.05")
_FIRST, _LAST = (20, 11), (26, 5)


def _check_version(node: ExaminedNode) -> Finding | None:
    version = node.slurm_settings.get("SLURM_VERSION", "")
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    tried = f"Slurm {version}; batchjob was tried with {', '.join(_TRIED)}"
    if not version or _FIRST <= release <= _LAST:
        return ok(tried) if version else None
    return warning(tried, "compare some jobs with sacct; see docs/schedulers/slurm.md")


def _check_gpus(node: ExaminedNode) -> Finding | None:
    if "gpu" not in node.slurm_settings.get("GresTypes", "").split(","):
        return None
    if "gres/gpu" in node.slurm_settings.get("AccountingStorageTRES", "").split(","):
        return ok("accounting has the GPUs of jobs")
    seen = "accounting does not have the GPUs of jobs"
    return warning(seen, "add gres/gpu to AccountingStorageTRES in slurm.conf")


def _check_private_data(node: ExaminedNode) -> Finding | None:
    private = node.slurm_settings.get("PrivateData")
    if private is None:
        return None
    hidden = sorted({"jobs", "usage", "users", "accounts", "all"} & set(private.lower().split(",")))
    if not hidden:
        return ok("PrivateData hides no jobs, users or accounts")
    return warning(
        f"PrivateData={','.join(hidden)}: who is no operator sees only what is their own, without "
        "an error",
        "run sacctmgr modify user NAME set adminlevel=Operator for the users of the poller, of the "
        "exporter's cluster collector and of slurmrestd",
    )


def _check_gathering(node: ExaminedNode) -> Finding | None:
    """How accounting measures CPU time and memory."""
    plugin = node.slurm_settings.get("JobAcctGatherType", "").rpartition("/")[2]
    interval = node.slurm_settings.get("JobAcctGatherFrequency", "")
    seen = f"JobAcctGatherType={plugin}, JobAcctGatherFrequency={interval}"
    advice = "set JobAcctGatherType=jobacct_gather/cgroup"
    if plugin in ("none", "(null)"):
        return warning(f"{seen}: accounting has no CPU time and no memory", advice)
    if plugin == "linux":
        lost = "the CPU time of cancelled jobs and of processes that nobody waits for is lost"
        return warning(f"{seen}: {lost}", advice)
    if task_sampling_seconds(interval) == 0:
        lost = "a peak of memory is seen only at the end of a step"
        return warning(f"{seen}: {lost}", "set JobAcctGatherFrequency=task=30")
    return ok(seen) if plugin else None


def _check_paths(node: ExaminedNode) -> Finding | None:
    by_id = node.slurm_settings.get("CgroupJobIdPaths")
    names = "job ids" if by_id == "yes" else "SLUIDs on cgroup v2"
    seen = f"CgroupJobIdPaths={by_id}: the directories of jobs are named by {names}"
    return ok(seen) if by_id else None


_TAIL_BYTES = 1 << 22  # of the newest log
_TOGETHER_SECONDS, _TOGETHER_JOBS = 10, 4
_MIN_WALLTIME = 3.0  # seconds; the hook reads nothing of a shorter job


def _check_killed_jobs(node: ExaminedNode) -> Finding | None:
    """Whether many jobs of one node ended within seconds without memory and CPU time.

    When PBS' cgroups hook cleans up after a failure, it can remove the cgroups of other jobs of its
    node. Those jobs end at once with exit status 0, so that their records on the server call them
    finished, and the hook has measured nothing of them.
    """
    del node
    try:
        log = max(path for path in accounting_directory().iterdir() if path.name.isdigit())
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return None  # not the server, or not readable
    ends: dict[str, list[int]] = {}
    for host, end in _unmeasured_ends(lines):
        ends.setdefault(host, []).append(end)
    killed = sorted(host for host, times in ends.items() if _are_together(sorted(times)))
    if not killed:
        return ok(f"no jobs that ended together unmeasured in {log}")
    return warning(
        f"on {', '.join(killed)}, {_TOGETHER_JOBS} jobs or more ended within {_TOGETHER_SECONDS} s "
        f"with exit status 0, no memory and no CPU time ({log})",
        "look for failures of the hook pbs_cgroups in these nodes' mom_logs: it may have removed "
        "the cgroups of running jobs; see docs/schedulers/pbs.md",
    )


def _unmeasured_ends(lines: list[str]) -> Iterator[tuple[str, int]]:
    """The first host and the end of each job that ran but used nothing."""
    for text in lines:
        try:
            line = parse_line(text, None, 0)
        except RowError:
            continue
        end = line.row.get("end", epoch)
        if line.record_type == "E" and end and _used_nothing(line.row):
            yield line.row.text("exec_host").partition("/")[0], end


def _used_nothing(row: FieldReader) -> bool:
    used = "resources_used."
    return (
        row.values.get("Exit_status") == "0"
        and row.get(f"{used}mem", size_bytes) == 0
        and row.get(f"{used}cput", clock_duration) == 0
        and (row.get(f"{used}walltime", clock_duration) or 0) >= _MIN_WALLTIME
    )


def _are_together(times: list[int]) -> bool:
    pairs = zip(times, times[_TOGETHER_JOBS - 1 :], strict=False)
    return any(last - first <= _TOGETHER_SECONDS for first, last in pairs)


CHECKS: Checks = {
    "jobs": _check_any,
    **{each.manager: partial(_check_scheduler, each) for each in SCHEDULERS},
    "others": _check_others,
    "slurm version": _check_version,
    "slurm gpus": _check_gpus,
    "slurm private data": _check_private_data,
    "slurm accounting": _check_gathering,
    "slurm cgroups": _check_paths,
    "cluster": _check_cluster,
    "jobs killed by PBS' hook": _check_killed_jobs,
}

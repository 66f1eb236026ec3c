"""Schedulers on this node: their daemons, their trees, their jobs."""

import os
import time
from functools import partial

from batchjob.runtime.background import PostponedError
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers import registry
from batchjob.schedulers.node import JobManager
from batchjob_cli.doctor.finding import Checks, ExaminedNode, Finding, read_text
from collectors.cluster.collector import find_readers

SCHEDULERS = tuple(side for side in registry.job_managers().values() if side.advice)


def _check_scheduler(scheduler: JobManager, node: ExaminedNode) -> Finding | None:
    trees = node.survey.trees_of(scheduler.manager)
    jobs = node.survey.jobids(scheduler.manager)
    if trees or jobs:
        return Finding(
            "ok", f"{_format_count(len(jobs))} in {_describe_trees(node, scheduler.manager)}"
        )
    running = scheduler.daemons & _running_commands(node.host.procfs)
    if running:
        seen = f"{min(running)} is running, but there are no cgroups of its jobs"
        return Finding("missing", seen, f"if it has run a job since boot: {scheduler.advice}")
    return None


def _check_others(node: ExaminedNode) -> Finding | None:
    """Managers of the site's own layouts, and local runs."""
    known = {scheduler.manager for scheduler in SCHEDULERS}
    others = [each for each in node.survey.managers() if each not in known]
    if not others:
        return None
    parts = [f"{each}: {_format_count(len(node.survey.jobids(each)))}" for each in others]
    return Finding("ok", "; ".join(parts))


def _check_any(node: ExaminedNode) -> Finding:
    managers = node.survey.managers()
    if managers:
        return Finding("ok", f"jobs of {', '.join(managers)} can be seen")
    return Finding(
        "missing",
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
        read_text(f"{procfs}/{pid}/comm") or ""
        for pid in pids
        if read_text(f"{procfs}/{pid}/cmdline")
    }


def _check_cluster(node: ExaminedNode) -> Finding | None:
    """Query each part once, unless the collector is off."""
    options = node.options.get("cluster")
    if options is None:
        return None
    try:
        scheduler, sources = find_readers(options)
    except SettingsError as error:
        return Finding(
            "missing", str(error), "run the collector on a host that has the scheduler's commands"
        )
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
        return Finding("ok", shown)
    return Finding(
        "warning" if answered else "missing",
        f"{shown}; {'; '.join(silent)}",
        "run the command as the exporter's user, or exclude the part with "
        "collector.cluster.without; see docs/cluster.md",
    )


CHECKS: Checks = {
    "jobs": _check_any,
    **{each.manager: partial(_check_scheduler, each) for each in SCHEDULERS},
    "others": _check_others,
}
CLUSTER_CHECKS: Checks = {"cluster": _check_cluster}

"""Schedulers on this node: their daemons, their trees, their jobs."""

import os
from functools import partial

from batchjob.schedulers import registry
from batchjob.schedulers.node import JobManager
from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding, read_text

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


CHECKS = (
    Check("jobs", _check_any),
    *(Check(each.manager, partial(_check_scheduler, each)) for each in SCHEDULERS),
    Check("others", _check_others),
)

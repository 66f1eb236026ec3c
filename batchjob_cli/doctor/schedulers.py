"""Schedulers on this node: their daemons, their trees, their jobs."""

import os
from functools import partial

from batchjob.schedulers import registry
from batchjob.schedulers.node import NodeSide
from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding, read

SCHEDULERS = tuple(side for side in registry.nodes().values() if side.advice)


def _scheduler(scheduler: NodeSide, node: ExaminedNode) -> Finding | None:
    trees = node.survey.trees_of(scheduler.manager)
    jobs = node.survey.jobids(scheduler.manager)
    if trees or jobs:
        return Finding("ok", f"{_counted(len(jobs))} in {_where(node, scheduler.manager)}")
    running = scheduler.daemons & _commands(node.host.procfs)
    if running:
        seen = f"{min(running)} is running, but there are no cgroups of its jobs"
        return Finding("missing", seen, f"if it has run a job since boot: {scheduler.advice}")
    return None


def _others(node: ExaminedNode) -> Finding | None:
    """Managers of the site's own layouts, and local runs."""
    known = {scheduler.manager for scheduler in SCHEDULERS}
    others = [each for each in node.survey.managers() if each not in known]
    if not others:
        return None
    parts = [f"{each}: {_counted(len(node.survey.jobids(each)))}" for each in others]
    return Finding("ok", "; ".join(parts))


def _any(node: ExaminedNode) -> Finding:
    managers = node.survey.managers()
    if managers:
        return Finding("ok", f"jobs of {', '.join(managers)} can be seen")
    return Finding(
        "missing",
        "no cgroups of a scheduler in any hierarchy",
        "start the scheduler's daemon or a first job: some create their cgroups only then; "
        "describe custom layouts under collector.jobs.layouts in the configuration file",
    )


def _counted(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs or 'no'} jobs"


def _where(node: ExaminedNode, manager: str) -> str:
    trees = node.survey.trees_of(manager)
    places = sorted({tree.path for tree in trees})
    shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    versions = sorted({tree.hierarchy.version for tree in trees})
    return f"{shown} (cgroup v{' and v'.join(map(str, versions))})" if trees else "cgroups"


def _commands(procfs: str) -> set[str]:
    try:
        pids = [name for name in os.listdir(procfs) if name.isdigit()]
    except OSError:
        return set()
    # A zombie still has a name, but no command line.
    return {read(f"{procfs}/{pid}/comm") or "" for pid in pids if read(f"{procfs}/{pid}/cmdline")}


CHECKS = (
    Check("jobs", _any),
    *(Check(each.manager, partial(_scheduler, each)) for each in SCHEDULERS),
    Check("others", _others),
)

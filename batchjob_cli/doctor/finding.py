"""A check of the node and its result; the node's cgroup trees, and the jobs in them."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal, NamedTuple

from batchjob.schedulers import registry
from batchjob.schedulers.cluster import read_command_lines
from batchjob.schedulers.layout import Layout
from collectors.host import Host
from collectors.jobs.cgroups.mounts import Hierarchy, hierarchies
from collectors.jobs.cgroups.reader import child_names
from collectors.jobs.discovery.walk import MAX_DIRECTORIES, LayoutCursor, child_cursor, mount_cursor

Result = Literal["ok", "warning", "missing"]


class Finding(NamedTuple):
    """What was found, and the change that would help."""

    result: Result  # warning: some numbers are missing; missing: the whole source is
    seen: str
    advice: str = ""


ok = partial(Finding, "ok")
warning = partial(Finding, "warning")
missing = partial(Finding, "missing")


class SchedulerTree(NamedTuple):
    """A scheduler's directory in one hierarchy, or the one of a job."""

    manager: str
    hierarchy: Hierarchy
    path: str  # relative to the hierarchy's root
    jobid: str = ""


class Survey(NamedTuple):
    """The trees and jobs that were found."""

    hierarchies: tuple[Hierarchy, ...]
    trees: tuple[SchedulerTree, ...]
    jobs: tuple[SchedulerTree, ...]
    directories: int  # number of directories that lead to jobs

    def managers(self) -> list[str]:
        """Those that have a tree or a job, by name."""
        trees = {tree.manager for tree in self.trees}
        return sorted(trees | {job.manager for job in self.jobs})

    def jobids(self, manager: str) -> set[str]:
        """The jobs of one scheduler, each once, although several hierarchies contain them."""
        return {job.jobid for job in self.jobs if job.manager == manager}

    def trees_of(self, manager: str) -> list[SchedulerTree]:
        return [tree for tree in self.trees if tree.manager == manager]


def survey(host: Host, layouts: tuple[Layout, ...]) -> Survey:
    """Walk all hierarchies of a machine."""
    found = hierarchies(host)
    trees: dict[tuple[str, str, str], SchedulerTree] = {}
    jobs: list[SchedulerTree] = []
    directories = 0
    for hierarchy in found:
        for path, place in _walk(hierarchy.root, mount_cursor(layouts, hierarchy.version)):
            directories += place.may_contain_jobs
            if place.layout_match:
                job = place.layout_match
                jobs.append(SchedulerTree(job.manager, hierarchy, path, job.jobid))
            for manager in _entered_trees(path, place):
                trees.setdefault(
                    (manager, hierarchy.root, path), SchedulerTree(manager, hierarchy, path)
                )
    return Survey(found, tuple(_outermost(list(trees.values()))), tuple(jobs), directories)


def _walk(root: str, top: LayoutCursor) -> Iterator[tuple[str, LayoutCursor]]:
    """The directories in which the exporter looks for jobs, the outermost first, and the jobs'."""
    pending = [("", top)]
    for path, place in islice(pending, MAX_DIRECTORIES):
        for name in sorted(child_names(f"{root}/{path}")):
            child = f"{path}/{name}" if path else name, child_cursor(place, name)
            yield child
            if child[1].may_contain_jobs:
                pending.append(child)


def _entered_trees(path: str, place: LayoutCursor) -> Iterator[str]:
    """Trees of a site's own layouts, from the directory that would contain the jobs."""
    name = os.path.basename(path)
    for row, depth, _ in place.partial_matches:
        known = registry.job_manager(row.manager).trees
        own = row not in registry.layouts() and depth == len(row.parents)
        if own or (known is not None and known.fullmatch(name)):
            yield row.manager


def _outermost(trees: list[SchedulerTree]) -> list[SchedulerTree]:
    """If a tree is inside another one of the same scheduler, only the outer one."""
    tops: dict[tuple[str, str], list[str]] = defaultdict(list)
    kept = []
    for tree in trees:  # the walk visits outer trees first
        above = tops[tree.manager, tree.hierarchy.root]
        if not any(tree.path.startswith(f"{path}/") for path in above):
            above.append(tree.path)
            kept.append(tree)
    return kept


@dataclass(frozen=True)
class ExaminedNode:
    """The machine to be checked, and how the exporter is to run on it."""

    host: Host = field(default_factory=Host)
    layouts: tuple[Layout, ...] = field(default_factory=registry.layouts)
    options: Mapping[str, Any] = field(default_factory=dict)  # of the enabled collectors, by name

    @cached_property
    def survey(self) -> Survey:
        """The cgroup trees, walked once."""
        return survey(self.host, self.layouts)

    @cached_property
    def slurm_settings(self) -> Mapping[str, str]:
        """What `scontrol show config` prints; empty without Slurm or its controller."""
        lines = read_command_lines(("scontrol", "show", "config"))
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, equals, value in pairs if equals}


Check = Callable[[ExaminedNode], Finding | None]
"""Examines the node; None if the check does not apply."""

Checks = Mapping[str, Check]
"""The table of a subject, by name."""


def run_checks(node: ExaminedNode, checks: Checks) -> dict[str, Finding]:
    """The findings by name, of the checks that apply."""
    findings = {}
    for name, check in checks.items():
        try:
            finding = check(node)
        except Exception as error:  # an error in one check must not hide the others' results
            text = f"could not be examined: {type(error).__name__}: {error}"
            finding = warning(text)
        if finding is not None:
            findings[name] = finding
    return findings

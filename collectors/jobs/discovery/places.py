"""Matches a cgroup tree against the layouts name by name: what is a job, what may lead to one.

    place = start(registry.layouts(), version=2)
    place = enter(place, "system.slice")              # leads_on, watch
    place = enter(place, "node01_slurmstepd.scope")   # leads_on, watch: its children are jobs
    place = enter(place, "job_42")                    # found; what is below belongs to the job

A walk enters only directories that may lead to jobs, and so leaves most of a machine's services and
every user's own tree alone. A directory inside a job is never a job: a user can create
`slurmstepd.scope/job_1` in a delegated cgroup.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from batchjob.schedulers.layout import Layout, LayoutMatch, found

MAX_DEPTH = 8
"""A tree that may stand anywhere begins at most so many directories below the mount."""

# Users can create directories here freely, and init.scope contains only init.
_NOT_THROUGH = re.compile(r"user\.slice|init\.scope")


class _Begun(NamedTuple):
    layout: Layout
    matched: int  # number of matched path components
    groups: tuple[tuple[str, str], ...]


class LayoutCursor(NamedTuple):
    """A directory, as the layouts see it."""

    anywhere: tuple[Layout, ...]  # layouts that may start at a child of this directory
    begun: tuple[_Begun, ...]
    depth: int = 0
    found: LayoutMatch | None = None

    @property
    def leads_on(self) -> bool:
        """Whether there may be jobs below."""
        return bool(self.begun or self.anywhere)

    @property
    def watch(self) -> bool:
        """Whether a layout's tree has begun here: new children may be jobs, or lead to them."""
        return bool(self.begun)


def start(layouts: Iterable[Layout], version: int) -> LayoutCursor:
    """The mount point of a hierarchy of cgroup version 1 or 2."""
    rows = [row for row in layouts if row.enabled and version in row.versions]
    return LayoutCursor(
        tuple(row for row in rows if row.anywhere),
        tuple(_Begun(row, 0, ()) for row in rows if not row.anywhere),
    )


def enter(place: LayoutCursor, name: str) -> LayoutCursor:
    """The child `name` of a directory. If two rows match it as a job, the first counts."""
    depth = place.depth + 1
    begun = []
    for state in (*place.begun, *(_Begun(row, 0, ()) for row in place.anywhere)):
        row = state.layout
        is_job = state.matched == len(row.parents)
        met = (row.job if is_job else row.parents[state.matched]).fullmatch(name)
        if met is None:
            continue
        groups = (*state.groups, *((k, v) for k, v in met.groupdict().items() if v is not None))
        if is_job:
            below = _through(place, name, depth) if row.nests else ()
            return LayoutCursor(below, (), depth, found(row, dict(groups)))
        begun.append(_Begun(row, state.matched + 1, groups))
    return LayoutCursor(_through(place, name, depth), tuple(begun), depth)


def _through(place: LayoutCursor, name: str, depth: int) -> tuple[Layout, ...]:
    closed = depth >= MAX_DEPTH or _NOT_THROUGH.fullmatch(name)
    return () if closed else place.anywhere


def place_of(path: str, layouts: Iterable[Layout], version: int) -> LayoutCursor:
    """The cursor of a path, relative to the mount; no layout continues inside a job."""
    place = start(layouts, version)
    for name in path.split("/") if path else ():
        place = enter(place, name)
    return place


def match(path: str, layouts: Iterable[Layout], version: int) -> LayoutMatch | None:
    """The job whose directory this is."""
    return place_of(path, layouts, version).found

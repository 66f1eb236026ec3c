"""Matches cgroup directories against the layouts: which are jobs, and which may contain jobs.

    cursor = mount_cursor(registry.layouts(), version=2)
    cursor = child_cursor(cursor, "system.slice")             # may_contain_jobs
    cursor = child_cursor(cursor, "node01_slurmstepd.scope")  # the same; its children are jobs
    cursor = child_cursor(cursor, "job_42")                   # layout_match: it is a job

Daemons of schedulers run in containers, pods and slices of any name, so their trees are looked for
in every directory but the users' own trees. A directory inside a job is never a job: a user can
create `slurmstepd.scope/job_1` in a delegated cgroup.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from batchjob.schedulers.layout import Layout, LayoutMatch, layout_match

# Users can create directories here freely, and init.scope contains only init.
_EXCLUDED = re.compile(r"user\.slice|init\.scope")


_PartialMatch = tuple[Layout, int, tuple[tuple[str, str], ...]]
"""A layout, the number of matched path components, and the groups of the matches."""


class LayoutCursor(NamedTuple):
    """The state of matching one directory against the layouts."""

    anywhere: tuple[Layout, ...]  # layouts that may start at a child of this directory
    partial_matches: tuple[_PartialMatch, ...]
    layout_match: LayoutMatch | None = None

    @property
    def may_contain_jobs(self) -> bool:
        return bool(self.partial_matches or self.anywhere)


def mount_cursor(layouts: Iterable[Layout], version: int) -> LayoutCursor:
    """The cursor of the mount point of a hierarchy of cgroup version 1 or 2."""
    rows = [row for row in layouts if row.enabled and version in row.versions]
    return LayoutCursor(
        tuple(row for row in rows if row.anywhere),
        tuple((row, 0, ()) for row in rows if not row.anywhere),
    )


def child_cursor(cursor: LayoutCursor, name: str) -> LayoutCursor:
    """The cursor of the child `name`. If two layouts match it as a job, the first is used."""
    partial_matches: list[_PartialMatch] = []
    started: tuple[_PartialMatch, ...] = tuple((row, 0, ()) for row in cursor.anywhere)
    for row, depth, groups in cursor.partial_matches + started:
        is_job = depth == len(row.parents)
        matched = (row.job if is_job else row.parents[depth]).fullmatch(name)
        if matched is None:
            continue
        groups += tuple((k, v) for k, v in matched.groupdict().items() if v is not None)
        if is_job:
            below = _anywhere_below(cursor, name) if row.can_contain_jobs else ()
            return LayoutCursor(below, (), layout_match(row, dict(groups)))
        partial_matches.append((row, depth + 1, groups))
    return LayoutCursor(_anywhere_below(cursor, name), tuple(partial_matches))


def _anywhere_below(cursor: LayoutCursor, name: str) -> tuple[Layout, ...]:
    return () if _EXCLUDED.fullmatch(name) else cursor.anywhere


def cursor_of(path: str, layouts: Iterable[Layout], version: int) -> LayoutCursor:
    """The cursor of a path, relative to the mount; no layout continues inside a job."""
    cursor = mount_cursor(layouts, version)
    for name in path.split("/") if path else ():
        cursor = child_cursor(cursor, name)
    return cursor


def match(path: str, layouts: Iterable[Layout], version: int) -> LayoutMatch | None:
    """The job whose directory this path is, if it is one."""
    return cursor_of(path, layouts, version).layout_match

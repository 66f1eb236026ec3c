"""Finds job directories by walking the cgroup trees, and requests watches for them.

The layouts say which directories are jobs, and which may contain jobs:

    cursor = mount_cursor(registry.layouts(), version=2)
    cursor = child_cursor(cursor, "system.slice")             # may_contain_jobs
    cursor = child_cursor(cursor, "node01_slurmstepd.scope")  # the same; its children are jobs
    cursor = child_cursor(cursor, "job_42")                   # layout_match: it is a job

Daemons of schedulers run in containers, pods and slices of any name, so their trees are looked for
in every directory but the users' own trees. A directory inside a job is never a job: a user can
create `slurmstepd.scope/job_1` in a delegated cgroup.
"""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from batchjob.schedulers.layout import Layout, LayoutMatch, layout_match
from collectors.jobs.cgroups.mounts import Hierarchy, hierarchies
from collectors.jobs.cgroups.reader import ReadErrors, child_names, is_gone
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import JobTable

MAX_DIRECTORIES = 20_000
"""Directories to visit in one walk, the outermost first: containers may contain any number."""

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


@dataclass(slots=True, eq=False)
class WalkState:
    """A directory that may contain jobs: its path, the layouts that match it, and its owner."""

    hierarchy: Hierarchy
    path: str  # relative to the root of the hierarchy
    cursor: LayoutCursor
    root_uid: int
    delegate: int | None

    @property
    def absolute(self) -> str:
        return f"{self.hierarchy.root}/{self.path}" if self.path else self.hierarchy.root


@dataclass(eq=False)
class CgroupWalker:
    """Walks the trees; every job directory it finds is added to the table of jobs."""

    table: JobTable
    layouts: tuple[Layout, ...]
    watch_branch: Callable[[WalkState], object]
    """Watches a directory whose new children may be jobs, or lead to them."""
    watch_job: Callable[[Job, Hierarchy, str], object]
    """Watches a directory (absolute path) of a job."""
    errors: ReadErrors

    def walk_all(self, is_new: bool = False) -> None:
        """Walk all hierarchies. `is_new`: jobs that it finds have begun since the last walk."""
        self.table.overflow = set()
        for hierarchy in hierarchies(self.table.host):
            owner = self._read_owner(hierarchy.root)
            if owner is not None:
                cursor = mount_cursor(self.layouts, hierarchy.version)
                self.walk(WalkState(hierarchy, "", cursor, owner, None), is_new)

    def walk(self, branch: WalkState, is_new: bool) -> None:
        """Visit a directory and all directories below it that may contain jobs."""
        pending = [branch]
        for each in pending:
            # Before the children are listed, so that none is missed.
            self.watch_branch(each)
            names = child_names(each.absolute, self.errors.count)
            branches = (self.visit(each, name, is_new) for name in names)
            pending.extend(below for below in branches if below is not None)
            if len(pending) > MAX_DIRECTORIES:
                self.errors.count("directories")
                break

    def visit(self, branch: WalkState, name: str, is_new: bool) -> WalkState | None:
        """Visit one child of a directory; returns it if there may be jobs below it."""
        cursor = child_cursor(branch.cursor, name)
        if cursor.layout_match is None and not cursor.may_contain_jobs:
            return None
        path = f"{branch.path}/{name}" if branch.path else name
        owner = self._read_owner(f"{branch.hierarchy.root}/{path}")
        if owner is None:
            return None
        delegate = branch.delegate
        if owner != branch.root_uid:
            if delegate not in (None, owner):
                self.errors.count("untrusted")  # nested trees of two users belong to neither
                return None
            delegate = owner
        if cursor.layout_match is not None:
            found = cursor.layout_match
            if found.layout.created_by_user:
                found = found._replace(uid=owner)
            elif delegate not in (None, found.uid):  # users can write any uid in a path
                found = found._replace(uid=None)
            added = self.table.add_directory(branch.hierarchy, path, found, delegate, is_new)
            if added is not None:
                job, directory = added
                self.watch_job(job, branch.hierarchy, directory)
        if not cursor.may_contain_jobs:
            return None
        return WalkState(branch.hierarchy, path, cursor, branch.root_uid, delegate)

    def _read_owner(self, path: str) -> int | None:
        try:
            return os.stat(path).st_uid
        except OSError as error:
            if not is_gone(error):
                self.errors.count(error)
            return None

"""Finds job directories by walking the cgroup trees, and requests watches for them."""

import os
from collections.abc import Callable

from batchjob.schedulers.layout import Layout
from collectors.jobs.cgroups.mounts import Hierarchy, hierarchies
from collectors.jobs.cgroups.reader import ReadErrors, child_names, is_gone
from collectors.jobs.discovery.places import LayoutCursor, child_cursor, mount_cursor
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import JobTable

MAX_DIRECTORIES = 20_000
"""Directories to visit in one walk, the outermost first: containers may contain any number."""


class WalkState:
    """A directory that may contain jobs: its path, the layouts that match it, and its owner."""

    __slots__ = ("cursor", "delegate", "hierarchy", "path", "root_uid")

    def __init__(
        self,
        hierarchy: Hierarchy,
        path: str,
        cursor: LayoutCursor,
        root_uid: int,
        delegate: int | None,
    ) -> None:
        self.hierarchy = hierarchy
        self.path = path  # relative to the root of the hierarchy
        self.cursor = cursor
        self.root_uid = root_uid
        self.delegate = delegate

    @property
    def absolute(self) -> str:
        return f"{self.hierarchy.root}/{self.path}" if self.path else self.hierarchy.root


class CgroupWalker:
    """Walks the trees; every job directory it finds is added to the table of jobs."""

    def __init__(
        self,
        table: JobTable,
        layouts: tuple[Layout, ...],
        watch_branch: Callable[[WalkState], object],
        watch_job: Callable[[Job, Hierarchy, str], object],
        errors: ReadErrors,
    ) -> None:
        """`watch_branch` watches a directory whose new children may be jobs, or lead to them.

        `watch_job` watches a directory (absolute path) of a job.
        """
        self._table = table
        self._layouts = layouts
        self._watch_branch = watch_branch
        self._watch_job = watch_job
        self._errors = errors

    def walk_all(self, is_new: bool = False) -> None:
        """Walk all hierarchies. `is_new`: jobs that it finds have begun since the last walk."""
        self._table.begin_walk()
        for hierarchy in hierarchies(self._table.host):
            owner = self._read_owner(hierarchy.root)
            if owner is not None:
                cursor = mount_cursor(self._layouts, hierarchy.version)
                self.walk(WalkState(hierarchy, "", cursor, owner, None), is_new)

    def walk(self, branch: WalkState, is_new: bool) -> None:
        """Visit a directory and all directories below it that may contain jobs."""
        pending = [branch]
        for each in pending:
            # Before the children are listed, so that none is missed.
            self._watch_branch(each)
            pending.extend(self._visit_children(each, is_new))
            if len(pending) > MAX_DIRECTORIES:
                self._errors.count("directories")
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
                self._errors.count("untrusted")  # nested trees of two users belong to neither
                return None
            delegate = owner
        if cursor.layout_match is not None:
            found = cursor.layout_match
            if found.layout.created_by_user:
                found = found._replace(uid=owner)
            elif delegate not in (None, found.uid):  # users can write any uid in a path
                found = found._replace(uid=None)
            added = self._table.add_directory(branch.hierarchy, path, found, delegate, is_new)
            if added is not None:
                job, directory = added
                self._watch_job(job, branch.hierarchy, directory)
        if not cursor.may_contain_jobs:
            return None
        return WalkState(branch.hierarchy, path, cursor, branch.root_uid, delegate)

    def _visit_children(self, branch: WalkState, is_new: bool) -> list[WalkState]:
        names = child_names(branch.absolute, self._errors.count)
        branches = (self.visit(branch, name, is_new) for name in names)
        return [each for each in branches if each is not None]

    def _read_owner(self, path: str) -> int | None:
        try:
            return os.stat(path).st_uid
        except OSError as error:
            if not is_gone(error):
                self._errors.count(error)
            return None

"""Finds job directories by walking the cgroup trees, and requests watches for them."""

import os
from typing import Protocol

from batchjob.schedulers.layout import Layout
from collectors.jobs.cgroups.directory import ReadErrors, is_gone
from collectors.jobs.cgroups.mounts import Hierarchy, hierarchies
from collectors.jobs.discovery.places import LayoutCursor, enter, start
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import JobTable


class WalkState:
    """A directory that may lead to jobs: its place, the layouts that match it, and its owner."""

    __slots__ = ("delegate", "hierarchy", "path", "place", "root_uid")

    def __init__(
        self,
        hierarchy: Hierarchy,
        path: str,
        place: LayoutCursor,
        root_uid: int,
        delegate: int | None,
    ) -> None:
        self.hierarchy = hierarchy
        self.path = path  # relative to the root of the hierarchy
        self.place = place
        self.root_uid = root_uid
        self.delegate = delegate

    @property
    def absolute(self) -> str:
        """The path in the file system."""
        return f"{self.hierarchy.root}/{self.path}" if self.path else self.hierarchy.root


class WatchList(Protocol):
    """What is notified of directories that lead to jobs, and of jobs."""

    def branch(self, branch: WalkState) -> None:
        """Watch a directory whose new children may be jobs, or lead to them."""

    def job(self, job: Job, hierarchy: Hierarchy, path: str) -> None:
        """Watch a directory (absolute path) of a job."""


class CgroupWalker:
    """Walks the trees; every job directory it finds is added to the table of jobs."""

    def __init__(
        self, registry: JobTable, layouts: tuple[Layout, ...], watch: WatchList, errors: ReadErrors
    ) -> None:
        self._registry = registry
        self._layouts = layouts
        self._watch = watch
        self._errors = errors

    def look(self, born: bool = False) -> None:
        """Walk all hierarchies. `born`: what is new has begun since the last walk."""
        self._registry.begin_look()
        for hierarchy in hierarchies(self._registry.host):
            owner = self._owner(hierarchy.root)
            if owner is not None:
                place = start(self._layouts, hierarchy.version)
                self.walk(WalkState(hierarchy, "", place, owner, None), born)

    def walk(self, branch: WalkState, born: bool) -> None:
        """Visit a directory and all below it that may lead to jobs."""
        pending = [branch]
        for each in pending:
            self._watch.branch(each)  # before listing the children, so that none is missed
            pending.extend(self._children(each, born))

    def visit(self, branch: WalkState, name: str, born: bool) -> WalkState | None:
        """One child of a directory; returned if there may be jobs below it."""
        place = enter(branch.place, name)
        if place.found is None and not place.leads_on:
            return None
        path = f"{branch.path}/{name}" if branch.path else name
        owner = self._owner(f"{branch.hierarchy.root}/{path}")
        if owner is None:
            return None
        delegate = branch.delegate
        if owner != branch.root_uid:
            if delegate not in (None, owner):
                self._errors.count("untrusted")  # nested trees of two users belong to neither
                return None
            delegate = owner
        if place.found is not None:
            found = place.found
            if found.layout.by_user:
                found = found._replace(uid=owner)
            job = self._registry.appear(branch.hierarchy, path, found, delegate, born)
            if job is not None:
                self._watch.job(job, branch.hierarchy, f"{branch.hierarchy.root}/{path}")
        if not place.leads_on:
            return None
        return WalkState(branch.hierarchy, path, place, branch.root_uid, delegate)

    def _children(self, branch: WalkState, born: bool) -> list[WalkState]:
        try:
            with os.scandir(branch.absolute) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if not is_gone(error):
                self._errors.count(error)
            return []
        found = (self.visit(branch, name, born) for name in names)
        return [each for each in found if each is not None]

    def _owner(self, path: str) -> int | None:
        try:
            return os.stat(path).st_uid
        except OSError as error:
            if not is_gone(error):
                self._errors.count(error)
            return None

"""The interface of cgroup layouts: the structure of the trees in which schedulers place jobs.

A path is relative to the mount point of the hierarchy (v2: /sys/fs/cgroup; v1: the mount of a
controller). Each component is a regular expression of its own, and the last one is the job's
directory. Named groups are what a path states:

    jobid    the id as the accounting writes it (after `decode_jobid`)
    alias    another name of the job, whose processes tell its id
    uid      the owner; reliable in a path that the scheduler creates as root
    started  epoch seconds of the job's start
    others   are put into `LayoutMatch.info` under their own name

The layouts are defined in each scheduler's `node`, with their sources; those of Slurm and OpenPBS
were recorded on running systems.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from batchjob.runtime.formatting import replace_non_utf8

Role = Literal["job", "step", "scheduler", "user", "task"]

V1 = frozenset({1})
V2 = frozenset({2})
V1_AND_V2 = frozenset({1, 2})


class Layout(NamedTuple):
    """The structure of one kind of tree."""

    name: str
    manager: str
    parents: tuple[re.Pattern[str], ...]  # the directories above the job's
    job: re.Pattern[str]  # the job's own directory
    versions: frozenset[int] = V1_AND_V2
    anywhere: bool = False  # the path may start in any directory, not only at the mount point
    decode_jobid: Callable[[str], str] | None = None  # jobid in the path → jobid in accounting
    steps: re.Pattern[str] | None = None  # the meaning of a path below the job's directory
    # Environment variable with the job id, if neither the path nor a process title has it.
    jobid_variable: str | None = None
    # May contain the trees of other jobs; it is then a host and not a job.
    can_contain_jobs: bool = False
    enabled: bool = True
    # The job's user creates the directory, so the directory's owner is the job's owner.
    created_by_user: bool = False

    @property
    def owner(self) -> Literal["path-uid", "directory", "process"]:
        """Where the owner's uid is read from."""
        if self.created_by_user:
            return "directory"
        named = any("uid" in part.groupindex for part in (*self.parents, self.job))
        return "path-uid" if named else "process"


class LayoutMatch(NamedTuple):
    """What the path of a job's directory states."""

    layout: Layout
    manager: str
    jobid: str  # with `jobid_variable`: an alias, until the id has been read from a process
    uid: int | None = None
    started_at: float | None = None
    jobid_variable: str | None = None
    info: tuple[tuple[str, str], ...] = ()


class JobStep(NamedTuple):
    """The purpose of a directory of a job."""

    name: str | None  # 0, batch, extern, 0+1; None for the job itself or without steps
    role: Role  # `scheduler`: processes of slurmstepd and the like, not the user's
    task: str | None = None


def layout(
    name: str, manager: str, path: str, *, steps: str | None = None, **fields: Any
) -> Layout:
    """A layout from a path; a path that begins with `**/` may begin at any depth.

    `fields` are further ones of Layout.
    """
    anywhere = path.startswith("**/")
    *parents, job = (re.compile(part, re.ASCII) for part in path.removeprefix("**/").split("/"))
    pattern = None if steps is None else re.compile(steps, re.ASCII)
    return Layout(name, manager, tuple(parents), job, anywhere=anywhere, steps=pattern, **fields)


def unescape_unit_name(text: str) -> str:
    r"""Undo systemd's escaping of unit names: `12\x5b3\x5d.srv` is `12[3].srv`."""
    return re.sub(r"(?:\\x[0-9a-f]{2})+", _decode_escapes, text)


def _decode_escapes(escapes: re.Match[str]) -> str:
    return bytes.fromhex(escapes[0].replace("\\x", "")).decode(errors="replace")


def layout_match(row: Layout, groups: Mapping[str, str]) -> LayoutMatch:
    """The match of a layout, from the named groups of a path."""
    groups = {name: replace_non_utf8(value) for name, value in groups.items()}
    text = groups["jobid"] if "jobid" in groups else groups["alias"]
    start = groups.get("started")
    return LayoutMatch(
        row,
        row.manager,
        row.decode_jobid(text) if row.decode_jobid else text,
        uid=int(groups["uid"]) if "uid" in groups else None,
        started_at=float(start) if start else None,
        jobid_variable=None if "jobid" in groups else row.jobid_variable,
        info=tuple((name, text) for name, text in groups.items() if name not in _FIELDS),
    )


_FIELDS = frozenset({"jobid", "alias", "uid", "started"})


def step_of(job: LayoutMatch, relative_path: str) -> JobStep | None:
    """The purpose of a directory, by its path relative to the job's own ("" for the job's own).

    None: the scheduler has no steps, or the job itself created the directory.
    """
    if not relative_path:
        return JobStep(None, "job")
    pattern = job.layout.steps
    matched = pattern.fullmatch(relative_path) if pattern else None
    if matched is None:
        return None
    groups = {name: text for name, text in matched.groupdict().items() if text is not None}
    role: Role = next((role for role in _ROLES if role in groups), "step")
    return JobStep(groups.get("step"), role, groups.get("task"))


_ROLES: tuple[Role, ...] = ("scheduler", "task", "user")  # innermost first

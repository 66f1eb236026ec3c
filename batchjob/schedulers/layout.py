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
    # Paths below the job's directory whose processes are the scheduler's, not the job's.
    scheduler_paths: re.Pattern[str] | None = None
    # Environment variable with the job id, if neither the path nor a process title has it.
    jobid_variable: str | None = None
    # May contain the trees of other jobs; it is then a host and not a job.
    can_contain_jobs: bool = False
    enabled: bool = True
    # The job's user creates the directory, so the directory's owner is the job's owner.
    created_by_user: bool = False

    @property
    def owner(self) -> Literal["path-uid", "directory", "process"]:
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


def layout(name: str, manager: str, path: str, **fields: Any) -> Layout:
    """A layout from a path; a path that begins with `**/` may begin at any depth.

    `fields` are further ones of Layout.
    """
    anywhere = path.startswith("**/")
    *parents, job = (re.compile(part, re.ASCII) for part in path.removeprefix("**/").split("/"))
    return Layout(name, manager, tuple(parents), job, anywhere=anywhere, **fields)


def unescape_unit_name(text: str) -> str:
    r"""Undo systemd's escaping of unit names: `12\x5b3\x5d.srv` is `12[3].srv`."""
    return re.sub(r"(?:\\x[0-9a-f]{2})+", _decode_escapes, text)


def _decode_escapes(escapes: re.Match[str]) -> str:
    return bytes.fromhex(escapes[0].replace("\\x", "")).decode(errors="replace")


def layout_match(row: Layout, groups: Mapping[str, str]) -> LayoutMatch:
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

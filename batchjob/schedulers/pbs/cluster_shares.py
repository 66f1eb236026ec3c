"""Shared resources of PBS: licences (qstat -B, qmgr) and fair share (pbsfs).

Facts: pbs_server_attributes(7B), pbs_resources(7B), pbsfs(8B); how fairshare.cpp and pbsfs.cpp of
OpenPBS 23.06 count and print; recorded output of OpenPBS 23.06.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.cluster import FairShare, License, parse_count

_PBS_LICENSE = "PBS"
_COUNTS = re.compile(r"(\w+):(\d{1,18})")


def licenses(answer: Mapping[str, Any], resources: bytes) -> list[License]:
    """Licences from `qstat -B -f -F json` and `qmgr -c "print server"`.

    A licence that jobs request is a consumable of the whole server: a resource with the flag q (and
    not h, of hosts) and a number in the server's resources_available.
    """
    flags = _FLAG.findall(resources.decode("utf-8", "replace"))
    server_resources = frozenset(name for name, flag in flags if "q" in flag and "h" not in flag)
    servers = answer.get("Server")
    found = []
    for server in servers.values() if isinstance(servers, dict) else ():
        if isinstance(server, dict):
            found += _pbs_licenses(server)
            found += _server_licenses(server, server_resources)
    return found


def _pbs_licenses(server: Mapping[str, Any]) -> list[License]:
    """PBS' own licences. OpenPBS needs none, but reports a million free ones."""
    if not server.get("pbs_license_info"):
        return []
    counts = dict(_COUNTS.findall(str(server.get("license_count", ""))))
    names = ("Avail_Global", "Avail_Local", "Used")  # at the licence server, at PBS, in use
    if not all(name in counts for name in names):
        return []
    global_free, local_free, used = (int(counts[name]) for name in names)
    free = global_free + local_free
    return [License(_PBS_LICENSE, free + used, used, free, None)]


def _server_licenses(server: Mapping[str, Any], names: frozenset[str]) -> list[License]:
    available, assigned = server.get("resources_available"), server.get("resources_assigned")
    found = []
    for name, value in available.items() if isinstance(available, dict) else ():
        total = parse_count(value)
        if name in names and total is not None:
            # The server lists an amount only after a job has used some.
            used = parse_count(assigned.get(name, 0) if isinstance(assigned, dict) else 0)
            free = None if used is None else max(0, total - used)
            found.append(License(name, total, used, free, None))
    return found


_FLAG = re.compile(r"^set resource (\S+) flag = (\w+)\s*$", re.MULTILINE)


class _Vertex(NamedTuple):
    """A vertex of the fair-share tree; a leaf is an entity, most often a user."""

    name: str
    parent: int
    group: int
    shares: int
    usage: int


_VERTEX = re.compile(
    r"^(\S+)\s*: Grp:\s*(-?\d{1,18})\s+cgrp:\s*(-?\d{1,18})\s*Shares:\s*(-?\d{1,18})"
    r"\s+Usage:\s*(\d{1,18})\s",
    re.MULTILINE | re.ASCII,
)
_ROOT = -1  # the parent of the root
_NO_USAGE = 1  # the usage with which PBS starts, to avoid division by zero


def fairshare(output: bytes, entities: bool = False) -> list[FairShare]:
    """Groups of `pbsfs`, and with `entities` their members. Shares and usage are of the parent's.

    PBS compares siblings by usage over shares at each vertex from the root on; the level is the
    inverse, as in Slurm's Fair Tree.
    """
    rows = _VERTEX.findall(output.decode("utf-8", "replace"))
    tree = [_Vertex(name, *(int(number) for number in numbers)) for name, *numbers in rows]
    parents = {vertex.group: vertex for vertex in tree}
    siblings: dict[int, int] = {}
    for vertex in tree:
        siblings[vertex.parent] = siblings.get(vertex.parent, 0) + max(0, vertex.shares)
    if _ROOT not in siblings:
        raise SchedulerError("pbsfs: expected a line of TREEROOT")
    return [
        _fair_share(vertex, siblings[vertex.parent], parents[vertex.parent])
        for vertex in tree
        if vertex.parent in parents and (entities or vertex.group in siblings)
    ]


def _fair_share(vertex: _Vertex, siblings: int, parent: _Vertex) -> FairShare:
    shares = max(0, vertex.shares) / siblings if siblings else 0.0
    vertex_usage, parent_usage = (max(0, each.usage - _NO_USAGE) for each in (vertex, parent))
    usage = vertex_usage / parent_usage if parent_usage else None
    level = None
    if usage is not None and (shares or usage):
        level = shares / usage if usage else float("inf")
    return FairShare(vertex.name, shares, usage, level, None)

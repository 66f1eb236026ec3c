"""What the exporter needs besides its sources: rights, watches, open files, the helper.

The command should run with the exporter's rights.
"""

import os
import re
import resource
from functools import partial

from batchjob_cli.doctor.finding import (
    Checks,
    ExaminedNode,
    Finding,
    missing,
    ok,
    warning,
)
from collectors.host import read_text
from collectors.jobs.discovery.inotify import Inotify
from collectors.kernel.client import HelperClient

# Name of a capability → its bit (capabilities(7)), and what is absent without it.
CAPABILITIES = {
    "CAP_SYS_PTRACE": (
        19,
        "account, name and GPUs from the environment of jobs, and their IO from /proc/<pid>/io",
    ),
    "CAP_DAC_READ_SEARCH": (2, "the environment of jobs and RAPL's counters"),
}
_GRANTED_BY_UNIT = "CAP_DAC_READ_SEARCH"  # the drop-in lists it again


def _check_capability(name: str, node: ExaminedNode) -> Finding | None:
    bit, gives = CAPABILITIES[name]
    held = re.search(
        r"^CapEff:\s*([0-9a-f]+)$", read_text(f"{node.host.procfs}/self/status"), re.MULTILINE
    )
    if held is None:
        return None
    if int(held[1], 16) >> bit & 1:
        return ok(f"held: {gives}")
    return warning(
        f"missing; needed for {gives}",
        "CapabilityBoundingSet= and AmbientCapabilities=, both with "
        f"{' '.join(sorted({name, _GRANTED_BY_UNIT}))}, in a drop-in of the service "
        "(systemctl edit batchjob_exporter)",
    )


def _check_hidepid(node: ExaminedNode) -> Finding | None:
    """proc(5), "Mount options"."""
    table = read_text(f"{node.host.procfs}/self/mountinfo")
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields, options = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(options) < 3 or options[0] != "proc" or fields[4] != "/proc":
            continue
        hidden = re.search(r"\bhidepid=(\w+)", options[2])
        if hidden is None or hidden[1] in ("0", "off"):
            return ok("processes of all users are visible")
        return Finding(
            "missing" if os.geteuid() else "warning",
            f"/proc is mounted with hidepid={hidden[1]}: processes of other users are hidden",
            "mount it with gid= of a group that the exporter belongs to, or give the exporter "
            "CAP_SYS_PTRACE",
        )
    return None


def _check_pid_namespace(node: ExaminedNode) -> Finding | None:
    """A process of another pid namespace is printed as 0 (cgroup-v2.rst, "Namespace")."""
    for job in node.survey.jobs:
        top = f"{job.hierarchy.root}/{job.path}"
        for directory, _, files in os.walk(top):
            if "cgroup.procs" not in files:
                continue
            pids = read_text(f"{directory}/cgroup.procs").split()
            if "0" in pids:
                return missing(
                    "processes of jobs are in another pid namespace: their owners are unknown",
                    "run the exporter in the host's pid namespace (--pid=host, hostPID: true)",
                )
            if pids:
                return ok("processes of jobs are in this pid namespace")
    return None


def _check_inotify(node: ExaminedNode) -> Finding | None:
    """One watch for each directory that leads to jobs, and a few for each job."""
    text = read_text(f"{node.host.procfs}/sys/fs/inotify/max_user_watches")
    if not text.isdigit():
        return None
    try:
        Inotify().close()
    except OSError as error:
        return warning(
            f"no inotify instance is available ({error.strerror}); short jobs may be missed",
            "sysctl -w fs.inotify.max_user_instances=1024",
        )
    wanted = 2 * (node.survey.directories + 8 * len(node.survey.jobs) + 100)
    instances = read_text(f"{node.host.procfs}/sys/fs/inotify/max_user_instances") or "?"
    seen = f"{text} watches and {instances} instances per user"
    if int(text) >= wanted:
        return ok(seen)
    return warning(
        f"{seen}; short jobs may be missed",
        f"sysctl -w fs.inotify.max_user_watches={max(8192, wanted)}",
    )


def _check_open_files(_: ExaminedNode) -> Finding:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= 4096:
        return ok(f"{'any number of' if soft < 0 else soft} open files")
    return warning(
        f"{soft} open files, so files of jobs are reopened at each scrape",
        "set LimitNOFILE=16384 in a drop-in of the service",
    )


def _check_helper(node: ExaminedNode) -> Finding:
    """Have the helper load its programs for a moment."""
    problems = HelperClient(node.host).problems()
    if problems is None:
        return warning(
            "batchjob_helper does not answer: exact IO, network and devices of jobs are missing",
            "systemctl enable --now batchjob_helper.socket; the helper answers root and the "
            "exporter's user",
        )
    failed = [f"{feature}: {problem}" for feature, problem in problems.items() if problem]
    if not failed:
        return ok(f"batchjob_helper gives {', '.join(sorted(problems))}")
    return warning(
        "; ".join(failed), "see docs/kernel.md for the capabilities and the kernel that each needs"
    )


CHECKS: Checks = {
    **{name: partial(_check_capability, name) for name in CAPABILITIES},
    "hidepid": _check_hidepid,
    "namespace": _check_pid_namespace,
    "inotify": _check_inotify,
    "open files": _check_open_files,
    "helper": _check_helper,
}

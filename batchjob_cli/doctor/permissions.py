"""What the exporter needs besides its sources: rights, an address, and the right time.

The command should run with the exporter's rights.
"""

import ctypes
import os
import re
import resource
from functools import partial

from batchjob.runtime.http_client import FetchError, fetch
from batchjob.runtime.settings import SettingsError
from batchjob_cli.doctor.finding import (
    Checks,
    ExaminedNode,
    Finding,
    missing,
    ok,
    read_text,
    warning,
)
from batchjob_exporter.web.addresses import open_listeners
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


def _check_user(_: ExaminedNode) -> Finding:
    uid = os.geteuid()
    if uid == 0:
        return ok("running as root; the service needs fewer privileges, see docs/exporter.md")
    return ok(f"running as uid {uid}; the findings below apply to it")


def _check_capability(name: str, node: ExaminedNode) -> Finding | None:
    bit, gives = CAPABILITIES[name]
    held = re.search(
        r"^CapEff:\s*([0-9a-f]+)$", read_text(f"{node.host.procfs}/self/status") or "", re.MULTILINE
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
    table = read_text(f"{node.host.procfs}/self/mountinfo") or ""
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
            pids = (read_text(f"{directory}/cgroup.procs") or "").split()
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
    if text is None or not text.isdigit():
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
    "user": _check_user,
    **{name: partial(_check_capability, name) for name in CAPABILITIES},
    "hidepid": _check_hidepid,
    "namespace": _check_pid_namespace,
    "inotify": _check_inotify,
    "open files": _check_open_files,
    "helper": _check_helper,
}


_TIMEX_BYTES = 208  # struct timex of <sys/timex.h> on 64-bit Linux
_TIMEX_STATUS = 40  # offset of `status`
_STA_UNSYNC = 0x0040


def _check_address(node: ExaminedNode) -> Finding | None:
    if not node.listen:
        return None
    shown = ", ".join(node.listen)
    try:
        for each in open_listeners(node.listen):
            each.close()
    except SettingsError as error:
        if any(_exporter_answers(address) for address in node.listen):
            return ok(f"an exporter answers on {shown}")
        return warning(str(error), "choose another with --web.listen-address")
    return ok(f"{shown} is free")


def _exporter_answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        answer = fetch(f"http://{host or 'localhost'}:{port}/-/healthy", seconds=2.0)
    except (FetchError, ValueError):
        return False
    return answer.status == 200


def _check_clock(_: ExaminedNode) -> Finding | None:
    """Whether the clock is synchronised, according to the kernel (adjtimex(2))."""
    state = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(state) < 0:
        return None
    status = int.from_bytes(state.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], "little")
    if not status & _STA_UNSYNC:
        return ok("synchronised")
    return warning(
        "the clock is not synchronized: samples and job records may not match",
        "run chronyd or systemd-timesyncd (in a virtual machine, on its host)",
    )


def _check_cpus(_: ExaminedNode) -> Finding:
    allowed = sorted(os.sched_getaffinity(0))
    return ok(f"{len(allowed)} usable; the exporter uses one of them")


SERVICE_CHECKS: Checks = {"address": _check_address, "clock": _check_clock, "cpus": _check_cpus}

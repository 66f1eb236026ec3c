"""CPUs of LSF jobs that have no CPU set, from the environment that LSF sets.

IBM Spectrum LSF, "Environment variables set for job execution" and "Affinity hostfile":

    LSB_AFFINITY_HOSTFILE  a file with a line for each task: host, list of CPUs, NUMA nodes, policy
    LSB_MCPU_HOSTS         `host1 4 host2 2`: hosts, and slots on each

The environment belongs to the user, so the file is read only if root has written it.
"""

import os
import stat
from collections.abc import Mapping

from batchjob.runtime.cpu_lists import parse_cpu_list

AFFINITY_FILE, SLOTS = "LSB_AFFINITY_HOSTFILE", "LSB_MCPU_HOSTS"
VARIABLES = (AFFINITY_FILE, SLOTS)

_MAX_FILE_BYTES = 1 << 20


def count_on_this_node(environ: Mapping[str, str]) -> int | None:
    """CPUs of a job on this machine; None if unknown."""
    return count_on_node(environ, os.uname().nodename, os.cpu_count() or 1)


def count_on_node(environ: Mapping[str, str], hostname: str, online: int) -> int | None:
    """CPUs on this node; None if neither variable states them, or the node has fewer."""
    host = hostname.partition(".")[0]
    cpus = _count_in_affinity_file(environ.get(AFFINITY_FILE, ""), host)
    cpus = cpus or _count_in_slot_list(environ.get(SLOTS, ""), host)
    return cpus if 0 < cpus <= online else None


def _count_in_affinity_file(path: str, host: str) -> int:
    try:
        lines = _read_root_file(path).decode(errors="replace").splitlines() if path else []
        cpus: set[int] = set()
        for line in lines:
            words = line.split()
            if len(words) > 1 and words[0].partition(".")[0] == host:
                cpus.update(parse_cpu_list(words[1]))
    except (OSError, ValueError):
        return 0
    return len(cpus)


def _read_root_file(path: str) -> bytes:
    """The text of a file that belongs to root, else ""; raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            return b""
        return os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def _count_in_slot_list(text: str, host: str) -> int:
    words = text.split()
    slots = 0
    for name, number in zip(words[::2], words[1::2], strict=False):
        if name.partition(".")[0] == host and number.isascii() and number.isdigit():
            slots += int(number[:9])
    return slots

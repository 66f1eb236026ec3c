"""CPUs of LSF jobs that have no CPU set, from the environment that LSF sets.

IBM Spectrum LSF, "Environment variables set for job execution" and "Affinity hostfile":

    LSB_AFFINITY_HOSTFILE  a file with a line for each task: host, list of CPUs, NUMA nodes, policy
    LSB_MCPU_HOSTS         `host1 4 host2 2`: hosts, and slots on each

The environment belongs to the user, so the file is read only if root has written it.
"""

import os
import stat
from collections.abc import Mapping

AFFINITY_FILE, SLOTS = "LSB_AFFINITY_HOSTFILE", "LSB_MCPU_HOSTS"
VARIABLES = (AFFINITY_FILE, SLOTS)

_LONGEST_FILE = 1 << 20


def of_this_node(environ: Mapping[str, str]) -> int | None:
    """CPUs of a job on this machine."""
    return allocated(environ, os.uname().nodename, os.cpu_count() or 1)


def allocated(environ: Mapping[str, str], hostname: str, online: int) -> int | None:
    """CPUs on this node; None if neither variable states them, or the node has fewer."""
    own = hostname.partition(".")[0]
    cpus = _of_file(environ.get(AFFINITY_FILE, ""), own) or _of_slots(environ.get(SLOTS, ""), own)
    return cpus if 0 < cpus <= online else None


def _of_file(path: str, own: str) -> int:
    try:
        lines = _root_wrote(path).decode(errors="replace").splitlines() if path else []
        cpus: set[int] = set()
        for line in lines:
            words = line.split()
            if len(words) > 1 and words[0].partition(".")[0] == own:
                cpus.update(_listed(words[1]))
    except (OSError, ValueError):
        return 0
    return len(cpus)


def _root_wrote(path: str) -> bytes:
    """The text of a file that belongs to root, else ""; raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            return b""
        return os.read(descriptor, _LONGEST_FILE)
    finally:
        os.close(descriptor)


def _listed(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = _number(first), _number(last or first)
        if end - begin >= 65536:
            raise ValueError(f"not a list of CPUs: {text!r}")
        cpus.update(range(begin, end + 1))
    return cpus


def _number(text: str) -> int:
    if len(text) > 9 or not (text.isascii() and text.isdigit()):
        raise ValueError(f"not a number: {text!r}")
    return int(text)


def _of_slots(text: str, own: str) -> int:
    words = text.split()
    slots = 0
    for host, number in zip(words[::2], words[1::2], strict=False):
        if host.partition(".")[0] == own and number.isascii() and number.isdigit():
            slots += int(number[:9])
    return slots

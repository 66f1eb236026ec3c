"""What a job does on NFS and Lustre, from the node's counters while it is alone on the node.

The kernel counts for each mount, not for each process or cgroup. So what the counters gain between
two readings is a job's if no other job was there meanwhile, and nobody's otherwise. Sources:
/proc/PID/mountstats (Linux, fs/nfs/super.c), and the llite statistics of Lustre's client.
"""

import glob
import os
import re
from collections.abc import Mapping, Sequence

from batchjob.quantities.reading import FileSystemIO
from collectors.host import Host, read_path
from collectors.jobs.state.job import Job

_PAUSE_SECONDS = 1.0  # between two readings while the same jobs are there
_NO_IO = FileSystemIO(0.0, 0.0, 0.0)

Mounts = Mapping[tuple[str, str], FileSystemIO]
"""The counters of each mount, by its type, nfs or lustre, and what tells it from others."""

_MOUNT = re.compile(rb" mounted on (\S+) with fstype nfs4? ")
# Of read, write and direct calls; then from and to the server, which is what is wanted.
_NFS_BYTES = re.compile(rb"^\tbytes:\s+\d+ \d+ \d+ \d+ (\d+) (\d+)", re.MULTILINE)
_NFS_OPERATION = re.compile(rb"^[ \t]+[A-Z_]+: (\d+) ", re.MULTILINE)
_LLITE = re.compile(
    rb"^(\w+)\s+(\d+) samples \[(?:bytes|regs|reqs|usecs?)\](?: \d+ \d+ (\d+))?", re.MULTILINE
)
_LLITE_READ, _LLITE_WRITE = b"read_bytes", b"write_bytes"
# Pages of the cache, and calls that are counted by their bytes as well.
_LLITE_NO_CALLS = re.compile(rb"dirty_pages_\w+|lockless_\w+|read|write")


class FileSystemCounters:
    """Adds what the node's counters gain to its only job; used by the scanner's thread only."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._read_at = float("-inf")
        self._present: Sequence[Job] = ()  # at the last reading
        self._mounts: Mounts = {}

    def update(self, jobs: Sequence[Job], *, are_all: bool) -> None:
        """Read the counters, with the node's running and ended jobs; `are_all`: it has no others.

        Raises OSError, and ValueError for text that is not understood; then nobody gains anything.
        """
        now = self._host.monotonic()
        running = [job for job in jobs if job.ended is None]
        if running == self._present and now < self._read_at + _PAUSE_SECONDS:
            return
        since = [job for job in jobs if job.ended is None or job.ended.monotonic >= self._read_at]
        is_alone = len(since) == 1 and are_all
        for job in since:
            job.shares_file_systems = not is_alone
        was_alone, self._present, self._read_at = self._present == since, (), now
        if len(running) > 1 or not since:
            return
        mounts = {**read_nfs(self._host.procfs), **read_lustre(self._host)}
        if is_alone and was_alone:
            since[0].file_systems = add_gains(since[0].file_systems, self._mounts, mounts)
        self._present, self._mounts = running, mounts


def add_gains(
    sums: Mapping[str, FileSystemIO], before: Mounts, now: Mounts
) -> Mapping[str, FileSystemIO]:
    """The sums of each type of file system, with what was gained; a mount begins at zero."""
    added = dict(sums)
    for mount, counters in now.items():
        known = before.get(mount, _NO_IO)
        if any(new < old for new, old in zip(counters, known, strict=True)):
            known = _NO_IO  # mounted again meanwhile
        values = zip(added.get(mount[0], _NO_IO), counters, known, strict=True)
        added[mount[0]] = FileSystemIO(*(total + new - old for total, new, old in values))
    return added


def read_nfs(procfs: str) -> Mounts:
    """The counters of NFS; several mounts may have the same ones. Raises OSError, ValueError."""
    mounts: dict[tuple[str, str], FileSystemIO] = {}
    devices: Mapping[bytes, bytes] = {}
    process = f"{procfs}/1"  # the exporter's own mounts lack /home, which its unit hides
    try:
        text = read_path(f"{process}/mountstats")
    except OSError:  # without CAP_DAC_READ_SEARCH
        process = f"{procfs}/self"
        text = read_path(f"{process}/mountstats")
    if not text.startswith(b"device "):
        raise ValueError(f"{process}/mountstats: no mounts")
    for block in text.split(b"\ndevice "):
        head, _, counters = block.partition(b"\n")
        mount = _MOUNT.search(head)
        if mount is None:
            continue
        if not devices:
            lines = map(bytes.split, read_path(f"{process}/mountinfo").splitlines())
            devices = {words[4]: words[2] for words in lines}
        transferred = _NFS_BYTES.search(counters)
        if transferred is None:
            raise ValueError(f"{process}/mountstats: no bytes of {mount[1].decode()}")
        device = devices.get(mount[1], mount[1]).decode(errors="replace")
        operations = sum(map(int, _NFS_OPERATION.findall(counters)))
        received, sent = map(float, transferred.groups())
        mounts["nfs", device] = FileSystemIO(received, sent, operations)
    return mounts


def read_lustre(host: Host) -> Mounts:
    """The counters of each mount of Lustre. Raises OSError, ValueError."""
    new = glob.glob(f"{host.sysfs}/kernel/debug/lustre/llite/*/stats")
    mounts: dict[tuple[str, str], FileSystemIO] = {}
    for path in new or glob.glob(f"{host.procfs}/fs/lustre/llite/*/stats"):  # before 2.12
        text = read_path(path)
        if not text.startswith(b"snapshot_time"):
            raise ValueError(f"{path}: no statistics of llite")
        rows = {name: (int(calls), int(total or 0)) for name, calls, total in _LLITE.findall(text)}
        operations = sum(
            calls for name, (calls, _) in rows.items() if not _LLITE_NO_CALLS.fullmatch(name)
        )
        read, written = (rows.get(name, (0, 0))[1] for name in (_LLITE_READ, _LLITE_WRITE))
        mount = os.path.basename(os.path.dirname(path))
        mounts["lustre", mount] = FileSystemIO(read, written, operations)
    return mounts

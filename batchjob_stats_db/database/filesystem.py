"""The file system of a path, from the kernel's table (proc(5), mountinfo)."""

import os
from pathlib import Path

# SQLite's WAL keeps its index in memory shared with mmap, and relies on byte-range locks; neither
# works between hosts (https://www.sqlite.org/wal.html, "does not work over a network filesystem").
NETWORK_TYPES = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fhgfs", "fuse.cephfs", "fuse.glusterfs",
    "fuse.s3fs", "fuse.sshfs", "glusterfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs3",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs",
})  # fmt: skip


def filesystem_type(path: str, mountinfo: str = "/proc/self/mountinfo") -> str:
    """Type of the file system of `path` (which need not exist yet); "" if unknown."""
    try:
        table = Path(mountinfo).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    target = os.path.realpath(path)
    longest_mount, kind = "", ""
    for line in table.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount = _unescape(fields[4])
        # A later mount on the same mount point hides the earlier one, hence >=.
        is_within = f"{target}/".startswith(mount.rstrip("/") + "/")
        if is_within and len(mount) >= len(longest_mount):
            longest_mount, kind = mount, after.split(" ", 1)[0]
    return kind


def _unescape(field: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escape, character)
    return field

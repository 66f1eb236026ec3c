"""Files and directories of sysfs and procfs, of which any may be missing or unreadable."""

import os

_MAX_BYTES = 65536


def list_directory(path: str) -> list[str]:
    """The sorted names in a directory; none if it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def read_text(path: str) -> str:
    """A file's text without surrounding white space, at most 64 KiB; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES).strip()
    except OSError:
        return ""

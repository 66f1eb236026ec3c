"""Files and directories of sysfs and procfs, of which any may be missing or unreadable."""

import os

_MAX_CHARACTERS = 1 << 20  # mig-minors of 32 GPUs has a tenth of it


def list_directory(path: str) -> list[str]:
    """The sorted names in a directory; none if it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def read_text(path: str) -> str:
    """A file's text without white space around it, at most 1 Mi characters; "" if unreadable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARACTERS).strip()
    except OSError:
        return ""

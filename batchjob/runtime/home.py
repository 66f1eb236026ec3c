"""Home directories in paths that people write."""

import errno
from pathlib import Path


def expand_home(path: str) -> Path:
    """The path with `~` or `~user` replaced; raises FileNotFoundError.

    Users may have no home: a container with any uid has neither $HOME nor an entry in passwd.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "no such home directory", path) from None

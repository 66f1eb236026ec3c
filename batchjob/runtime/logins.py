"""Login names of users from the kernel's uid, since a file may claim anything, and their homes."""

import errno
import os
import pwd
from pathlib import Path

_CACHE: dict[int, str] = {}
_CACHE_SIZE = 10_000  # maximum number of cached names
_MAX_CHARACTERS = 255  # as many as the database stores of a name


def is_login(name: str) -> bool:
    """Whether a text may be a login: any printable one of one line, as directory services have.

    A comma separates several, as in a header that was sent twice; a colon ends one in passwd(5).
    `${` begins a variable for which Grafana has put in no value.
    """
    return (
        0 < len(name) <= _MAX_CHARACTERS
        and name.isprintable()
        and name == name.strip()
        and not set(name) & set(",:")
        and "${" not in name
    )


def login() -> str:
    return login_of(os.geteuid())


def login_of(uid: int) -> str:
    """The login of a user; the uid where it has no name, as in some containers.

    Each name is looked up once, since a directory service may be slow, and again if that failed.
    """
    if name := _CACHE.get(uid):
        return name
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OSError, OverflowError):
        return str(uid)
    if len(_CACHE) < _CACHE_SIZE:
        _CACHE[uid] = name
    return name


def expand_home(path: str) -> Path:
    """The path with `~` or `~user` replaced; raises FileNotFoundError.

    Users may have no home: a container with any uid has neither $HOME nor an entry in passwd.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "no such home directory", path) from None

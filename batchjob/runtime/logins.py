"""Login names of users from the kernel's uid: an environment or a file may claim anything."""

import os
import pwd

_CACHE: dict[int, str] = {}
_CACHE_SIZE = 10_000  # maximum number of cached names


def login() -> str:
    """The login of the effective user."""
    return login_of(os.geteuid())


def login_of(uid: int) -> str:
    """The login of a user; the uid where it has no name, as in some containers.

    Each name is looked up once: a directory service may be slow. If the look-up fails, it is
    repeated the next time.
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

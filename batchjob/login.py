"""Who runs this program, by the kernel's word: an environment may say anything."""

import os
import pwd


def login() -> str:
    """The login of the effective user; the number where it has no name, as in some containers."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)

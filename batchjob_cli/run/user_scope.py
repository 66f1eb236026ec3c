"""Limits for people to whom no cgroup is delegated: a scope of their own systemd has one."""

import contextlib
import getpass
import os
import subprocess
import sys
from pathlib import Path

from batchjob_cli.run.cgroup import creation_error

_ENTERED = "BATCHJOB_ENTERED_SCOPE"  # set for this program in a scope, and for nothing that it runs
_LINGER = Path("/var/lib/systemd/linger")  # loginctl(1): users whose manager outlives their session
_UNIFIED = Path("/sys/fs/cgroup/cgroup.controllers")  # on v1 a user's systemd has no controllers
_ANSWER_SECONDS = 5.0
_SCOPE = (
    "systemd-run", "--user", "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--",
)  # fmt: skip


def enter(detach: bool) -> None:
    """Execute this program again in a scope, as the same process, if only that gives it a cgroup.

    A user's systemd ends at the last logout, and would end a detached run.
    """
    entered = os.environ.pop(_ENTERED, None)
    stays = not detach or (_LINGER / getpass.getuser()).exists()
    if stays and not entered and is_possible():
        os.environ[_ENTERED] = "1"
        os.execvp(_SCOPE[0], (*_SCOPE, sys.executable, *sys.orig_argv[1:]))  # noqa: S606 (this program, no shell)


def is_possible() -> bool:
    """Tried with a scope of `true`: a systemd-run that fails would execute nothing."""
    if os.geteuid() == 0 or not _UNIFIED.exists() or not creation_error():
        return False
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(  # noqa: S603 (fixed command)
            (*_SCOPE, "true"), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_ANSWER_SECONDS, check=True,
        )  # fmt: skip
        return True
    return False

"""Standard output that is closed, is full, or has a reader that leaves early, such as `head`."""

import errno
import os
import sys
from collections.abc import Callable

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def printing(program: str, run: Callable[[], int]) -> int:
    """The exit status of `run`; 1, and a line on stderr, if its output could not be written.

    `run` must not let errors of other files and connections pass that do not name them.
    """
    if sys.stdout is None:  # stdout was closed before the program started
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (stays open until exit)
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        return 0
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _discard()
        print(f"{program}: standard output: {error.strerror}", file=sys.stderr)
        return 1


def _discard() -> None:
    """Or Python fails once more when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

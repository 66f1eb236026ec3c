"""Standard output that is closed, is full, or has a reader that leaves early, such as `head`."""

import errno
import os
import sys
from collections.abc import Callable

_STDOUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def run_with_stdout(program: str, run: Callable[[], int]) -> int:
    """Call `run` and return its exit status; 1, with a line on stderr, if stdout is not writable.

    `run` must not raise an OSError of another file or connection that does not name it.
    """
    if sys.stdout is None:  # stdout was closed before the program started
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (stays open until exit)
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except OSError as error:
        if error.errno not in _STDOUT_ERRORS or error.filename is not None:
            raise
        _discard_stdout()
        print(f"{program}: standard output: {error.strerror}", file=sys.stderr)
        return 1


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null: Python flushes it at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

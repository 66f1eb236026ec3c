"""Programs whose standard output cannot be written, or whose libraries are not installed.

Standard output may be closed or full, or have a reader that leaves early, such as `head`.
"""

import errno
import importlib
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


def missing_library_message(error: ModuleNotFoundError, extra: str) -> str:
    """The message for a missing library, with the extra that installs it."""
    missing = str(error.name).partition(".")[0]
    return (
        f"{missing} is not installed; install it with: pip install 'batchjob-monitoring[{extra}]'"
    )


def run(command: str, extra: str) -> int:
    """Run the `main` of a package that needs an extra; returns its exit status."""
    try:
        module = importlib.import_module(f"{command}.main")
    except ModuleNotFoundError as error:
        print(f"{command}: {missing_library_message(error, extra)}", file=sys.stderr)
        return 2
    return int(module.main())

"""Errors of queries, and the exit status for each."""

import contextlib
from collections.abc import Iterator

from batchjob.runtime.settings import SettingsError, UnavailableError


class NotFoundError(SettingsError):
    """There is no such job or run, or none that the caller may see."""


class RefusedError(SettingsError):
    """The caller may not do this, or not to this job in its present state."""


class UnreachableError(UnavailableError):
    """The server or database does not answer."""


@contextlib.contextmanager
def files_named() -> Iterator[None]:
    """Raise SettingsError for a file that cannot be read; errors of standard output name none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise SettingsError(f"{error.filename}: {error.strerror}") from error


DONE, FAILED, USAGE, NOT_FOUND, REFUSED, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


def exit_status(error: SettingsError) -> int:
    kinds = {NotFoundError: NOT_FOUND, RefusedError: REFUSED, UnavailableError: UNREACHABLE}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), USAGE)


def error_of_status(status: int, text: str) -> SettingsError:
    if status == 401:
        text = f"{text}; --token-file or $BATCHJOB_TOKEN gives a token, --cert a certificate"
    message = f"{text} (status {status})"
    if status in (300, 404, 410):  # 300: several jobs match
        return NotFoundError(message)
    if status in (401, 403, 409):
        return RefusedError(message)
    if status == 429 or status >= 500:
        return UnreachableError(message)
    return SettingsError(message)

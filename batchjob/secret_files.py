"""Files that hold a password, a token or a key: of the program's user or group, and nobody else."""

import os
import stat
from typing import Any

from batchjob.runtime.values import text, with_metavar

_MAX_BYTES = 64 * 1024


class SecretFileError(ValueError):
    """A secret that cannot be used; the text names the file and what was expected."""


@with_metavar("FILE")
def secret_file(value: Any) -> str:
    """Parse the path of a secret file; refused at once if others may read or write it."""
    path = text(value)
    try:
        status = os.stat(path) if path else None
    except OSError:
        status = None  # the file may be created later; reading it reports the error otherwise
    if status:
        _check_mode(path, status)
    return path


@with_metavar("FILE")
def key_file(value: Any) -> str:
    """Parse the path of a private key (PEM) with or without certificates; checked likewise."""
    path = text(value)
    if path:
        check_private_key(path)
    return path


def file_stamp(path: str) -> tuple[int, int, int] | None:
    """A value that changes when the file is written or replaced; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_secret(path: str) -> str:
    """The one line of a file; raises SecretFileError."""
    try:
        secret = read_key(path).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SecretFileError(f"{path}: not UTF-8") from error
    if len(secret.splitlines()) > 1:
        raise SecretFileError(f"{path}: expected one line with the secret")
    return secret


def read_key(path: str) -> bytes:
    """All of a file; raises SecretFileError.

    Kubernetes and systemd mount secrets as symbolic links and read-only: only the mode counts.
    """
    try:
        with open(path, "rb") as file:
            _check_mode(path, os.fstat(file.fileno()))
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SecretFileError(f"{path}: {error.strerror}") from error
    if len(content) > _MAX_BYTES:
        raise SecretFileError(f"{path}: expected at most {_MAX_BYTES} bytes")
    return content


def check_private_key(path: str) -> None:
    """Raise SecretFileError if a file (PEM) has a key that others may read or write.

    A file that cannot be read is no error here: whoever uses it reports that.
    """
    try:
        with open(path, "rb") as file:
            status, content = os.fstat(file.fileno()), file.read(_MAX_BYTES)
    except OSError:
        return
    if b"PRIVATE KEY-----" in content:
        _check_mode(path, status)


def _check_mode(path: str, status: os.stat_result) -> None:
    """Raise SecretFileError if others may read or write the file.

    The mode of a pipe or a device, such as a shell's <(command), means nothing.
    """
    rights = ((stat.S_IROTH, "read"), (stat.S_IWOTH, "write"))
    given = [word for bit, word in rights if status.st_mode & bit]
    if stat.S_ISREG(status.st_mode) and given:
        raise SecretFileError(
            f"{path}: every user of this machine can {' and '.join(given)} this secret"
            f" (mode {stat.S_IMODE(status.st_mode):04o}); restrict it with `chmod o= {path}`"
        )

"""Files that hold a password, a token or a key: of the program's user or group, and nobody else."""

import os
import stat
from typing import Any

from batchjob.runtime.values import called, text

_LARGEST = 64 * 1024
_OTHERS = stat.S_IROTH | stat.S_IWOTH


class SecretFileError(ValueError):
    """A secret that cannot be used; the text names the file and what was expected."""


@called("FILE")
def secret_file(value: Any) -> str:
    """An option's path of such a file, refused at once where others may read or write it."""
    path = text(value)
    try:
        status = os.stat(path) if path else None
    except OSError:
        status = None  # the file may be created later; reading it reports the error otherwise
    if status:
        _check(path, status)
    return path


@called("FILE")
def key_file(value: Any) -> str:
    """An option's path of a private key (PEM), alone or with its certificates; the same."""
    path = text(value)
    if path:
        check_private_key(path)
    return path


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
            _check(path, os.fstat(file.fileno()))
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise SecretFileError(f"{path}: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise SecretFileError(f"{path}: expected at most {_LARGEST} bytes")
    return content


def check_private_key(path: str) -> None:
    """Raises SecretFileError where a file (PEM) has a key that others may read or write.

    A file that cannot be read is left to whoever needs it; so is one with certificates alone.
    """
    try:
        with open(path, "rb") as file:
            status, content = os.fstat(file.fileno()), file.read(_LARGEST)
    except OSError:
        return
    if b"PRIVATE KEY-----" in content:
        _check(path, status)


def _check(path: str, status: os.stat_result) -> None:
    """A pipe or a device, as of a shell's <(command), has no mode that says anything."""
    if stat.S_ISREG(status.st_mode) and status.st_mode & _OTHERS:
        raise SecretFileError(
            f"{path}: every user of this machine can {_may(status.st_mode)} this secret"
            f" (mode {stat.S_IMODE(status.st_mode):04o}); restrict it with `chmod o= {path}`"
        )


def _may(mode: int) -> str:
    rights = ((stat.S_IROTH, "read"), (stat.S_IWOTH, "write"))
    return " and ".join(word for bit, word in rights if mode & bit)

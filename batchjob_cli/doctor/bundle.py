"""One redacted file for a bug report: the doctor's report, versions, settings and logs."""

import functools
import glob
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from batchjob import __version__
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob_cli.doctor.redaction import Redaction, find_hosts, find_logins

_SETTINGS = ("/etc/batchjob/*.yml", "/etc/default/batchjob*")
_MAX_BYTES = 256 << 10  # of one part
_LOG_LINES = 300
_COMMANDS = {
    "log": ["journalctl", "--no-pager", "--lines", str(_LOG_LINES), "--unit", "batchjob*"],
    "units": ["systemctl", "--no-pager", "list-units", "--all", "batchjob*"],
    "Slurm": ["scontrol", "--version"],
    "PBS": ["qstat", "--version"],
    "LSF": ["lsid", "-V"],
    "GPUs": ["nvidia-smi", "-L"],
}
_TIMEOUT_SECONDS = 10.0
_LOGIN = re.compile(r"(?<![\w./-])[a-z_][a-z0-9_-]{1,31}(?![\w./-])")
_AUDIT = re.compile(rb'logger"?(?:=|: ")batchjob\.audit\b')


def write(path: str, report: str, arguments: list[str], settings: tuple[str, ...] = ()) -> None:
    """Write the bundle, readable for its owner alone. `settings`: files besides those in /etc.

    Raises SettingsError.
    """
    found = list(_parts(report, arguments, settings))
    words = {word for _, text in found for word in _LOGIN.findall(text)}
    redacted = Redaction(find_logins(words), find_hosts(*(text for _, text in found)))
    parts = [f"== {title}\n{redacted(text).rstrip()}\n" for title, text in found]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"--bundle: {path}: {reason(error)}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write("\n".join(parts))


def _parts(
    report: str, arguments: list[str], settings: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    yield "versions", _versions()
    yield "arguments", " ".join(arguments)
    yield "doctor", report
    found = [path for pattern in (*_SETTINGS, *settings) for path in sorted(glob.glob(pattern))]
    for path in dict.fromkeys(found):
        yield path, _read_or_explain(Path(path).read_bytes)
    for title, command in _COMMANDS.items():
        yield title, _read_or_explain(functools.partial(_run_command, command))


def _read_or_explain(read: Callable[[], bytes]) -> str:
    try:
        return read()[-_MAX_BYTES:].decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError) as error:
        return f"unavailable: {reason(error)}"


def without_audit(lines: bytes) -> bytes:
    """A log without the audit log's lines, which contain names and nothing about faults."""
    return b"".join(line for line in lines.splitlines(keepends=True) if not _AUDIT.search(line))


def _run_command(command: list[str]) -> bytes:
    done = subprocess.run(  # noqa: S603 (fixed commands)
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=_TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    return without_audit(done.stdout)


def _versions() -> str:
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "") if _has_os_release() else ""
    packages = sorted(
        f"{each.metadata['Name']} {each.version}" for each in metadata.distributions()
    )
    return "\n".join(
        [
            f"batchjob {__version__}",
            f"Python {sys.version.split()[0]}",
            f"Linux {platform.release()} {platform.machine()}",
            system,
            *packages,
        ]
    )


def _has_os_release() -> bool:
    return any(map(os.path.exists, ("/etc/os-release", "/usr/lib/os-release")))

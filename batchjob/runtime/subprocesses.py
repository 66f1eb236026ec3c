"""Calls commands of schedulers: argv, a deadline, a limit on output, a clean environment.

No shell is used. Output is bytes, since job names may have any encoding.
"""

import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from batchjob.runtime.json_reader import first_json_value
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration


class SchedulerError(Exception):
    """A scheduler's command or server gave no usable answer; the text is one line for people."""


class CommandTimeoutError(SchedulerError):
    """The program had not ended at the deadline and was killed."""


class CommandOutputError(SchedulerError):
    """The program printed more than the limit and was killed."""


class CommandFailedError(SchedulerError):
    """The program ended with an exit status other than 0; `output` is all that it printed."""

    def __init__(self, message: str, output: bytes) -> None:
        super().__init__(message)
        self.output = output


OUTPUT_LIMIT = 512 * 1024 * 1024
_MAX_MESSAGE_CHARACTERS = 300
_READ_BYTES = 1 << 16

# Variables that a scheduler's client needs to find its configuration. All others (locale,
# SLURM_JOB_ID, SQUEUE_FORMAT, SACCT_FORMAT ...) would change its output.
_PASSED_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "KRB5CCNAME", "LD_LIBRARY_PATH",
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SACK_SOCKET",
    "PBS_CONF_FILE", "PBS_EXEC", "PBS_HOME", "PBS_SERVER",
    "LSF_ENVDIR", "LSF_SERVERDIR", "LSF_LIBDIR", "LSF_BINDIR", "EGO_CONFDIR", "EGO_TOP",
)  # fmt: skip


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a scheduler's command: what it needs, UTC, and no locale."""
    kept = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", **(extra or {})}


def call(
    argv: Sequence[str],
    *,
    timeout: float,
    extra_environment: Mapping[str, str] | None = None,
    output_limit: int = OUTPUT_LIMIT,
) -> bytes:
    """Run a program to its end and return its standard output; raises a SchedulerError.

    At the deadline, the program and its children are killed (it leads a process group of its own):
    clients that wait for their server often ignore SIGTERM.
    """
    started = time.monotonic()
    try:
        process = subprocess.Popen(  # noqa: S603 (argv from the configuration, no shell)
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(extra_environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise SchedulerError(f"{argv[0]}: {getattr(error, 'strerror', None) or error}") from error
    try:
        stdout, stderr = _read_output(process, argv[0], started + timeout, timeout, output_limit)
    except BaseException:  # including KeyboardInterrupt: leave no process running
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    if process.returncode != 0:
        text = _failure_message(argv[0], process.returncode, stderr.strip() or stdout.strip())
        raise CommandFailedError(text, stdout + stderr)
    return stdout


def _read_output(
    process: subprocess.Popen[bytes], name: str, deadline: float, timeout: float, limit: int
) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    parts: dict[IO[bytes], list[bytes]] = {process.stdout: [], process.stderr: []}
    size = 0
    with selectors.DefaultSelector() as selector:
        for pipe in parts:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready or time.monotonic() > deadline:
                raise CommandTimeoutError(f"{name}: no answer within {timeout:g} s")
            for key, _ in ready:
                pipe = key.fileobj  # type: ignore[assignment]  # what was registered above
                chunk = os.read(key.fd, _READ_BYTES)
                if not chunk:
                    selector.unregister(pipe)
                parts[pipe].append(chunk)
                size += len(chunk)
            if size > limit:
                raise CommandOutputError(f"{name}: more than {limit // 1_000_000} MB of output")
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise CommandTimeoutError(f"{name}: timed out after {timeout:g} s") from None
    return b"".join(parts[process.stdout]), b"".join(parts[process.stderr])


def _failure_message(name: str, status: int, output: bytes) -> str:
    how = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
    line = " ".join(output.decode("utf-8", "replace").split())[:_MAX_MESSAGE_CHARACTERS]
    return f"{name}: {how}: {line}" if line else f"{name}: {how}"


@dataclass(frozen=True)
class CommandOptions:
    ssh: str = option(
        "", "Run the command on this host over ssh, as [user@]host with key authentication."
    )
    timeout: float = option(120.0, "Maximum duration of a command.", parse=duration)


def run(
    options: CommandOptions,
    argv: Sequence[str],
    variables: Mapping[str, str] | None = None,
    limit: int = OUTPUT_LIMIT,
) -> bytes:
    """Call the command here, or on another host if the options say so.

    sshd passes the words to a shell there, so each is quoted; variables are set by env(1), since
    sshd accepts few of them.
    """
    if not options.ssh:
        return call(argv, timeout=options.timeout, extra_environment=variables, output_limit=limit)
    settings = {"LC_ALL": "C.UTF-8", "TZ": "UTC", **(variables or {})}
    remote = ["env", *(f"{name}={value}" for name, value in settings.items()), *argv]
    ssh = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", options.ssh]
    return call([*ssh, shlex.join(remote)], timeout=options.timeout, output_limit=limit)


class NotJsonError(SchedulerError):
    """The output of the command is not JSON."""


def parse_json_object(output: bytes, *, numbers_as_text: bool = False) -> dict[str, Any]:
    """The JSON object in an output; warnings may precede it, and anything may follow.

    A byte that is not UTF-8 becomes U+FFFD. Raises NotJsonError.
    """
    at = re.search(rb"^\s*\{", output, re.MULTILINE)
    if at is None:
        start = " ".join(output[:200].decode("utf-8", "replace").split())
        raise NotJsonError(f"expected a JSON object, got {start!r}")
    text = output[at.start() :].decode("utf-8", "replace").lstrip()
    try:
        document = first_json_value(text, numbers_as_text=numbers_as_text)
    except ValueError as error:
        raise NotJsonError(f"expected a JSON object: {error}") from error
    assert isinstance(document, dict)  # the text starts with a brace
    return document

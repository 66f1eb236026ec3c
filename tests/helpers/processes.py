"""Daemons as children of the test process: started, awaited, and ended by their own pid."""

import contextlib
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.waiting import scaled, until

Completed = subprocess.CompletedProcess[str]


@contextlib.contextmanager
def daemon(
    argv: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None = None,
    patience: float = 10.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that stays in the foreground; SIGTERM at the end, SIGKILL `patience` s later.

    Being its parent, we reap it: a daemon that has forked itself away would stay a zombie.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd="/"
        )
    try:
        yield process
    finally:
        end(process, patience)


def end(process: subprocess.Popen[Any], patience: float = 30.0) -> int:
    """End a process with SIGTERM, or SIGKILL `patience` seconds later; returns its exit status."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(scaled(patience))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def run(argv: Sequence[object], timeout: float = 60.0, **options: Any) -> Completed:
    """Run a command; returns its exit status and all that it printed, as text.

    `timeout` is in seconds on an idle machine; `options` are those of `subprocess.run`.
    """
    if "input" not in options:
        options = {"stdin": subprocess.DEVNULL} | options
    return subprocess.run(
        [str(word) for word in argv],
        **{"capture_output": True, "text": True, "check": False} | options,
        timeout=scaled(timeout),
    )


def free_ports(count: int) -> list[int]:
    """Loopback TCP ports nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def succeeds(argv: Sequence[str], env: Mapping[str, str] | None = None) -> bool:
    """Whether the command exits with 0; its output is dropped."""
    return subprocess.run(argv, env=env, capture_output=True, check=False, cwd="/").returncode == 0


def call(*argv: str, **options: Any) -> str:
    """What the command printed; AssertionError with all it said where it fails."""
    done = run(argv, **{"timeout": 600.0} | options)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def served(argv: list[str], path: str, port: int, log: Path) -> Iterator[str]:
    """Start a daemon and yield what it answers."""

    def answer() -> str:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}{path}", timeout=scaled(5)
            ) as response:
                return str(response.read().decode())
        except OSError:
            return ""

    with daemon(argv, log, {"PATH": os.environ["PATH"]}):
        yield until(answer, f"{argv}: {log}", 30)

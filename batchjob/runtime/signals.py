"""Signals that the main thread waits for, and what a service tells systemd of its state."""

import os
import select
import signal
import socket
from collections.abc import Sequence


class Signals:
    """Takes over some signals; for the main thread, once in a process.

    The interpreter's C handler writes each of them to a pipe. A Python handler, such as one that
    puts into a queue, is not enough: it runs when the main thread is back in the interpreter, so a
    signal that comes just before the thread begins to wait for the queue would not wake it.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _ignore)

    def wait(self, seconds: float | None = None) -> Sequence[signal.Signals]:
        """The signals received; empty if there was none in this time."""
        ready, _, _ = select.select([self._read_end], [], [], seconds)
        return [signal.Signals(number) for number in os.read(self._read_end, 4096)] if ready else []


def _ignore(_number: int, _frame: object) -> None:
    """Without a Python handler, nothing is written to the pipe."""


def notify(state: str) -> None:
    """Send `READY=1`, `STATUS=...`, `STOPPING=1` or `WATCHDOG=1` to the service manager."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), address)
        except OSError:
            return  # the service runs on without a service manager

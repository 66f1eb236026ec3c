"""The command's standard output and error: passed on as they arrive, and stored.

If ours is a terminal, the command gets one too (a pty), so that it uses colours and buffers as it
would without us. Standard input is inherited: job control, Ctrl-C and reading from the terminal are
handled by the kernel as usual.
"""

import contextlib
import errno
import fcntl
import os
import select
import struct
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from typing import NamedTuple

from batchjob.local_runs.output import StreamLog

_READ_BYTES = 1 << 16
_FLUSH_SECONDS = 1.0
_WINDOW_SIZE = struct.Struct("HHHH")  # struct winsize, ioctl_tty(2)


class Channel(NamedTuple):
    """One stream: the command writes to `inner`, we read from `outer`, and pass it on."""

    outer: int
    inner: int
    target: int | None  # None: output is not passed on
    terminal: bool


def open_channel(target: int | None) -> Channel:
    """A pipe, or a pty if the target is a terminal; raises OSError."""
    if target is None or not os.isatty(target):
        outer, inner = os.pipe2(os.O_CLOEXEC)
        return Channel(outer, inner, target, terminal=False)
    outer, inner = os.openpty()
    # Only the real terminal processes the output, so that this does not happen twice.
    attributes = termios.tcgetattr(inner)
    attributes[tty.OFLAG] &= ~termios.OPOST
    attributes[tty.LFLAG] &= ~termios.ECHO
    termios.tcsetattr(inner, termios.TCSANOW, attributes)
    channel = Channel(outer, inner, target, terminal=True)
    copy_window_size(channel)
    return channel


def copy_window_size(channel: Channel) -> None:
    """Give the command's terminal the size of ours."""
    if channel.terminal and channel.target is not None:
        try:
            size = fcntl.ioctl(channel.target, termios.TIOCGWINSZ, bytes(_WINDOW_SIZE.size))
            fcntl.ioctl(channel.outer, termios.TIOCSWINSZ, size)
        except OSError:
            pass  # the terminal has hung up


class Pump(threading.Thread):
    """Passes one stream on and stores it, until nobody can write to it any more."""

    def __init__(self, name: str, channel: Channel, log: StreamLog | None) -> None:
        super().__init__(name=name, daemon=True)
        self._channel = channel
        self._log = log
        self._last_flush_time = 0.0
        self._poll = select.poll()
        self._poll.register(channel.outer, select.POLLIN)

    def run(self) -> None:
        try:
            while data := self._read():
                if not self._pass_on(data):
                    break
                self._store(data)
        finally:
            os.close(self._channel.outer)  # writers then get an error, as from any closed pipe
            with self._storing() as log:
                if log is not None:
                    log.close(time.time())

    def _read(self) -> bytes:
        while self._log is not None and self._log.dirty:
            if self._poll.poll(_FLUSH_SECONDS * 1000):
                break
            self._flush()
        try:
            return os.read(self._channel.outer, _READ_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:  # pty(7): all descriptors of the other side are closed
                return b""
            raise

    def _pass_on(self, data: bytes) -> bool:
        """Pass it on; returns whether the reader still exists."""
        target = self._channel.target
        while data and target is not None:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                select.select([], [target], [])
            except OSError as error:  # EPIPE, EIO for a closed terminal, ENOSPC for a file
                if error.errno == errno.EPIPE:
                    return False
                self._warn(f"{self.name} cannot be passed on: {error.strerror}")
                self._channel = self._channel._replace(target=None)
                return True
        return True

    def _store(self, data: bytes) -> None:
        now = time.time()
        with self._storing() as log:
            if log is not None:
                log.add(data, now)
        if now - self._last_flush_time >= _FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        self._last_flush_time = time.time()
        with self._storing() as log:
            if log is not None:
                log.flush(self._last_flush_time)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[StreamLog | None]:
        """After an error nothing is stored; the job continues, and its output is passed on."""
        try:
            yield self._log
        except OSError as error:
            self._log = None
            self._warn(f"{self.name} is no longer kept: {error.strerror}")

    @staticmethod
    def _warn(message: str) -> None:
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"batchjob: {message}\n".encode())

"""Hundreds of clients that try to block a server, in a process of their own.

    python -m tests.security.hostile_clients KIND COUNT HOST:PORT [--tls] [--addresses N] [--pace N]

    with hostile("talking", 300, address, tls=True, addresses=5) as crowd:
        ...                                   # ask the server meanwhile
    crowd.outcome.dropped                     # what happened to them

Each client behaves as its kind (`KINDS`), and connects again when it is disconnected. They connect
from 127.0.0.2 and the addresses after it. The process ends when its standard input is closed.
"""

import argparse
import base64
import contextlib
import json
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
_ROUND = 0.02  # seconds; each client may do one thing in a round
_IP_BIND_ADDRESS_NO_PORT = 24  # <linux/in.h>
_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(400)  # of a TLS handshake


def _get(path: str, authorization: str = "Basic") -> bytes:
    lines = ("Host: n", "Accept-Encoding: gzip", f"Authorization: {authorization}")
    return "\r\n".join((f"GET {path} HTTP/1.1", *lines, "", "")).encode()


class Kind(NamedTuple):
    """How a client behaves once it is connected."""

    first: bytes = b""  # sent at once
    drip: bytes = b""  # then sent byte by byte, repeatedly
    drip_seconds: float = 0.0  # between two bytes
    repeat_seconds: float = 0.0  # until `first` is sent again
    reads: bool = True
    leave_seconds: float = 0.0  # until it disconnects and connects again
    uses_tls: bool = True  # makes the handshake of a TLS server first


KINDS = {
    "silent": Kind(uses_tls=False),
    "slow": Kind(b"GET /metrics HTTP/1.1\r\n", b"X-A: b\r\n", drip_seconds=1.0),
    "talking": Kind(drip=_get("/metrics")[:-4] + b"\r\nX-A: " + b"b" * 8000, drip_seconds=0.05),
    "not-reading": Kind(_get("/metrics") * 20, reads=False),
    "pipelining": Kind(_get("/") * 50, repeat_seconds=0.1),
    "scraping": Kind(_get("/metrics"), repeat_seconds=0.05),
    "guessing": Kind(_get("/metrics", "Basic GUESS"), repeat_seconds=0.05),
    "leaving": Kind(_get("/metrics"), leave_seconds=0.05),
    "greeting slowly": Kind(drip=_HELLO, drip_seconds=0.05, uses_tls=False),
    "knocking": Kind(leave_seconds=0.02),
}


@dataclass
class Outcome:
    """What happened to all clients of an attack."""

    connected: int = 0
    dropped: int = 0  # by the server
    received_bytes: int = 0


_NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Client:
    """A hostile client."""

    def __init__(
        self, kind: Kind, host: str, context: ssl.SSLContext | None, outcome: Outcome
    ) -> None:
        self.kind, self.host, self.outcome = kind, host, outcome
        self.context = context if kind.uses_tls else None
        self.socket: socket.socket | None = None

    def connect(self, target: tuple[str, int]) -> None:
        """Start to connect; raises OSError."""
        self.socket = socket.socket()
        self.socket.setblocking(False)
        if not self.kind.reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        self.socket.bind((self.host, 0))
        self.handshake_done = self.context is None
        self.unsent = self._first_bytes()
        self.drip_position = 0
        self.next_drip_time = self.next_repeat_time = self.connected_time = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            self.socket.connect(target)

    def close(self, reset: bool = False) -> None:
        """Disconnect, optionally with a reset."""
        if self.socket is not None:
            if reset:
                linger = struct.pack("ii", 1, 0)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.socket.close()
            self.socket = None

    def step(self, now: float) -> None:
        """Send and receive what is due; raises OSError when the server disconnects."""
        try:
            if not self.handshake_done:
                self._make_handshake()
            self._send(now)
        except _NOT_YET:
            pass
        if self.kind.reads and self.kind.first:
            with contextlib.suppress(*_NOT_YET):
                self._receive()
        if self.kind.leave_seconds and now >= self.connected_time + self.kind.leave_seconds:
            self.close(reset=True)

    def _first_bytes(self) -> bytes:
        return self.kind.first.replace(b"GUESS", base64.b64encode(b"prom:" + os.urandom(9)))

    def _make_handshake(self) -> None:
        if not isinstance(self.socket, ssl.SSLSocket):
            writable = select.poll()  # select() knows no more than 1024 descriptors
            writable.register(self.socket, select.POLLOUT)
            if not writable.poll(0):
                raise BlockingIOError  # the kernel has not taken the connection yet
            self.socket = self.context.wrap_socket(self.socket, do_handshake_on_connect=False)
        self.socket.do_handshake()
        self.handshake_done = True

    def _send(self, now: float) -> None:
        if not self.unsent and self.kind.repeat_seconds and now >= self.next_repeat_time:
            self.next_repeat_time, self.unsent = now + self.kind.repeat_seconds, self._first_bytes()
        if self.unsent:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        if self.kind.drip and now >= self.next_drip_time:
            self.next_drip_time = now + self.kind.drip_seconds
            self.socket.send(self.kind.drip[self.drip_position : self.drip_position + 1])
            self.drip_position = (self.drip_position + 1) % len(self.kind.drip)

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        self.outcome.received_bytes += len(data)
        if not data:
            raise ConnectionResetError


class Attack:
    """Clients of one kind against one server."""

    def __init__(
        self,
        kind: Kind,
        count: int,
        target: tuple[str, int],
        *,
        tls: bool = False,
        addresses: int = 1,
        pace: int = 5000,
    ) -> None:
        """`pace`: how many clients connect in a second."""
        self.outcome = Outcome()
        self._connections_per_round = round(pace * _ROUND)
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._target = target
        self._clients = [
            Client(kind, f"127.0.0.{2 + number % addresses}", context, self.outcome)
            for number in range(count)
        ]

    def run_round(self) -> None:
        """Let every client do what is due."""
        now = time.monotonic()
        self._connect_missing()
        self._count_dropped()
        for client in self._clients:
            try:
                if client.socket is not None:
                    client.step(now)
            except OSError:
                self.outcome.dropped += 1
                client.close()

    def disconnect_all(self) -> None:
        """Disconnect all clients."""
        for client in self._clients:
            client.close()

    def _connect_missing(self) -> None:
        disconnected = (client for client in self._clients if client.socket is None)
        for client in islice(disconnected, self._connections_per_round):
            try:
                client.connect(self._target)
                self.outcome.connected += 1
            except OSError:
                client.close()

    def _count_dropped(self) -> None:
        """Close dropped connections; clients that never read would not notice."""
        poll = select.poll()
        clients = {}
        for client in self._clients:
            if client.socket is not None:
                clients[client.socket.fileno()] = client
                poll.register(client.socket.fileno(), select.POLLRDHUP)
        for descriptor, _ in poll.poll(0):
            self.outcome.dropped += 1
            clients[descriptor].close()


class Crowd:
    """A running attack; `outcome` is set when it has ended."""

    outcome = Outcome()


@contextlib.contextmanager
def hostile(
    kind: str,
    count: int,
    target: tuple[str, int],
    *,
    tls: bool = False,
    addresses: int = 1,
    pace: int = 5000,
) -> Iterator[Crowd]:
    """Attack a server meanwhile."""
    argv = [sys.executable, "-m", __name__, kind, str(count), f"{target[0]}:{target[1]}"]
    argv += [f"--addresses={addresses}", f"--pace={pace}", *(["--tls"] if tls else [])]
    crowd = Crowd()
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield crowd
        process.stdin.close()
        crowd.outcome = Outcome(**json.loads(process.stdout.readline()))


def main() -> None:
    """Attack, then print what happened as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument("target")
    parser.add_argument("--tls", action="store_true", help="the server speaks TLS")
    parser.add_argument("--addresses", type=int, default=1, help="source addresses")
    parser.add_argument("--pace", type=int, default=5000, help="connections a second")
    options = parser.parse_args()
    host, _, port = options.target.rpartition(":")
    attack = Attack(
        KINDS[options.kind],
        options.count,
        (host, int(port)),
        tls=options.tls,
        addresses=options.addresses,
        pace=options.pace,
    )
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        begin = time.monotonic()
        attack.run_round()
        time.sleep(max(0.0, begin + _ROUND - time.monotonic()))
    attack.disconnect_all()
    print(json.dumps(asdict(attack.outcome)))


if __name__ == "__main__":
    main()

"""Clients that only want to be in the way, by the hundred, in a process of their own.

    python -m tests.security.hostile_clients KIND COUNT HOST:PORT [--tls] [--addresses N] [--pace N]

    with hostile("talking", 300, address, tls=True, addresses=5) as crowd:
        ...                                   # ask the server meanwhile
    crowd.said.dropped                        # what they met with

Each client does what its kind says (`KINDS`), and comes again when it is sent away. They connect
from 127.0.0.2 and the addresses after it. The process ends with its standard input.
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
    drip: bytes = b""  # then this, byte by byte, over and over
    pause: float = 0.0  # seconds between two bytes
    again: float = 0.0  # seconds until `first` is sent again
    reads: bool = True
    leaves: float = 0.0  # seconds until it breaks off and comes again
    encrypts: bool = True  # of a TLS server: makes its handshake first


KINDS = {
    "silent": Kind(encrypts=False),
    "slow": Kind(b"GET /metrics HTTP/1.1\r\n", b"X-A: b\r\n", pause=1.0),
    "talking": Kind(drip=_get("/metrics")[:-4] + b"\r\nX-A: " + b"b" * 8000, pause=0.05),
    "not-reading": Kind(_get("/metrics") * 20, reads=False),
    "pipelining": Kind(_get("/") * 50, again=0.1),
    "scraping": Kind(_get("/metrics"), again=0.05),
    "guessing": Kind(_get("/metrics", "Basic GUESS"), again=0.05),
    "leaving": Kind(_get("/metrics"), leaves=0.05),
    "greeting slowly": Kind(drip=_HELLO, pause=0.05, encrypts=False),
    "knocking": Kind(leaves=0.02),
}


@dataclass
class Said:
    """What happened to all clients together."""

    connected: int = 0
    dropped: int = 0  # by the server
    received_bytes: int = 0


_NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Client:
    """One of them."""

    def __init__(self, kind: Kind, host: str, context: ssl.SSLContext | None, said: Said) -> None:
        self.kind, self.host, self.said = kind, host, said
        self.context = context if kind.encrypts else None
        self.socket: socket.socket | None = None

    def connect(self, target: tuple[str, int]) -> None:
        """Begin; raises OSError."""
        self.socket = socket.socket()
        self.socket.setblocking(False)
        if not self.kind.reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        self.socket.bind((self.host, 0))
        self.encrypted = self.context is None
        self.rest = self._first()
        self.at = 0
        self.due = self.again = self.since = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            self.socket.connect(target)

    def close(self, reset: bool = False) -> None:
        """Leave, with a reset if it is to be rude."""
        if self.socket is not None:
            if reset:
                linger = struct.pack("ii", 1, 0)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.socket.close()
            self.socket = None

    def step(self, now: float) -> None:
        """Do what is due; raises OSError when the server has had enough."""
        try:
            if not self.encrypted:
                self._encrypt()
            self._talk(now)
        except _NOT_YET:
            pass
        if self.kind.reads and self.kind.first:
            with contextlib.suppress(*_NOT_YET):
                self._read()
        if self.kind.leaves and now >= self.since + self.kind.leaves:
            self.close(reset=True)

    def _first(self) -> bytes:
        return self.kind.first.replace(b"GUESS", base64.b64encode(b"prom:" + os.urandom(9)))

    def _encrypt(self) -> None:
        if not isinstance(self.socket, ssl.SSLSocket):
            taken = select.poll()  # select() knows no more than 1024 descriptors
            taken.register(self.socket, select.POLLOUT)
            if not taken.poll(0):
                raise BlockingIOError  # the kernel has not taken the connection yet
            self.socket = self.context.wrap_socket(self.socket, do_handshake_on_connect=False)
        self.socket.do_handshake()
        self.encrypted = True

    def _talk(self, now: float) -> None:
        if not self.rest and self.kind.again and now >= self.again:
            self.again, self.rest = now + self.kind.again, self._first()
        if self.rest:
            self.rest = self.rest[self.socket.send(self.rest) :]
        if self.kind.drip and now >= self.due:
            self.due = now + self.kind.pause
            self.socket.send(self.kind.drip[self.at : self.at + 1])
            self.at = (self.at + 1) % len(self.kind.drip)

    def _read(self) -> None:
        data = self.socket.recv(65536)
        self.said.received_bytes += len(data)
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
        """`pace`: how many of them come (again) in a second."""
        self.said = Said()
        self._coming = round(pace * _ROUND)
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._target = target
        self._clients = [
            Client(kind, f"127.0.0.{2 + number % addresses}", context, self.said)
            for number in range(count)
        ]

    def turn(self) -> None:
        """Every client does what is due."""
        now = time.monotonic()
        self._come()
        self._notice_who_was_dropped()
        for client in self._clients:
            try:
                if client.socket is not None:
                    client.step(now)
            except OSError:
                self.said.dropped += 1
                client.close()

    def end(self) -> None:
        """All leave."""
        for client in self._clients:
            client.close()

    def _come(self) -> None:
        away = (client for client in self._clients if client.socket is None)
        for client in islice(away, self._coming):
            try:
                client.connect(self._target)
                self.said.connected += 1
            except OSError:
                client.close()

    def _notice_who_was_dropped(self) -> None:
        """Those that never read would not."""
        closed = select.poll()
        known = {}
        for client in self._clients:
            if client.socket is not None:
                known[client.socket.fileno()] = client
                closed.register(client.socket.fileno(), select.POLLRDHUP)
        for descriptor, _ in closed.poll(0):
            self.said.dropped += 1
            known[descriptor].close()


class Crowd:
    """A running attack; `said` is there when it is over."""

    said = Said()


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
    """Have them in the way meanwhile."""
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
        crowd.said = Said(**json.loads(process.stdout.readline()))


def main() -> None:
    """Attack, then print what happened as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument("target")
    parser.add_argument("--tls", action="store_true", help="the server speaks TLS")
    parser.add_argument("--addresses", type=int, default=1, help="from which they come")
    parser.add_argument("--pace", type=int, default=5000, help="connections a second")
    given = parser.parse_args()
    host, _, port = given.target.rpartition(":")
    attack = Attack(
        KINDS[given.kind],
        given.count,
        (host, int(port)),
        tls=given.tls,
        addresses=given.addresses,
        pace=given.pace,
    )
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        begin = time.monotonic()
        attack.turn()
        time.sleep(max(0.0, begin + _ROUND - time.monotonic()))
    attack.end()
    print(json.dumps(asdict(attack.said)))


if __name__ == "__main__":
    main()

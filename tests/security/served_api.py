"""The server as a process of its own, with a token for its API."""

import contextlib
import http.client
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.tokens import TokenRole
from tests.helpers.processes import daemon, free_ports
from tests.helpers.waiting import scaled, until


class Process(NamedTuple):
    """The process of the server."""

    pid: int


class ServedApi(NamedTuple):
    """A server, and the token of its user."""

    target: Process
    address: tuple[str, int]
    token: str
    context: None = None

    def scrape(self, source: str = "127.0.0.1") -> tuple[int, float]:
        """Status and seconds of one request over a connection of its own, from an address."""
        begin = time.monotonic()
        client = http.client.HTTPConnection(
            *self.address, timeout=scaled(10.0), source_address=(source, 0)
        )
        with contextlib.closing(client):
            client.request("GET", "/api/v1/me", headers={"Authorization": f"Bearer {self.token}"})
            answer = client.getresponse()
            answer.read()
        return answer.status, time.monotonic() - begin


@contextlib.contextmanager
def served_api(folder: Path) -> Iterator[ServedApi]:
    """Run a server on loopback, with an empty database."""
    (port,) = free_ports(1)
    url = f"sqlite:///{folder}/jobs.db"
    engine = writer_engine(parse_url(url), create=True)
    migrate(engine)
    with engine.begin() as db:
        now = int(time.time())
        token = tokens.create(db, "alice", TokenRole.USER, "attack", now)
    engine.dispose()
    # As for clients on other machines: by default, /metrics is open on loopback.
    flags = ["--web.metrics-from=192.0.2.1/32"]
    flags += [f"--web.allowed-host={name}" for name in ("n", "127.0.0.1")]
    argv = [sys.executable, "-m", "batchjob_stats_server", f"--db.url={url}", *flags,
            f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with daemon(argv, folder / "log") as process:
        api = ServedApi(Process(process.pid), ("127.0.0.1", port), token)
        until(lambda: _answers(api), "the server", 60)
        yield api


def _answers(api: ServedApi) -> bool:
    try:
        return api.scrape()[0] == 200
    except OSError:
        return False

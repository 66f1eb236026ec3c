"""Two servers on one PostgreSQL behind nginx, with the file that docs/guide/large_site.md shows."""

import contextlib
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import pytest

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import writer_engine
from tests.batchjob_stats_db import postgresql_server
from tests.e2e import nginx
from tests.e2e.exporter import parse
from tests.e2e.processes import call, daemon, free_ports, until

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[2] / "docs/guide/large_site.md").read_text()


class Servers(NamedTuple):
    """Both, and the proxy before them."""

    front: int
    ports: tuple[int, int]
    processes: tuple[Popen[bytes], Popen[bytes]]
    token: str
    """Of alice, made beside the servers."""

    def status(self, path: str, port: int = 0, token: str = "") -> int:
        """How the proxy answers, or the server at a port."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        url = f"http://127.0.0.1:{port or self.front}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30):
                return 200
        except urllib.error.HTTPError as error:
            return error.code

    def answered(self, port: int) -> float:
        """How many questions of the API that server has answered."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            found = parse(answer.read().decode(), 0)
        return found.total("batchjob_stats_server_requests_total", route="/api/v1/me")


def blocks(front: int, ports: tuple[int, int]) -> str:
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    for old, new in (
        ("stats1.example.org:10912", f"127.0.0.1:{ports[0]}"),
        ("stats2.example.org:10912", f"127.0.0.1:{ports[1]}"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{front};"),
        ("ssl_certificate /etc/ssl/stats.pem;", ""),
        ("ssl_certificate_key /etc/ssl/stats.key;", ""),
    ):
        assert old in block, old
        block = block.replace(old, new)
    return block


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    if why_not := nginx.missing():
        pytest.skip(why_not)
    if postgresql_server.program_directory() is None:
        pytest.skip("no PostgreSQL server is installed")
    front, *ports = free_ports(3)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgresql_server.running(Path("/tmp"), "fsync=off"))
        url = database.database("batchjob")
        engine = writer_engine(url)
        migrate(engine)
        engine.dispose()
        started = []
        for port in ports:
            config = tmp_path / f"{port}.yml"
            config.write_text(json.dumps({
                "db": {"url": url.render_as_string()},
                "web": {"listen-address": f"127.0.0.1:{port}", "allowed-host": ["127.0.0.1"]},
            }))  # fmt: skip
            argv = [sys.executable, "-m", "batchjob_stats_server", f"--config.file={config}"]
            started.append(
                stack.enter_context(daemon(argv, tmp_path / f"{port}.log", {**os.environ}))
            )
        token = call(*argv, "token", "alice").strip()
        stack.enter_context(nginx.running(tmp_path, blocks(front, (ports[0], ports[1]))))
        made = Servers(front, (ports[0], ports[1]), (started[0], started[1]), token)
        for port in (*ports, front):
            until(lambda port=port: _is_up(made, port), f"port {port}: {tmp_path}", 120, 0.5)
        yield made


def _is_up(servers: Servers, port: int) -> bool:
    with contextlib.suppress(OSError):
        return servers.status("/api/v1/me", port) == 200
    return False


def test_a_token_is_good_at_each_server_and_one_may_go(servers: Servers) -> None:
    before = [servers.answered(port) for port in servers.ports]
    assert [servers.status("/api/v1/me") for _ in range(10)] == [200] * 10
    assert all(
        servers.answered(port) > count for port, count in zip(servers.ports, before, strict=True)
    )
    assert servers.status("/api/v1/me", token="nonsense") == 401
    servers.processes[0].kill()
    servers.processes[0].wait()
    assert [servers.status("/api/v1/me") for _ in range(10)] == [200] * 10

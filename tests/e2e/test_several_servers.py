"""Two servers on one PostgreSQL behind nginx, configured as docs/guide/large_site.md shows."""

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
from tests.helpers.processes import call, daemon, free_ports
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.e2e

LARGE_SITE_GUIDE = (Path(__file__).parents[2] / "docs/guide/large_site.md").read_text()


class Servers(NamedTuple):
    """Both servers, and the proxy in front of them."""

    proxy_port: int
    server_ports: tuple[int, int]
    server_processes: tuple[Popen[bytes], Popen[bytes]]
    token: str
    """A token of alice, created with the command line."""

    def status(self, path: str, port: int = 0, token: str = "") -> int:
        """Status of a response of the proxy, or of the server at `port`."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        url = f"http://127.0.0.1:{port or self.proxy_port}{path}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=scaled(30)
            ):
                return 200
        except urllib.error.HTTPError as error:
            return error.code

    def answered_requests(self, port: int) -> float:
        """How many API requests a server has answered."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/metrics", timeout=scaled(30)
        ) as response:
            metrics = parse(response.read().decode(), 0)
        return metrics.total("batchjob_stats_server_requests_total", route="/api/v1/me")


def nginx_configuration(proxy_port: int, server_ports: tuple[int, int]) -> str:
    (block,) = re.findall(r"```nginx\n(.*?)```", LARGE_SITE_GUIDE, re.DOTALL)
    for old, new in (
        ("stats1.example.org:10912", f"127.0.0.1:{server_ports[0]}"),
        ("stats2.example.org:10912", f"127.0.0.1:{server_ports[1]}"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{proxy_port};"),
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
    proxy_port, *server_ports = free_ports(3)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgresql_server.running(Path("/tmp"), "fsync=off"))
        url = database.database("batchjob")
        engine = writer_engine(url)
        migrate(engine)
        engine.dispose()
        server_processes = []
        for port in server_ports:
            config = tmp_path / f"{port}.yml"
            config.write_text(json.dumps({
                "db": {"url": url.render_as_string()},
                "web": {"listen-address": f"127.0.0.1:{port}", "allowed-host": ["127.0.0.1"]},
            }))  # fmt: skip
            argv = [sys.executable, "-m", "batchjob_stats_server", f"--config.file={config}"]
            server_processes.append(
                stack.enter_context(daemon(argv, tmp_path / f"{port}.log", {**os.environ}))
            )
        token = call(*argv, "token", "alice").strip()
        stack.enter_context(
            nginx.running(
                tmp_path, nginx_configuration(proxy_port, (server_ports[0], server_ports[1]))
            )
        )
        running_servers = Servers(
            proxy_port,
            (server_ports[0], server_ports[1]),
            (server_processes[0], server_processes[1]),
            token,
        )
        for port in (*server_ports, proxy_port):
            until(
                lambda port=port: _responds(running_servers, port),
                f"port {port}: {tmp_path}",
                120,
                0.5,
            )
        yield running_servers


def _responds(servers: Servers, port: int) -> bool:
    with contextlib.suppress(OSError):
        return servers.status("/api/v1/me", port) == 200
    return False


def test_token_is_valid_on_both_servers_and_one_may_fail(servers: Servers) -> None:
    before = [servers.answered_requests(port) for port in servers.server_ports]
    assert [servers.status("/api/v1/me") for _ in range(10)] == [200] * 10
    assert all(
        servers.answered_requests(port) > count
        for port, count in zip(servers.server_ports, before, strict=True)
    )
    assert servers.status("/api/v1/me", token="nonsense") == 401
    servers.server_processes[0].kill()
    servers.server_processes[0].wait()
    assert [servers.status("/api/v1/me") for _ in range(10)] == [200] * 10

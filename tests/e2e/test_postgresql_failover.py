"""The primary of PostgreSQL dies while jobs come in, and its standby takes over."""

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, reader_engine
from tests.e2e.processes import daemon, free_ports, until

pytestmark = pytest.mark.e2e

JOBS = 2000


class Servers(NamedTuple):
    """Two PostgreSQL servers on loopback, of which the second follows the first."""

    home: Path
    programs: Path
    primary: int
    standby: int
    identity: dict[str, Any]
    """Whom they run as: PostgreSQL refuses to run as root."""

    @property
    def url(self) -> str:
        hosts = "&".join(f"host=127.0.0.1:{port}" for port in (self.primary, self.standby))
        return (
            f"postgresql://test@/batchjob?{hosts}&target_session_attrs=read-write&connect_timeout=2"
        )

    def run(self, program: str, *arguments: str) -> str:
        return subprocess.run(
            [self.programs / program, *arguments], check=True, text=True, cwd=self.home,
            capture_output=True, **self.identity,
        ).stdout  # fmt: skip

    @contextlib.contextmanager
    def server(self, data: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
        argv = [str(self.programs / "postgres"), "-D", str(self.home / data), "-p", str(port)]
        if self.identity:
            argv = ["setpriv", f"--reuid={self.identity['user']}",
                    f"--regid={self.identity['group']}", "--clear-groups", *argv]  # fmt: skip
        with daemon(argv, self.home / f"{data}.log") as process:
            until(lambda: self.answers(port), f"postgres {data}", timeout=60)
            yield process

    def answers(self, port: int) -> bool:
        try:
            self.run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port), "-U", "test")
        except subprocess.CalledProcessError:
            return False
        return True


@pytest.fixture
def servers() -> Iterator[Servers]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup"))
    if not found:
        pytest.skip("no PostgreSQL server is installed")
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    home = Path(tempfile.mkdtemp(prefix="bj-failover-", dir="/tmp"))
    if identity:
        os.chown(home, identity["user"], identity["group"])
    try:
        made = Servers(home, found[-1].parent, *free_ports(2), identity)
        made.run("initdb", "-D", "primary", "-U", "test", "-A", "trust", "-N", "-EUTF8")
        with (home / "primary/postgresql.conf").open("a") as file:
            file.write(f"listen_addresses='127.0.0.1'\nunix_socket_directories='{home}'\n")
        yield made
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_poller_and_server_go_on_with_the_standby(servers: Servers, tmp_path: Path) -> None:
    port, web = free_ports(2)
    jobs = tmp_path / "jobs.jsonl"
    jobs.touch()
    config = tmp_path / "poller.yml"
    config.write_text(json.dumps({
        "db": {"url": servers.url},
        "poll": {"interval": "200ms", "longest-pause": "1s"},
        "web": {"listen-address": f"127.0.0.1:{port}"},
        "clusters": [{"name": "c1", "sources": {"jsonl": {"path": str(jobs)}}}],
    }))  # fmt: skip
    poller = [sys.executable, "-m", "batchjob_stats_db", "--config.file", str(config)]
    server = [sys.executable, "-m", "batchjob_stats_server", f"--db.url={servers.url}"]
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(servers.server("primary", servers.primary))
        servers.run(
            "createdb", "-h", "127.0.0.1", "-p", str(servers.primary), "-U", "test", "batchjob"
        )
        servers.run(
            "pg_basebackup", "-D", "standby", "-R", "-X", "stream", "-h", "127.0.0.1",
            "-p", str(servers.primary), "-U", "test",
        )  # fmt: skip
        stack.enter_context(servers.server("standby", servers.standby))
        subprocess.run([*poller, "migrate"], check=True, capture_output=True)
        token = subprocess.run(
            [*server, "token", "alice", "--role", "viewer"], check=True, capture_output=True,
            text=True,
        ).stdout.strip()  # fmt: skip
        stack.enter_context(daemon(poller, tmp_path / "poller.log"))
        argv = [*server, f"--web.listen-address=127.0.0.1:{web}"]
        stack.enter_context(daemon(argv, tmp_path / "server.log"))
        until(lambda: status(web, token, "jobs") == 200, "the server", timeout=120)
        write(jobs, 0, JOBS // 2)
        until(lambda: count(servers) > JOBS // 8, "the first jobs", timeout=120)
        primary.kill()  # with transactions that the standby may not have
        primary.wait()
        write(jobs, JOBS // 2, JOBS // 2 + JOBS // 4)
        servers.run("pg_ctl", "promote", "-D", "standby")
        write(jobs, JOBS // 2 + JOBS // 4, JOBS)
        until(lambda: count(servers) == JOBS, "all jobs", timeout=180)
        time.sleep(1)
        last = f"jobs/{JOBS - 1}"
        until(lambda: status(web, token, last) == 200, "the server's answer", timeout=60)
        engine = reader_engine(parse_url(servers.url))
        with engine.connect() as db:
            job = schema.job.c
            query = sa.select(sa.func.count(), sa.func.count(sa.distinct(job.jobid)))
            assert tuple(db.execute(query).one()) == (JOBS, JOBS)
            states = db.execute(sa.select(job.state).distinct()).scalars().all()
            assert states == ["COMPLETED"]
        engine.dispose()


def write(path: Path, begin: int, end: int) -> None:
    """Jobs come in by and by."""
    now = int(time.time())
    for number in range(begin, end):
        times = f'"submit_time": {now - 600}, "start_time": {now - 500}, "end_time": {now - 100}'
        with path.open("a") as file:
            file.write(f'{{"jobid": "{number}", {times}, "state": "COMPLETED", "user": "bob"}}\n')
        time.sleep(0.002)


def count(servers: Servers) -> int:
    engine = reader_engine(parse_url(servers.url))
    try:
        with engine.connect() as db:
            return int(db.execute(sa.select(sa.func.count()).select_from(schema.job)).scalar_one())
    except sa.exc.OperationalError:
        return 0
    finally:
        engine.dispose()


def status(port: int, token: str, path: str) -> int:
    """How the server answers; 0: not at all."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/{path}", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0

"""The PostgreSQL primary dies while jobs are stored, and its standby takes over."""

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
from tests.helpers.processes import daemon, free_ports
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.e2e

JOB_COUNT = 2000


class Servers(NamedTuple):
    """Two PostgreSQL servers on loopback; the second is the standby of the first."""

    home: Path
    program_directory: Path
    primary_port: int
    standby_port: int
    run_as: dict[str, Any]
    """Arguments of subprocess.run for the user: PostgreSQL refuses to run as root."""

    @property
    def url(self) -> str:
        hosts = "&".join(
            f"host=127.0.0.1:{port}" for port in (self.primary_port, self.standby_port)
        )
        return (
            f"postgresql://test@/batchjob?{hosts}&target_session_attrs=read-write&connect_timeout=2"
        )

    def run(self, program: str, *arguments: str) -> str:
        return subprocess.run(
            [self.program_directory / program, *arguments], check=True, text=True, cwd=self.home,
            capture_output=True, **self.run_as,
        ).stdout  # fmt: skip

    @contextlib.contextmanager
    def run_server(self, data: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
        program = str(self.program_directory / "postgres")
        argv = [program, "-D", str(self.home / data), "-p", str(port)]
        if self.run_as:
            argv = ["setpriv", f"--reuid={self.run_as['user']}",
                    f"--regid={self.run_as['group']}", "--clear-groups", *argv]  # fmt: skip
        with daemon(argv, self.home / f"{data}.log") as process:
            until(lambda: self.accepts_connections(port), f"postgres {data}", timeout=60)
            yield process

    def accepts_connections(self, port: int) -> bool:
        try:
            self.run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port), "-U", "test")
        except subprocess.CalledProcessError:
            return False
        return True


@pytest.fixture
def servers() -> Iterator[Servers]:
    basebackup_programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup"))
    if not basebackup_programs:
        pytest.skip("no PostgreSQL server is installed")
    run_as: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        run_as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    home = Path(tempfile.mkdtemp(prefix="bj-failover-", dir="/tmp"))
    if run_as:
        os.chown(home, run_as["user"], run_as["group"])
    try:
        postgresql_servers = Servers(home, basebackup_programs[-1].parent, *free_ports(2), run_as)
        postgresql_servers.run(
            "initdb", "-D", "primary", "-U", "test", "-A", "trust", "-N", "-EUTF8"
        )
        with (home / "primary/postgresql.conf").open("a") as file:
            file.write(f"listen_addresses='127.0.0.1'\nunix_socket_directories='{home}'\n")
        yield postgresql_servers
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_poller_and_server_fail_over_to_standby(servers: Servers, tmp_path: Path) -> None:
    poller_port, server_port = free_ports(2)
    jobs_file = tmp_path / "jobs.jsonl"
    jobs_file.touch()
    config = tmp_path / "poller.yml"
    config.write_text(json.dumps({
        "db": {"url": servers.url},
        "poll": {"interval": "200ms", "longest-pause": "1s"},
        "web": {"listen-address": f"127.0.0.1:{poller_port}"},
        "clusters": [{"name": "c1", "sources": {"jsonl": {"path": str(jobs_file)}}}],
    }))  # fmt: skip
    poller_command = [sys.executable, "-m", "batchjob_stats_db", "--config.file", str(config)]
    server_command = [sys.executable, "-m", "batchjob_stats_server", f"--db.url={servers.url}"]
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(servers.run_server("primary", servers.primary_port))
        servers.run(
            "createdb", "-h", "127.0.0.1", "-p", str(servers.primary_port), "-U", "test", "batchjob"
        )
        servers.run(
            "pg_basebackup", "-D", "standby", "-R", "-X", "stream", "-h", "127.0.0.1",
            "-p", str(servers.primary_port), "-U", "test",
        )  # fmt: skip
        stack.enter_context(servers.run_server("standby", servers.standby_port))
        subprocess.run([*poller_command, "migrate"], check=True, capture_output=True)
        token = subprocess.run(
            [*server_command, "token", "alice", "--role", "viewer"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        stack.enter_context(daemon(poller_command, tmp_path / "poller.log"))
        argv = [*server_command, f"--web.listen-address=127.0.0.1:{server_port}"]
        stack.enter_context(daemon(argv, tmp_path / "server.log"))
        until(lambda: response_status(server_port, token, "jobs") == 200, "the server", timeout=120)
        append_jobs(jobs_file, 0, JOB_COUNT // 2)
        until(lambda: count_stored_jobs(servers) > JOB_COUNT // 8, "the first jobs", timeout=120)
        primary.kill()  # the standby may lack the last transactions
        primary.wait()
        append_jobs(jobs_file, JOB_COUNT // 2, JOB_COUNT // 2 + JOB_COUNT // 4)
        servers.run("pg_ctl", "promote", "-D", "standby")
        append_jobs(jobs_file, JOB_COUNT // 2 + JOB_COUNT // 4, JOB_COUNT)
        until(lambda: count_stored_jobs(servers) == JOB_COUNT, "all jobs", timeout=180)
        time.sleep(1)
        last_job_path = f"jobs/{JOB_COUNT - 1}"
        until(
            lambda: response_status(server_port, token, last_job_path) == 200,
            "the server's answer",
            timeout=60,
        )
        engine = reader_engine(parse_url(servers.url))
        with engine.connect() as db:
            job = schema.job.c
            query = sa.select(sa.func.count(), sa.func.count(sa.distinct(job.jobid)))
            assert tuple(db.execute(query).one()) == (JOB_COUNT, JOB_COUNT)
            states = db.execute(sa.select(job.state).distinct()).scalars().all()
            assert states == ["COMPLETED"]
        engine.dispose()


def append_jobs(path: Path, first: int, end: int) -> None:
    """Append jobs one at a time, as a scheduler would."""
    now = int(time.time())
    for number in range(first, end):
        times = f'"submit_time": {now - 600}, "start_time": {now - 500}, "end_time": {now - 100}'
        with path.open("a") as file:
            file.write(f'{{"jobid": "{number}", {times}, "state": "COMPLETED", "user": "bob"}}\n')
        time.sleep(0.002)


def count_stored_jobs(servers: Servers) -> int:
    engine = reader_engine(parse_url(servers.url))
    try:
        with engine.connect() as db:
            return int(db.execute(sa.select(sa.func.count()).select_from(schema.job)).scalar_one())
    except sa.exc.OperationalError:
        return 0
    finally:
        engine.dispose()


def response_status(port: int, token: str, path: str) -> int:
    """Status of the server's response; 0 without a response."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/{path}", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=scaled(10)) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0

"""A temporary PostgreSQL server on a socket in a temporary directory."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import URL

from batchjob_stats_db.database.engine import parse_url
from tests.helpers.processes import end
from tests.helpers.waiting import scaled


class RunningPostgresql(NamedTuple):
    """Its URL, and the process whose children serve connections."""

    base: URL
    """The URL of the database `postgres`, for statements such as CREATE DATABASE."""
    pid: int

    def database(self, name: str) -> URL:
        """The URL of a new, empty database."""
        run(self.base, f"CREATE DATABASE {name}")
        return self.base.set(database=name)


def program_directory() -> Path | None:
    """The directory of the PostgreSQL programs, or None if it is not installed."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if candidates:
        return candidates[-1].parent
    return Path(on_path).parent if on_path else None


@contextlib.contextmanager
def running(folder: Path, *settings: str) -> Iterator[RunningPostgresql]:
    """Run a server in a directory below `folder`, with settings such as `fsync=off`."""
    programs = program_directory()
    assert programs, "no PostgreSQL server is installed"
    process_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = _first_existing_user("postgres", "nobody")
        process_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    home = Path(tempfile.mkdtemp(prefix="bj-pg-", dir=folder))
    if process_user:
        os.chown(home, process_user["user"], process_user["group"])
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(home)}
    initdb = [programs / "initdb", "-D", home / "data", "-U", "test", "-A", "trust", "-N", "-EUTF8"]
    subprocess.run(
        initdb, check=True, capture_output=True, env=environment, cwd=home, **process_user
    )
    given = ("listen_addresses=", f"unix_socket_directories={home}", *settings)
    argv = [programs / "postgres", "-D", home / "data", *(f"-c{each}" for each in given)]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            argv, stdout=log, stderr=log, env=environment, cwd=home, **process_user
        )
    try:
        base = parse_url(f"postgresql://test@/postgres?host={home}")
        _wait_until_ready(base, server, home / "log")
        yield RunningPostgresql(base, server.pid)
    finally:
        end(server)
        shutil.rmtree(home, ignore_errors=True)


def run(url: URL, statement: str) -> None:
    """Run one statement outside of a transaction."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with engine.connect() as db:
        db.execute(sa.text(statement))


def _first_existing_user(*names: str) -> pwd.struct_passwd:
    for name in names:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise LookupError(names)


def _wait_until_ready(url: URL, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + scaled(20)
    while True:
        try:
            run(url, "SELECT 1")
            return
        except sa.exc.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

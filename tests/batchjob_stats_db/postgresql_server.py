"""A PostgreSQL of its own: on a socket in a directory of its own, gone at the end."""

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


class RunningPostgresql(NamedTuple):
    """Where it answers, and the process whose children serve."""

    base: URL
    """Of the database that each server has, for statements such as CREATE DATABASE."""
    pid: int

    def database(self, name: str) -> URL:
        """The URL of a new, empty database."""
        run(self.base, f"CREATE DATABASE {name}")
        return self.base.set(database=name)


def programs() -> Path | None:
    """The directory of its programs, if it is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(on_path).parent if on_path else None


@contextlib.contextmanager
def running(folder: Path, *settings: str) -> Iterator[RunningPostgresql]:
    """Start one; `folder` holds its directory, settings are such as `fsync=off`."""
    found = programs()
    assert found, "no PostgreSQL server is installed"
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = _somebody("postgres", "nobody")
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    home = Path(tempfile.mkdtemp(prefix="bj-pg-", dir=folder))
    if identity:
        os.chown(home, identity["user"], identity["group"])
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(home)}
    initdb = [found / "initdb", "-D", home / "data", "-U", "test", "-A", "trust", "-N", "-EUTF8"]
    subprocess.run(initdb, check=True, capture_output=True, env=environment, cwd=home, **identity)
    given = ("listen_addresses=", f"unix_socket_directories={home}", *settings)
    argv = [found / "postgres", "-D", home / "data", *(f"-c{each}" for each in given)]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            argv, stdout=log, stderr=log, env=environment, cwd=home, **identity
        )
    try:
        base = parse_url(f"postgresql://test@/postgres?host={home}")
        _wait_for(base, server, home / "log")
        yield RunningPostgresql(base, server.pid)
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(home, ignore_errors=True)


def run(url: URL, statement: str) -> None:
    """Run one statement outside of a transaction."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with engine.connect() as db:
        db.execute(sa.text(statement))


def _somebody(*names: str) -> pwd.struct_passwd:
    for name in names:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise LookupError(names)


def _wait_for(url: URL, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            run(url, "SELECT 1")
            return
        except sa.exc.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

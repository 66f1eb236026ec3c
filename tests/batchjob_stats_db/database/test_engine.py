"""Opening databases: URLs, file systems, permissions, locks and schema revisions."""

import os
import socket
import subprocess
import sys

import pytest
import sqlalchemy as sa

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import filesystem, revision, schema
from batchjob_stats_db.database.engine import (
    DatabaseError,
    parse_url,
    reader_engine,
    writer_engine,
    writer_lock,
)

MOUNTS = """\
22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 0:41 / /home/local rw - xfs /dev/sdb rw
32 22 0:42 / /lustre/a\\040b rw shared:3 - lustre 10.0.0.1@tcp:/fs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/batchjob/jobs.db", "ext4"),
        ("/home/alice/jobs.db", "nfs4"),
        ("/home/local/jobs.db", "xfs"),
        ("/homes/jobs.db", "ext4"),
        ("/lustre/a b/jobs.db", "lustre"),
    ],
)
def test_file_system_type(tmp_path, path, kind):
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert filesystem.filesystem_type(path, str(tmp_path / "mountinfo")) == kind


def test_sqlite_on_a_network_file_system_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("batchjob_stats_db.database.engine.filesystem_type", lambda _: "lustre")
    with pytest.raises(DatabaseError, match="on lustre, where SQLite's locks"):
        writer_engine(parse_url(f"sqlite:///{tmp_path}/jobs.db"), create=True)


def test_link_to_a_network_file_system_is_refused(monkeypatch, tmp_path):
    (tmp_path / "lustre").mkdir()
    (tmp_path / "lustre/jobs.db").touch()
    (tmp_path / "jobs.db").symlink_to(tmp_path / "lustre/jobs.db")
    monkeypatch.setattr(
        "batchjob_stats_db.database.engine.filesystem_type",
        lambda path: "lustre" if path == f"{tmp_path}/lustre" else "ext4",
    )
    with pytest.raises(DatabaseError, match="on lustre, where SQLite's locks"):
        writer_engine(parse_url(f"sqlite:///{tmp_path}/jobs.db"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("jobs.db", "expected sqlite:///PATH or postgresql"),
        ("mysql://host/db", "not mysql"),
        ("sqlite://", "expected the path of a file"),
    ],
)
def test_invalid_url_is_reported_in_one_line(url, message):
    with pytest.raises(DatabaseError, match=message) as caught:
        parse_url(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_new_database_is_not_readable_by_others(tmp_path, umask):
    """Nor its -wal and -shm."""
    before = os.umask(umask)
    try:
        engine = writer_engine(parse_url(f"sqlite:///{tmp_path}/jobs.db"), create=True)
        migrate(engine)
        with engine.begin() as db:
            db.execute(sa.insert(schema.cluster).values(name="c", first_time=1))
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        engine.dispose()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["jobs.db", "jobs.db-wal", "jobs.db-shm"], 0o600)


def test_password_is_read_from_a_file(tmp_path):
    (tmp_path / "secret").write_text("s3cret\n")
    (tmp_path / "secret").chmod(0o600)
    url = parse_url("postgresql://batchjob@db/jobs", str(tmp_path / "secret"))
    assert (url.drivername, url.password) == ("postgresql+psycopg", "s3cret")
    assert "s3cret" not in str(url)
    with pytest.raises(DatabaseError, match="No such file"):
        parse_url("postgresql://batchjob@db/jobs", str(tmp_path / "none"))


def test_reader_cannot_write(url, store, job):
    engine = reader_engine(url)
    with pytest.raises(sa.exc.DBAPIError), engine.begin() as db:
        db.execute(sa.insert(schema.cluster).values(name="c9", first_time=0))
    with engine.connect() as db:
        assert db.execute(sa.select(schema.cluster)).all() == []
    engine.dispose()


def test_statement_timeout(url):
    engine = reader_engine(url, statement_seconds=0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) "
    with engine.connect() as db:
        with pytest.raises(sa.exc.OperationalError):
            db.execute(sa.text(endless + "SELECT max(i) FROM n"))
        db.rollback()
        assert db.execute(sa.text("SELECT 1")).scalar() == 1
    engine.dispose()


def test_sqlite_has_one_writer(tmp_path):
    url = parse_url(f"sqlite:///{tmp_path}/jobs.db")
    is_refused = pytest.raises(
        DatabaseError, match=f"process {os.getpid()} is already writing to it"
    )
    with writer_lock(url), is_refused, writer_lock(url):
        pass
    program = (
        "import os, signal, sys\n"
        "from batchjob_stats_db.database.engine import writer_lock, parse_url\n"
        "with writer_lock(parse_url(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(url)], check=False)
    with writer_lock(url):
        pass  # a killed writer leaves no lock


def test_only_migrate_changes_the_schema(empty_url):
    engine = writer_engine(empty_url, create=True)
    with pytest.raises(DatabaseError, match="is empty; run `batchjob_stats_db migrate`"):
        revision.require_current(engine)
    assert migrate(engine) == ("", schema.REVISION)
    assert migrate(engine) == (schema.REVISION, schema.REVISION)
    revision.require_current(engine)
    with engine.begin() as db:
        db.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    with pytest.raises(DatabaseError, match="has schema 0000, expected"):
        revision.require_current(engine)
    with engine.begin() as db:
        db.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for operation in (revision.require_current, migrate):
        with pytest.raises(DatabaseError, match="of a newer version"):
            operation(engine)
    engine.dispose()


def test_missing_database_is_not_created(tmp_path):
    url = parse_url(f"sqlite:///{tmp_path}/none.db")
    for open_engine in (writer_engine, reader_engine):
        with pytest.raises(DatabaseError, match="no such database"):
            open_engine(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_reader_of_a_read_write_url_is_still_read_only(url):
    read_write_url = url.update_query_dict({"target_session_attrs": "read-write"})
    engine = reader_engine(read_write_url)
    with engine.connect() as db:
        assert db.execute(sa.text("SELECT 1")).scalar() == 1
        with pytest.raises(sa.exc.InternalError, match="read-only transaction"):
            db.execute(sa.text("DELETE FROM job"))
    engine.dispose()


def test_statement_that_is_never_answered_ends_by_itself(postgresql):
    """A server that is stopped keeps no `statement_timeout`, and TCP sees a living host."""
    engine = writer_engine(postgresql, answer_seconds=0.3)
    with engine.connect() as db:
        with pytest.raises(sa.exc.OperationalError, match="has not answered") as caught:
            db.execute(sa.text("SELECT pg_sleep(5)"))
        assert caught.value.connection_invalidated
    with engine.connect() as db:
        assert db.execute(sa.text("SELECT 1")).scalar() == 1
    engine.dispose()


def test_connection_to_a_silent_server_ends_by_itself(monkeypatch):
    monkeypatch.setattr("batchjob_stats_db.database.engine._CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = parse_url(f"postgresql://x@127.0.0.1:{listener.getsockname()[1]}/x")
        with pytest.raises(sa.exc.OperationalError, match="timeout"):
            reader_engine(url).connect()

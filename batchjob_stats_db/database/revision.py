"""The schema revision of a database, and messages for one that cannot be used.

`migrate` changes the revision; all other programs require theirs.

Separate from migrate.py, since importing Alembic costs 49 MB that a poller does not need.
"""

import errno
import glob
import os
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import DatabaseError, DatabaseUnavailableError


def read_revision(connection: Connection) -> str:
    """The revision of the tables, "" if there are none yet."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return str(
        connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() or ""
    )


def newer_version_error(revision: str, where: str) -> DatabaseError:
    return DatabaseError(
        f"{where}: has schema {revision} of a newer version; this version supports "
        f"{schema.REVISION}; upgrade this program, or restore a backup that it "
        "made; `batchjob_stats_db check` verifies the database"
    )


def read_own_revision(engine: Engine) -> str:
    """The revision, "" for an empty database; DatabaseError if it is damaged or not batchjob's."""
    try:
        with engine.connect() as connection:
            revision = read_revision(connection)
            if not revision:
                reject_foreign_tables(connection, engine.url)
    except sa.exc.DBAPIError as error:
        raise unusable_error(engine.url, error) from error
    return revision


def require_current(engine: Engine) -> None:
    """Raise DatabaseError, with what to do about it, unless the schema is current."""
    where, revision = database_name(engine.url), read_own_revision(engine)
    if revision == schema.REVISION:
        return
    if not revision:
        raise DatabaseError(f"{where}: the database is empty; run `batchjob_stats_db migrate`")
    if revision > schema.REVISION:
        raise newer_version_error(revision, where)
    raise DatabaseError(
        f"{where}: the database has schema {revision}, expected {schema.REVISION}; "
        "run `batchjob_stats_db migrate` (it takes a backup first)"
    )


_DAMAGE_MESSAGES = ("not a database", "malformed", "disk image")
_TABLES_NAMED = 3


def unusable_error(url: URL, error: sa.exc.DBAPIError) -> DatabaseError:
    message = " ".join(str(error.orig).split()) or type(error.orig).__name__
    database = database_name(url)
    if any(each in message for each in _DAMAGE_MESSAGES):
        return DatabaseError(f"{database}: {message}; {_recovery_hint(url)}")
    if isinstance(error, sa.exc.OperationalError):
        return DatabaseUnavailableError(
            f"{database}: cannot be used: {_open_failure_reason(url) or message}"
        )
    return DatabaseError(f"{database}: {message}")


def database_name(url: URL) -> str:
    """The file of an SQLite database, or the address without a password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "the database"
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _open_failure_reason(url: URL) -> str:
    """Why SQLite could not open its file, which its message does not say; "" if unknown.

    The file is not opened: closing it would release the locks of this process's connections.
    """
    path = url.database if url.get_backend_name() == "sqlite" else None
    if path is None or not os.path.exists(path):
        return ""
    if os.path.isdir(path):
        return os.strerror(errno.EISDIR)
    return "" if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def _recovery_hint(url: URL) -> str:
    path = url.database or ""
    backups = map(Path, glob.glob(f"{glob.escape(path)}.before-*"))
    newest = max(backups, key=lambda copy: copy.stat().st_mtime, default="the newest one")
    return (
        f"run `batchjob_stats_db --db.url=sqlite:///{path} check`; to restore a backup, replace "
        f"the file by {newest}, and delete its -wal and -shm"
    )


def reject_foreign_tables(db: Connection, url: URL) -> None:
    """Raise DatabaseError for an SQLite file with tables of another program."""
    if url.get_backend_name() != "sqlite":
        return  # a PostgreSQL database may be shared with other programs
    tables = sorted(sa.inspect(db).get_table_names())
    if tables:
        some = ", ".join(tables[:_TABLES_NAMED]) + (", ..." if len(tables) > _TABLES_NAMED else "")
        raise DatabaseError(
            f"{database_name(url)}: belongs to another program (tables {some}); expected a "
            "database of batchjob, or a file that does not exist yet"
        )

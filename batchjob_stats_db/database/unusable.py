"""Error messages for a database that cannot be used: which file, what is wrong, and what helps."""

import errno
import glob
import os
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from batchjob_stats_db.database.engine import DatabaseError, DatabaseUnavailableError

_DAMAGED = ("not a database", "malformed", "disk image")
_FEW = 3


def unusable(url: URL, error: sa.exc.DBAPIError) -> DatabaseError:
    """The message for a database's error, in one line."""
    words = " ".join(str(error.orig).split()) or type(error.orig).__name__
    where = named(url)
    if any(each in words for each in _DAMAGED):
        return DatabaseError(f"{where}: {words}; {_help(url)}")
    if isinstance(error, sa.exc.OperationalError):
        return DatabaseUnavailableError(f"{where}: cannot be used: {_refusal(url) or words}")
    return DatabaseError(f"{where}: {words}")


def named(url: URL) -> str:
    """The file of an SQLite database, or the address without a password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "the database"
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _refusal(url: URL) -> str:
    """Why SQLite could not open its file, which it does not say itself; "" if unknown.

    The file is not opened: closing it would release the locks of this process's connections.
    """
    path = url.database if url.get_backend_name() == "sqlite" else None
    if path is None or not os.path.exists(path):
        return ""
    if os.path.isdir(path):
        return os.strerror(errno.EISDIR)
    return "" if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def _help(url: URL) -> str:
    path = url.database or ""
    copies = map(Path, glob.glob(f"{glob.escape(path)}.before-*"))
    newest = max(copies, key=lambda copy: copy.stat().st_mtime, default="FILE")
    program = f"batchjob_stats_db --db.url=sqlite:///{path}"
    return f"run `{program} check`; restore a backup with `{program} restore {newest}`"


def refuse_foreign(db: Connection, url: URL) -> None:
    """Raise DatabaseError for an SQLite file with tables of another program."""
    if url.get_backend_name() != "sqlite":
        return  # a PostgreSQL database may be shared with other programs
    tables = sorted(sa.inspect(db).get_table_names())
    if tables:
        some = ", ".join(tables[:_FEW]) + (", ..." if len(tables) > _FEW else "")
        raise DatabaseError(
            f"{named(url)}: belongs to another program (tables {some}); expected a database of "
            "batchjob, or a file that does not exist yet"
        )

"""The schema revision of a database. `migrate` changes it; all other programs require theirs.

Separate from migrate.py, since importing Alembic costs 49 MB that a poller does not need.
"""

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import DatabaseError
from batchjob_stats_db.database.unusable import database_name, reject_foreign_tables, unusable_error


def read_revision(connection: Connection) -> str:
    """The revision of the tables, "" if there are none yet."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return str(
        connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() or ""
    )


def newer_version_error(revision: str, where: str) -> DatabaseError:
    """The error for a database from a newer version."""
    return DatabaseError(
        f"{where}: has schema {revision} of a newer version; this version supports "
        f"{schema.REVISION}; upgrade this program, or restore an older backup with "
        "`batchjob_stats_db restore`; `batchjob_stats_db check` verifies the database"
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

"""Creates or upgrades the schema of a database."""

import glob
import time
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import URL, Engine

from batchjob_stats_db.admin.backup import backup
from batchjob_stats_db.database import revision, schema
from batchjob_stats_db.database.engine import writer_engine
from batchjob_stats_db.database.revision import database_name, reject_foreign_tables, unusable_error

DIRECTORY = Path(__file__).parents[1] / "database" / "migrations"


def alembic_config() -> Config:
    made = Config()
    made.set_main_option("script_location", str(DIRECTORY).replace("%", "%%"))
    return made


def revisions() -> list[str]:
    script = ScriptDirectory.from_config(alembic_config())
    return [each.revision for each in script.walk_revisions()][::-1]


def migrate(engine: Engine, target: str = "head") -> tuple[str, str]:
    """Create or upgrade in one transaction; returns the revisions before ("" for none) and after.

    Tables of an empty database are created as they are declared, whatever the `target`.
    Raises DatabaseError if the database was made by a newer version.
    """
    with engine.begin() as connection:
        before = revision.read_revision(connection)
        if before and before not in revisions():
            raise revision.newer_version_error(before, database_name(engine.url))
        settings = alembic_config()
        settings.attributes["connection"] = connection
        if before:
            command.upgrade(settings, target)
        else:
            schema.metadata.create_all(connection)
            command.stamp(settings, "head")
        after = revision.read_revision(connection)
    return before, after


def bring_up_to_date(url: URL) -> tuple[str, str, Path | None]:
    """Create or upgrade the tables; an existing SQLite file is copied first.

    Returns the revisions before ("" for an empty file) and after, and the copy.

    The caller holds the lock of the database (engine.writer_lock). Raises DatabaseError.
    """
    engine = writer_engine(url, create=True)
    try:
        with engine.connect() as db:
            before = revision.read_revision(db)
            if not before:
                reject_foreign_tables(db, url)
        copy = None
        if before and before != schema.REVISION and url.get_backend_name() == "sqlite":
            path = Path(url.database or "")
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            copy = path.with_name(f"{path.name}.before-{before}-{stamp}")
            # The schema is still the old one, so existing copies are from migrations that did not
            # finish.
            unfinished = list(path.parent.glob(f"{glob.escape(path.name)}.before-{before}-*"))
            backup(url, copy)
            for each in unfinished:
                each.unlink(missing_ok=True)
        return (*migrate(engine), copy)
    except sa.exc.DBAPIError as error:
        raise unusable_error(url, error) from error
    finally:
        engine.dispose()

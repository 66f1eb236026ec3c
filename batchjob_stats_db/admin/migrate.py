"""Creates or upgrades the schema of a database."""

import glob
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import URL, Engine

from batchjob_stats_db.admin.backup import backup
from batchjob_stats_db.database import revision, schema
from batchjob_stats_db.database.engine import writer
from batchjob_stats_db.database.unusable import named, refuse_foreign, unusable

Told = Callable[[float, str], None]

DIRECTORY = Path(__file__).parents[1] / "database" / "migrations"


def config() -> Config:
    """Alembic's settings, without a file."""
    made = Config()
    made.set_main_option("script_location", str(DIRECTORY).replace("%", "%%"))
    return made


def revisions() -> list[str]:
    """All revisions, oldest first."""
    script = ScriptDirectory.from_config(config())
    return [each.revision for each in script.walk_revisions()][::-1]


def migrate(engine: Engine, target: str = "head", told: Told = lambda *_: None) -> tuple[str, str]:
    """Upgrade in one transaction; returns the revisions before ("" for an empty file) and after.

    `told` is called with the number of revisions that are done, and the name of the last one.
    Raises DatabaseError if the database was made by a newer version.
    """
    with engine.begin() as connection:
        before = revision.found(connection)
        if before and before not in revisions():
            raise revision.newer(before, named(engine.url))
        settings = config()
        settings.attributes["connection"] = connection
        settings.attributes["told"] = told
        command.upgrade(settings, target)
        after = revision.found(connection)
    if engine.dialect.name == "sqlite":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("ANALYZE"))
    return before, after


class Done(NamedTuple):
    """What was done: the revisions ("" for an empty file), and the copy that was made before."""

    before: str
    after: str
    copy: Path | None


def bring_up_to_date(url: URL, told: Told = lambda *_: None) -> Done:
    """Create or upgrade the tables; an existing SQLite file is copied first.

    For the only writer of the database (engine.only_writer). Raises DatabaseError.
    """
    engine = writer(url, create=True)
    try:
        with engine.connect() as db:
            before = revision.found(db)
            if not before:
                refuse_foreign(db, url)
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
        return Done(*migrate(engine, told=told), copy)
    except sa.exc.DBAPIError as error:
        raise unusable(url, error) from error
    finally:
        engine.dispose()

"""Bring a database to the present schema, or say that it is not there."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Engine

from batchjob_stats_db import revision

DIRECTORY = Path(__file__).with_name("migrations")


def config() -> Config:
    """Alembic's settings, without a file of its own."""
    made = Config()
    made.set_main_option("script_location", str(DIRECTORY).replace("%", "%%"))
    return made


def revisions() -> list[str]:
    """All revisions, oldest first."""
    script = ScriptDirectory.from_config(config())
    return [each.revision for each in script.walk_revisions()][::-1]


def migrate(engine: Engine, target: str = "head") -> tuple[str, str]:
    """Upgrade in one transaction; returns the revision before ("" for an empty file) and after.

    Raises DatabaseError when the database was made by a newer version.
    """
    with engine.begin() as connection:
        before = revision.found(connection)
        if before and before not in revisions():
            raise revision.newer(before)
        settings = config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, target)
        after = revision.found(connection)
    if engine.dialect.name == "sqlite":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("ANALYZE"))
    return before, after

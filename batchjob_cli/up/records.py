"""Records this machine's own runs in its database.

Separate from the server: a list on the command line needs no web server, whose libraries take
longer to import than the list to print.
"""

import logging
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy.engine import URL

from batchjob.local_runs.directory import LOCAL, RUNS, SAMPLES, create_directory
from batchjob_stats_db.database.engine import WriterBusyError, parse_url, writer_engine, writer_lock
from batchjob_stats_db.database.revision import read_revision as revision_found
from batchjob_stats_db.database.revision import unusable_error
from batchjob_stats_db.database.schema import REVISION
from batchjob_stats_db.poller import options as poller_options
from batchjob_stats_db.poller.service import PollerService

log = logging.getLogger(__name__)


class DatabaseChoice(Protocol):
    """The database of the records; by default, the one in the data directory."""

    @property
    def url(self) -> str:
        """See UpDatabaseOptions."""

    @property
    def password_file(self) -> str:
        """See UpDatabaseOptions."""


def database_url(chosen: DatabaseChoice | None, data: Path) -> URL:
    """The database of this machine's records; raises DatabaseError."""
    if chosen is None or not chosen.url:
        return parse_url(f"sqlite:///{data / 'jobs.db'}")
    return parse_url(chosen.url, chosen.password_file)


def record_runs(data: Path) -> URL:
    """Record this machine's runs, unless a running `batchjob up` does; returns their database.

    Raises DatabaseError, OSError.
    """
    create_directory(data, RUNS)
    url = database_url(None, data)
    try:
        with writer_lock(url):
            ensure_schema(url)
            engine = writer_engine(url)
            try:
                for poller in PollerService(_settings(data, url), engine).pollers:
                    poller.run_cycle()
            finally:
                engine.dispose()
    except WriterBusyError:
        pass
    return url


def _settings(data: Path, url: URL) -> poller_options.PollerSettings:
    sources = {"runs": {"path": str(data / RUNS)}}
    given = {
        "db.url": url.render_as_string(hide_password=False),
        "clusters": [{"name": LOCAL, "sources": sources, "samples": str(data / SAMPLES)}],
    }
    return poller_options.settings(given, "")


def ensure_schema(url: URL) -> None:
    """Create or upgrade the tables; raises DatabaseError."""
    engine = writer_engine(url, create=True)
    try:
        with engine.connect() as db:
            current = revision_found(db) == REVISION
    except sa.exc.DBAPIError as error:
        raise unusable_error(url, error) from error
    finally:
        engine.dispose()
    if not current:
        from batchjob_stats_db.admin import migrate  # Alembic takes megabytes

        _, _, copied = migrate.bring_up_to_date(url)
        if copied:
            log.warning("the database schema has changed; the old database is kept as %s", copied)

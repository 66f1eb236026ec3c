"""This machine's database, for commands that need no web server to answer them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from batchjob_cli.client.problems import UnreachableError
from batchjob_cli.up.records import open_recorded, record_runs
from batchjob_stats_db.database.engine import DatabaseError, reader_engine
from batchjob_stats_db.database.revision import require_current, unusable_error


@contextmanager
def open_database(data: Path) -> Iterator[Engine]:
    """The database with all runs of this machine, opened for reading; raises SettingsError."""
    try:
        recorded = open_recorded(data)
        engine = recorded or reader_engine(record_runs(data))
        try:
            if recorded is None:
                require_current(engine)
            yield engine
        except sa.exc.DBAPIError as error:
            raise unusable_error(engine.url, error) from error
        finally:
            engine.dispose()
    except DatabaseError as error:
        raise UnreachableError(str(error)) from error
    except OSError as error:
        raise UnreachableError(f"{error.filename or data}: {error.strerror or error}") from error

"""Records this machine's own runs in its database.

Separate from the server: a list on the command line needs no web server, whose libraries take
longer to import than the list to print. The poller is imported when there is something to record.
"""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from batchjob.local_runs.accounting import SOURCE, LocalRunsOptions, Runs
from batchjob.local_runs.directory import LOCAL, RUNS, SAMPLES, create_directory
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import (
    DatabaseError,
    WriterBusyError,
    parse_url,
    reader_engine,
    writer_engine,
    writer_lock,
)
from batchjob_stats_db.database.revision import read_revision, unusable_error
from batchjob_stats_db.database.schema import REVISION

if TYPE_CHECKING:
    from batchjob_stats_db.poller.options import PollerSettings

log = logging.getLogger(__name__)

_LIVE_STATES = tuple(state.value for state in JobState if state.is_live)


def database_url(data: Path) -> URL:
    """The database in the data directory."""
    return parse_url(f"sqlite:///{data / 'jobs.db'}")


def record_runs(data: Path) -> URL:
    """Record this machine's runs, unless a running `batchjob up` does; returns their database.

    Raises DatabaseError, OSError.
    """
    from batchjob_stats_db.poller.service import PollerService

    create_directory(data, RUNS)
    url = database_url(data)
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


def open_recorded(data: Path) -> Engine | None:
    """The database for reading, if it has all runs as their files say, and none is due to be
    measured.

    None as well if that cannot be read: `record_runs` reports what is wrong.
    """
    try:
        engine = reader_engine(database_url(data))
        with engine.connect() as db:
            revision = db.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            if revision == REVISION and _has_all_runs(db, data / RUNS):
                return engine
    except (sa.exc.DBAPIError, DatabaseError, SchedulerError, OSError):
        return None
    engine.dispose()
    return None


def _has_all_runs(db: Connection, runs: Path) -> bool:
    job, state = schema.job.c, schema.poll_state.c
    is_due = sa.select(job.id).where(job.cluster == LOCAL, job.usage_due_time <= time.time())
    read_up_to = sa.select(state.watermark).where(state.cluster == LOCAL, state.source == SOURCE)
    watermark = db.scalar(read_up_to)
    if watermark is None or db.scalar(is_due.limit(1)) is not None:
        return False
    live = sa.select(job.jobid, *(job[name] for name in UnfinishedJob._fields)).where(
        job.cluster == LOCAL, job.end_time.is_(None), job.state.in_(_LIVE_STATES)
    )
    unfinished = {jobid: UnfinishedJob(*more) for jobid, *more in db.execute(live)}
    known = sa.select(job.state, job.end_time).where(
        job.cluster == LOCAL, job.jobid == sa.bindparam("jobid")
    )
    for batch in Runs(LOCAL, LocalRunsOptions(str(runs))).read(watermark, unfinished):
        if batch.vanished or batch.quarantined or batch.deleted:
            return False
        for record in batch.jobs:
            found = db.execute(known, {"jobid": record.jobid}).first()
            if found is None or tuple(found) != (record.state.value, record.end_time):
                return False
    return True


def _settings(data: Path, url: URL) -> "PollerSettings":
    from batchjob_stats_db.poller import options as poller_options

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
            current = read_revision(db) == REVISION
    except sa.exc.DBAPIError as error:
        raise unusable_error(url, error) from error
    finally:
        engine.dispose()
    if not current:
        from batchjob_stats_db.admin import migrate  # Alembic takes megabytes

        _, _, copied = migrate.bring_up_to_date(url)
        if copied:
            log.warning("the database schema has changed; the old database is kept as %s", copied)

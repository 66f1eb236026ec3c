"""The commands of `batchjob_stats_db` other than polling; each returns the exit status."""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from batchjob.runtime.extras import lacking
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob.secret_files import SecretFileError, read_key
from batchjob_stats_db.admin import check, privacy, tables, transfer
from batchjob_stats_db.admin.backup import backup, place, prune
from batchjob_stats_db.admin.copying import copy_rows
from batchjob_stats_db.admin.progress import Progress
from batchjob_stats_db.admin.restore import restore
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import DatabaseError, only_writer, parse, reader, writer
from batchjob_stats_db.database.revision import of_own, require_current
from batchjob_stats_db.measure.pending import recompute
from batchjob_stats_db.poller.options import PollerSettings, problems
from batchjob_stats_db.poller.service import PollerService

Arguments = argparse.Namespace

# Allocations between two garbage collections: more than a batch of records makes, since records are
# not part of reference cycles.
_COLLECTED = 100_000


def url_of(chosen: PollerSettings) -> URL:
    """The URL of the configured database."""
    return parse(chosen.db.url, chosen.db.password_file)


@contextmanager
def writing(chosen: PollerSettings) -> Iterator[Engine]:
    """Open the database for the only process that writes to it."""
    url = url_of(chosen)
    engine = writer(url)
    thresholds = gc.get_threshold()
    gc.set_threshold(_COLLECTED)
    try:
        with only_writer(url):
            require_current(engine)
            yield engine
    finally:
        gc.set_threshold(*thresholds)
        engine.dispose()


@contextmanager
def reading(chosen: PollerSettings) -> Iterator[Engine]:
    """Open the database for reading."""
    engine = reader(url_of(chosen), statement_seconds=3600)
    try:
        require_current(engine)
        yield engine
    finally:
        engine.dispose()


def with_clusters(chosen: PollerSettings, given: Arguments) -> PollerSettings:
    """The settings with the clusters that the command line names; raises SettingsError."""
    for problem in problems(chosen):
        raise SettingsError(problem)
    wanted = getattr(given, "cluster", None)
    if wanted is None:
        return chosen
    kept = tuple(cluster for cluster in chosen.clusters if cluster.name == wanted)
    if not kept:
        known = ", ".join(cluster.name for cluster in chosen.clusters)
        raise SettingsError(f"--cluster: {wanted}: expected one of {known}")
    return chosen._replace(clusters=kept)


def migrate(chosen: PollerSettings, _given: Arguments) -> int:
    """Create the tables, or upgrade them."""
    # Imported here, since Alembic takes 49 MB that the daemon does not need.
    from batchjob_stats_db.admin.migrate import bring_up_to_date, revisions

    url = url_of(chosen)
    with only_writer(url):
        progress = Progress("migrate", 0, len(revisions()))
        done = bring_up_to_date(url, progress.at)
        progress.clear()
    if done.copy:
        print(f"backup: {done.copy}, {done.copy.stat().st_size} bytes")
    told = f"{done.before or 'none'} -> {done.after}"
    print(f"schema {done.after}" if done.before == done.after else f"schema {told}")
    return 0


def time_stamp() -> str:
    """The time for a file name, such as 20250131T235959Z."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def backfill(chosen: PollerSettings, given: Arguments) -> int:
    """Read accounting from a day on, and rebuild the daily sums."""
    chosen = with_clusters(chosen, given)
    with writing(chosen) as engine:
        service = PollerService(chosen, engine)
        now = time.time()
        for poller in service.pollers:
            for source in poller.cluster.sources:
                what = f"{poller.cluster.name} {source.name}"
                progress = Progress(what, given.since, now)
                for covered in poller.backfill(source, given.since):
                    progress.at(covered, datetime.fromtimestamp(covered, UTC).strftime("%Y-%m-%d"))
                progress.done()
            _settle(poller.cluster.name, poller.roll_up_all, "days")
    return 0


def recompute_usage(chosen: PollerSettings, given: Arguments) -> int:
    """Measure jobs again, and rebuild the sums of their days."""
    chosen = with_clusters(chosen, given)
    with writing(chosen) as engine:
        service = PollerService(chosen, engine)
        for poller in service.pollers:
            name = poller.cluster.name
            with engine.begin() as db:
                jobs = recompute(db, name, given.since, given.until, int(time.time()))
            progress, done = Progress(f"{name} usage", 0, jobs), 0
            while some := poller.measure_some():
                done += some
                progress.at(done, f"{done} jobs")
            progress.done(f"{done} jobs")
            _settle(name, poller.roll_up_all, "days")
    return 0


def _settle(name: str, work: Callable[[], int], what: str) -> None:
    with Progress.waiting(f"{name} {what}"):
        done = work()
    print(f"{name}: {done} {what} summed up", file=sys.stderr)


def back_up(chosen: PollerSettings, given: Arguments) -> int:
    """Back up the database, and delete the oldest backups."""
    if given.target is None and not chosen.backup.directory:
        raise SettingsError("backup: expected a directory or file, or backup.directory")
    url = url_of(chosen)
    kind = "db" if url.get_backend_name() == "sqlite" else "dump"
    source = reader(url)
    try:
        of_own(source)
    finally:
        source.dispose()
    target, directory = place(given.target or Path(chosen.backup.directory), kind, time_stamp())
    with Progress.waiting(f"backup to {target}"):
        size = backup(url, target)
    print(f"{target}: {size} bytes")
    keep = given.keep
    if keep is None:
        keep = chosen.backup.keep if given.target is None else 0
    for path in prune(directory, keep) if directory else ():
        print(f"{path}: deleted")
    return 0


def put_back(chosen: PollerSettings, given: Arguments) -> int:
    """Replace the database with a backup."""
    url = url_of(chosen)
    with Progress.waiting(f"restore from {given.file}"):
        before = restore(url, given.file)
    kept = f"; the previous database is {before}" if before else ""
    print(f"{url.database}: restored from {given.file}{kept}")
    engine = writer(url)
    try:
        require_current(engine)
    except DatabaseError as error:
        print(f"batchjob_stats_db: {error}", file=sys.stderr)
    finally:
        engine.dispose()
    return 0


def copy(chosen: PollerSettings, given: Arguments) -> int:
    """Copy everything into another database, creating its tables."""
    target = parse(given.to, given.to_password_file, ("--to", "--to-password-file"))
    if target == url_of(chosen):
        raise SettingsError("--to: expected another database than db.url")
    with writing(chosen) as engine, only_writer(target):
        other = writer(target, create=True)
        try:
            _create_tables(other)
            progress = Progress("copy", 0, 1)
            rows = copy_rows(engine, other, progress.at)
            progress.done(f"{rows} rows")
        finally:
            other.dispose()
    print(f"{rows} rows")
    return 0


def _create_tables(engine: Engine) -> None:
    """Create the tables of an empty database; one with tables may be in use, and is left alone."""
    from batchjob_stats_db.admin.migrate import bring_up_to_date

    if not of_own(engine):
        bring_up_to_date(engine.url)
    require_current(engine)


def check_records(chosen: PollerSettings, _given: Arguments) -> int:
    """Print what is wrong; status 1 if anything is."""
    with reading(chosen) as engine, engine.connect() as db:
        with Progress.waiting("check"):
            lines = list(check.findings(db, int(time.time())))
        jobs = db.execute(sa.select(sa.func.count()).select_from(schema.job)).scalar()
    for line in lines:
        print(line)
    if not lines:
        print(f"OK: {jobs} jobs, no damage, no gaps")
    return 1 if lines else 0


def export(chosen: PollerSettings, given: Arguments) -> int:
    """Write job records to standard output, or as Parquet."""
    if (given.format == "parquet") != bool(given.output):
        raise SettingsError("--output: expected with --format parquet, and only with it")
    if given.format == "parquet":
        return _export_parquet(chosen, given)
    write = tables.export_csv if given.format == "csv" else transfer.export_json
    with reading(chosen) as engine, engine.connect() as db:
        write(db, sys.stdout, given.cluster, given.since)
    sys.stdout.flush()
    return 0


def _export_parquet(chosen: PollerSettings, given: Arguments) -> int:
    try:
        with (
            reading(chosen) as engine,
            engine.connect() as db,
            Progress.waiting(f"export to {given.output}"),
        ):
            count = tables.export_parquet(db, given.output, given.cluster, given.since)
    except ModuleNotFoundError as error:
        raise SettingsError(f"--format parquet: {lacking(error, 'analysis')}") from error
    except OSError as error:
        raise SettingsError(f"--output: {given.output}: {reason(error)}") from error
    print(f"{given.output}: {count} jobs")
    return 0


def import_lines(chosen: PollerSettings, given: Arguments) -> int:
    """Read exported JSON lines."""
    with writing(chosen) as engine:
        try:
            count = _imported(engine, given.file)
        except UnicodeDecodeError as error:
            raise SettingsError(f"{given.file}: expected UTF-8") from error
        except OSError as error:
            raise SettingsError(f"{given.file}: {reason(error)}") from error
    print(f"{count} jobs")
    return 0


def _imported(engine: Engine, path: Path) -> int:
    with path.open("rb") as file:
        progress = Progress(str(path), 0, os.fstat(file.fileno()).st_size)
        lines = (line.decode() for line in file)
        count = transfer.import_json(
            engine, lines, int(time.time()), lambda jobs: progress.at(file.tell(), f"{jobs} jobs")
        )
        progress.done(f"{count} jobs")
        return count


def anonymise(chosen: PollerSettings, given: Arguments) -> int:
    """Replace users with pseudonyms."""
    try:
        key = read_key(given.key_file).strip()
    except SecretFileError as error:
        raise SettingsError(f"--key-file: {error}") from error
    if len(key) < 16:
        raise SettingsError("--key-file: expected at least 16 bytes")
    before = None if given.older_than is None else int(time.time() - given.older_than)
    with writing(chosen) as engine, engine.begin() as db, Progress.waiting("anonymise"):
        users = privacy.anonymise(db, key, before)
    print(f"{users} users")
    return 0


def forget(chosen: PollerSettings, given: Arguments) -> int:
    """Delete all data about a user."""
    with writing(chosen) as engine, engine.begin() as db, Progress.waiting("forget"):
        jobs = privacy.forget(db, given.user, given.cluster)
    print(f"{jobs} jobs")
    return 0

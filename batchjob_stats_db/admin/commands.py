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
from sqlalchemy.engine import URL, Connection, Engine

from batchjob.runtime.output import missing_library_message
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.times import format_date
from batchjob.secret_files import SecretFileError, read_key
from batchjob_stats_db.admin import check, privacy, transfer
from batchjob_stats_db.admin.backup import backup, choose_target, prune
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, reader_engine, writer_engine, writer_lock
from batchjob_stats_db.database.revision import read_own_revision, require_current
from batchjob_stats_db.measure.pending import mark_for_measurement
from batchjob_stats_db.poller.options import PollerSettings, problems
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.service import PollerService
from batchjob_stats_db.timeseries.base import EXPORTER, TimeSeriesError
from batchjob_stats_db.timeseries.prometheus_store import Prometheus

Arguments = argparse.Namespace

# Allocations between two garbage collections: more than a batch of records makes, since records are
# not part of reference cycles.
_GC_THRESHOLD = 100_000
_LINE_SECONDS = 10.0  # between two lines about progress


def progress_of(
    title: str, begin: float, end: float, clock: Callable[[], float] = time.monotonic
) -> Callable[[float, str], None]:
    """What says that a position between `begin` and `end` has been reached, with a note.

    Nothing is said shortly after something was.
    """
    started = last_shown = clock()

    def update(position: float, note: str) -> None:
        nonlocal last_shown
        now = clock()
        if now - last_shown < _LINE_SECONDS:
            return
        last_shown = now
        share = min(max((position - begin) / max(end - begin, 1.0), 0.0), 1.0)
        left = f", {(now - started) * (1 - share) / share:.0f} s left" if share else ""
        print(f"{title}: {share:.0%}, {note}{left}", file=sys.stderr)

    return update


def database_url(settings: PollerSettings) -> URL:
    return parse_url(settings.db.url, settings.db.password_file)


@contextmanager
def open_for_writing(settings: PollerSettings) -> Iterator[Engine]:
    """Open the database for the only process that writes to it."""
    url = database_url(settings)
    engine = writer_engine(url)
    thresholds = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD)
    try:
        with writer_lock(url):
            require_current(engine)
            yield engine
    finally:
        gc.set_threshold(*thresholds)
        engine.dispose()


@contextmanager
def open_for_reading(settings: PollerSettings) -> Iterator[Engine]:
    engine = reader_engine(database_url(settings), statement_seconds=3600)
    try:
        require_current(engine)
        yield engine
    finally:
        engine.dispose()


def select_clusters(settings: PollerSettings, given: Arguments) -> PollerSettings:
    """The settings with the clusters that the command line names; raises SettingsError."""
    for problem in problems(settings):
        raise SettingsError(problem)
    wanted = getattr(given, "cluster", None)
    if wanted is None:
        return settings
    kept = tuple(cluster for cluster in settings.clusters if cluster.name == wanted)
    if not kept:
        known = ", ".join(cluster.name for cluster in settings.clusters)
        raise SettingsError(f"--cluster: {wanted}: expected one of {known}")
    return settings._replace(clusters=kept)


def migrate(settings: PollerSettings, _given: Arguments) -> int:
    # Imported here, since Alembic takes 49 MB that the daemon does not need.
    from batchjob_stats_db.admin.migrate import bring_up_to_date

    url = database_url(settings)
    with writer_lock(url):
        before, after, copied = bring_up_to_date(url)
    if copied:
        print(f"backup: {copied}, {copied.stat().st_size} bytes")
    print(f"schema {after}" if before == after else f"schema {before or 'none'} -> {after}")
    return 0


def time_stamp() -> str:
    """The time for a file name, such as 20250131T235959Z."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def backfill(settings: PollerSettings, given: Arguments) -> int:
    settings = select_clusters(settings, given)
    with open_for_writing(settings) as engine:
        service = PollerService(settings, engine)
        now = time.time()
        for poller in service.pollers:
            for source in poller.cluster.sources:
                what = f"{poller.cluster.name} {source.name}"
                progress = progress_of(what, given.since, now)
                for covered in poller.backfill(source, given.since):
                    progress(covered, format_date(covered))
                print(f"{what}: done", file=sys.stderr)
            _roll_up_days(poller)
    return 0


def recompute_usage(settings: PollerSettings, given: Arguments) -> int:
    settings = select_clusters(settings, given)
    with open_for_writing(settings) as engine:
        service = PollerService(settings, engine)
        for poller in service.pollers:
            name = poller.cluster.name
            with engine.begin() as db:
                jobs = mark_for_measurement(db, name, given.since, given.until, int(time.time()))
            progress, done = progress_of(f"{name} usage", 0, jobs), 0
            while number := poller.measure_due_jobs():
                done += number
                progress(done, f"{done} jobs")
            print(f"{name} usage: {done} jobs", file=sys.stderr)
            _roll_up_days(poller)
    return 0


def _roll_up_days(poller: Poller) -> None:
    days = poller.roll_up_due_days()
    print(f"{poller.cluster.name}: {days} days summed up", file=sys.stderr)


def back_up(settings: PollerSettings, given: Arguments) -> int:
    if given.target is None and not settings.backup.directory:
        raise SettingsError("backup: expected a directory or file, or backup.directory")
    url = database_url(settings)
    kind = "db" if url.get_backend_name() == "sqlite" else "dump"
    source = reader_engine(url)
    try:
        read_own_revision(source)
    finally:
        source.dispose()
    target, directory = choose_target(
        given.target or Path(settings.backup.directory), kind, time_stamp()
    )
    size = backup(url, target)
    print(f"{target}: {size} bytes")
    keep = given.keep
    if keep is None:
        keep = settings.backup.keep if given.target is None else 0
    for path in prune(directory, keep) if directory else ():
        print(f"{path}: deleted")
    return 0


def check_records(settings: PollerSettings, _given: Arguments) -> int:
    with open_for_reading(settings) as engine, engine.connect() as db:
        lines = [*check.findings(db, int(time.time())), *_foreign_targets(settings, db)]
        jobs = db.execute(sa.select(sa.func.count()).select_from(schema.job)).scalar()
    for line in lines:
        print(line)
    if not lines:
        print(f"OK: {jobs} jobs, no damage, no gaps")
    return 1 if lines else 0


def _foreign_targets(settings: PollerSettings, db: Connection) -> Iterator[str]:
    for cluster in settings.clusters:
        if not cluster.tsdb.url:
            continue
        store = Prometheus(cluster.tsdb.endpoint())
        try:
            values = store.latest(cluster.name, [EXPORTER], time.time())
        except TimeSeriesError as error:
            yield f"{cluster.name}: {error}"
            continue
        targets = {each.labels.get("instance", "") for each in values}
        yield from check.foreign_targets(db, cluster.name, targets)


def export(settings: PollerSettings, given: Arguments) -> int:
    if (given.format == "parquet") != bool(given.output):
        raise SettingsError("--output: expected with --format parquet, and only with it")
    with open_for_reading(settings) as engine, engine.connect() as db:
        if given.format == "parquet":
            _export_parquet(db, given)
        else:
            write = transfer.export_csv if given.format == "csv" else transfer.export_json
            write(db, sys.stdout, given.cluster, given.since)
    sys.stdout.flush()
    return 0


def _export_parquet(db: Connection, given: Arguments) -> None:
    try:
        count = transfer.export_parquet(db, given.output, given.cluster, given.since)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"--format parquet: {missing_library_message(error, 'analysis')}"
        ) from error
    except OSError as error:
        raise SettingsError(f"--output: {given.output}: {reason(error)}") from error
    print(f"{given.output}: {count} jobs")


def import_lines(settings: PollerSettings, given: Arguments) -> int:
    try:
        with open_for_writing(settings) as engine, given.file.open("rb") as file:
            progress = progress_of(str(given.file), 0, os.fstat(file.fileno()).st_size)
            count = transfer.import_json(
                engine,
                (line.decode() for line in file),
                int(time.time()),
                lambda jobs: progress(file.tell(), f"{jobs} jobs"),
            )
    except UnicodeDecodeError as error:
        raise SettingsError(f"{given.file}: expected UTF-8") from error
    except OSError as error:
        raise SettingsError(f"{given.file}: {reason(error)}") from error
    print(f"{given.file}: {count} jobs", file=sys.stderr)
    print(f"{count} jobs")
    return 0


def anonymise(settings: PollerSettings, given: Arguments) -> int:
    try:
        key = read_key(given.key_file).strip()
    except SecretFileError as error:
        raise SettingsError(f"--key-file: {error}") from error
    if len(key) < 16:
        raise SettingsError("--key-file: expected at least 16 bytes")
    before = None if given.older_than is None else int(time.time() - given.older_than)
    with open_for_writing(settings) as engine, engine.begin() as db:
        users = privacy.anonymise(db, key, before)
    print(f"{users} users")
    return 0


def forget(settings: PollerSettings, given: Arguments) -> int:
    with open_for_writing(settings) as engine, engine.begin() as db:
        jobs = privacy.forget(db, given.user, given.cluster)
    print(f"{jobs} jobs")
    return 0

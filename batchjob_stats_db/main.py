"""The command `batchjob_stats_db`."""

import argparse
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from batchjob import __version__
from batchjob.runtime import log as logs
from batchjob.runtime.extras import lacking
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import (
    Parser,
    SettingsError,
    add_flags,
    argument,
    exit_status,
    parse_flags,
)
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.runtime.values import called, duration, integer
from batchjob.secret_files import SecretFileError, read_key
from batchjob_stats_db.admin import check, privacy, tables, transfer
from batchjob_stats_db.admin.backup import backup, place, prune
from batchjob_stats_db.admin.copying import copy_rows
from batchjob_stats_db.admin.progress import Progress
from batchjob_stats_db.admin.restore import restore
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import DatabaseError, only_writer, parse, reader, writer
from batchjob_stats_db.database.revision import require_current
from batchjob_stats_db.measure.pending import recompute
from batchjob_stats_db.poller.options import SECTIONS, PollerSettings, problems, settings
from batchjob_stats_db.poller.service import PollerService, serve
from batchjob_stats_db.timeseries.base import TimeSeriesError

log = logging.getLogger(__name__)

Arguments = argparse.Namespace

# Objects between collections: records are many, and in no cycles.
_COLLECTED = 20_000


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 1 for a failure, 2 for wrong settings."""
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except (SettingsError, DatabaseError) as error:
        print(f"batchjob_stats_db: {error}", file=sys.stderr)
        return exit_status(error)
    except (SchedulerError, TimeSeriesError, transfer.TransferError) as error:
        print(f"batchjob_stats_db: {error}", file=sys.stderr)
    except sa.exc.DBAPIError as error:
        print(
            f"batchjob_stats_db: the database: {' '.join(str(error.orig).split())}", file=sys.stderr
        )
    except BrokenPipeError:  # `export | head`
        sys.stderr.close()
    except KeyboardInterrupt:
        print("batchjob_stats_db: interrupted; what was written is written", file=sys.stderr)
    return 1


def _main(arguments: list[str]) -> int:
    parser = _parser()
    given = parse_flags(parser, arguments)
    extra = {name: given.pop(name) for name in list(given) if "." not in name}
    chosen = settings(given, extra["config_file"])
    logs.set_up(chosen.log)
    if extra["check_config"]:
        return _check_config(chosen)
    command: Callable[[PollerSettings, Arguments], int] = extra.get("function", _run)
    return command(chosen, Arguments(**extra))


def _parser() -> Parser:
    parser = Parser(
        prog="batchjob_stats_db", description="Poll scheduler accounting into the job database."
    )
    parser.add_argument("--version", action="version", version=f"batchjob_stats_db {__version__}")
    parser.add_argument("--config.file", dest="config_file", default="", metavar="PATH",
                        help="YAML configuration file with options and clusters.")  # fmt: skip
    parser.add_argument("--check", dest="check_config", action="store_true",
                        help="Check the configuration and file permissions, and exit.")  # fmt: skip
    parser.add_argument("--once", action="store_true", help="Poll each cluster once, and exit.")
    add_flags(parser, SECTIONS)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)

    def add(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        return command

    add("run", _run, "Poll until stopped (default).")
    add("migrate", _migrate, "Create the tables, or upgrade them to the current schema.")
    backfill = add("backfill", _backfill, "Read the schedulers' accounting from a given day.")
    again = add("recompute", _recompute, "Measure jobs again and recompute the daily sums.")
    copy = add("backup", _backup, "Back up the database while it is in use.")
    copy.add_argument("target", type=Path, nargs="?",
                      help="A directory; or a file, whose name ends in .db or .dump "
                      "(default: backup.directory).")  # fmt: skip
    copy.add_argument("--keep", **argument(integer), help="Number of backups to keep in the "
                      "directory (default: backup.keep in backup.directory, all "
                      "elsewhere).")  # fmt: skip
    back = add("restore", _restore, "Replace the database with a backup.")
    back.add_argument("file", type=Path, help="Backup to restore.")
    other = add("copy", _copy, "Copy everything into another, empty database.")
    other.add_argument(
        "--to",
        required=True,
        metavar="URL",
        help="The other database, such as postgresql://batchjob@HOST/batchjob.",
    )
    other.add_argument("--to-password-file", default="", metavar="FILE",
                       help="File with the password for the other database.")  # fmt: skip
    add("check", _check, "Check for damage, gaps and orphaned rows.")
    out = add("export", _export, "Write job records to standard output.")
    out.add_argument("--format", choices=("json", "csv", "parquet"), default="json")
    out.add_argument(
        "--output", type=Path, metavar="FILE", help="Directory to write Parquet files to."
    )
    for command in (backfill, again):
        command.add_argument("--since", required=True, **argument(_day), help="2025-01-31")
    out.add_argument("--since", default=0, **argument(_day), help="2025-01-31")
    again.add_argument("--until", **argument(_day), help="2025-02-28")
    add("import", _import, "Read exported JSON lines.").add_argument("file", type=Path)
    hide = add("anonymise", _anonymise, "Replace the users of ended jobs with pseudonyms.")
    hide.add_argument(
        "--key-file",
        required=True,
        metavar="FILE",
        help="File with a secret; the same secret gives the same pseudonyms.",
    )
    hide.add_argument("--older-than", **argument(duration), help="Such as 365d.")
    forget = add("forget", _forget, "Delete all data about a user.")
    forget.add_argument("--user", required=True)
    for command in (backfill, again, out, forget):
        command.add_argument("--cluster", help="Only this cluster.")
    return parser


@called("DAY")
def _day(text: str) -> int:
    try:
        return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise ValueError(f"expected a day such as 2025-01-31, got {text!r}") from None


def _url(chosen: PollerSettings) -> URL:
    return parse(chosen.db.url, chosen.db.password_file)


@contextmanager
def _writing(chosen: PollerSettings) -> Iterator[Engine]:
    """The database, open for the one process that writes to it."""
    url = _url(chosen)
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
def _reading(chosen: PollerSettings) -> Iterator[Engine]:
    engine = reader(_url(chosen), statement_seconds=3600)
    try:
        require_current(engine)
        yield engine
    finally:
        engine.dispose()


def _clusters(chosen: PollerSettings, given: Arguments) -> PollerSettings:
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


def _run(chosen: PollerSettings, given: Arguments) -> int:
    chosen = _clusters(chosen, given)
    with _writing(chosen) as engine:
        service = PollerService(chosen, engine)
        if given.once:
            done = [poller.cycle() for poller in service.pollers]  # all of them, whatever one says
            return 0 if all(done) else 1
        serve(service)
    return 0


def _check_config(chosen: PollerSettings) -> int:
    wrong = list(problems(chosen))
    try:
        with _reading(chosen) as engine:
            if not wrong:
                for poller in PollerService(chosen, engine).pollers:
                    wrong += poller.check()
    except DatabaseError as error:
        wrong.append(str(error))
    for line in wrong:
        print(f"batchjob_stats_db: {line}", file=sys.stderr)
    if not wrong:
        print("ok")
    return 2 if wrong else 0


def _migrate(chosen: PollerSettings, _given: Arguments) -> int:
    # Alembic costs 49 MB, which no daemon need carry.
    from batchjob_stats_db.admin.migrate import bring_up_to_date, revisions

    url = _url(chosen)
    with only_writer(url):
        progress = Progress("migrate", 0, len(revisions()))
        done = bring_up_to_date(url, progress.at)
    if done.copy:
        print(f"backup: {done.copy}, {done.copy.stat().st_size} bytes")
    told = f"{done.before or 'none'} -> {done.after}"
    print(f"schema {done.after}" if done.before == done.after else f"schema {told}")
    return 0


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def _backfill(chosen: PollerSettings, given: Arguments) -> int:
    chosen = _clusters(chosen, given)
    with _writing(chosen) as engine:
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


def _recompute(chosen: PollerSettings, given: Arguments) -> int:
    chosen = _clusters(chosen, given)
    with _writing(chosen) as engine:
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


def _backup(chosen: PollerSettings, given: Arguments) -> int:
    if given.target is None and not chosen.backup.directory:
        raise SettingsError("backup: expected a directory or file, or backup.directory")
    url = _url(chosen)
    kind = "db" if url.get_backend_name() == "sqlite" else "dump"
    target, directory = place(given.target or Path(chosen.backup.directory), kind, _stamp())
    with Progress.waiting(f"backup to {target}"):
        size = backup(url, target)
    print(f"{target}: {size} bytes")
    keep = given.keep
    if keep is None:
        keep = chosen.backup.keep if given.target is None else 0
    for path in prune(directory, keep) if directory else ():
        print(f"{path}: deleted")
    return 0


def _restore(chosen: PollerSettings, given: Arguments) -> int:
    url = _url(chosen)
    with Progress.waiting(f"restore from {given.file}"):
        before = restore(url, given.file)
    kept = f"; the database before is {before}" if before else ""
    print(f"{url.database}: restored from {given.file}{kept}")
    engine = writer(url)
    try:
        require_current(engine)
    except DatabaseError as error:
        print(f"batchjob_stats_db: {error}", file=sys.stderr)
    finally:
        engine.dispose()
    return 0


def _copy(chosen: PollerSettings, given: Arguments) -> int:
    from batchjob_stats_db.admin.migrate import bring_up_to_date

    target = parse(given.to, given.to_password_file)
    if target == _url(chosen):
        raise SettingsError("--to: expected another database than db.url")
    with _writing(chosen) as engine, only_writer(target):
        bring_up_to_date(target)
        other = writer(target)
        try:
            progress = Progress("copy", 0, 1)
            rows = copy_rows(engine, other, progress.at)
            progress.done(f"{rows} rows")
        finally:
            other.dispose()
    print(f"{rows} rows")
    return 0


def _check(chosen: PollerSettings, _given: Arguments) -> int:
    with _reading(chosen) as engine, engine.connect() as db:
        with Progress.waiting("check"):
            lines = list(check.findings(db, int(time.time())))
        jobs = db.execute(sa.select(sa.func.count()).select_from(schema.job)).scalar()
    for line in lines:
        print(line)
    if not lines:
        print(f"good: {jobs} jobs, no damage, no gaps")
    return 1 if lines else 0


def _export(chosen: PollerSettings, given: Arguments) -> int:
    if (given.format == "parquet") != bool(given.output):
        raise SettingsError("--output: expected with --format parquet, and only with it")
    if given.format == "parquet":
        return _export_parquet(chosen, given)
    write = tables.export_csv if given.format == "csv" else transfer.export_json
    with _reading(chosen) as engine, engine.connect() as db:
        write(db, sys.stdout, given.cluster, given.since)
    sys.stdout.flush()
    return 0


def _export_parquet(chosen: PollerSettings, given: Arguments) -> int:
    try:
        with (
            _reading(chosen) as engine,
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


def _import(chosen: PollerSettings, given: Arguments) -> int:
    with _writing(chosen) as engine:
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


def _anonymise(chosen: PollerSettings, given: Arguments) -> int:
    try:
        key = read_key(given.key_file).strip()
    except SecretFileError as error:
        raise SettingsError(f"--key-file: {error}") from error
    if len(key) < 16:
        raise SettingsError("--key-file: expected at least 16 bytes")
    before = None if given.older_than is None else int(time.time() - given.older_than)
    with _writing(chosen) as engine, engine.begin() as db, Progress.waiting("anonymise"):
        users = privacy.anonymise(db, key, before)
    print(f"{users} users")
    return 0


def _forget(chosen: PollerSettings, given: Arguments) -> int:
    with _writing(chosen) as engine, engine.begin() as db, Progress.waiting("forget"):
        jobs = privacy.forget(db, given.user, given.cluster)
    print(f"{jobs} jobs")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command `batchjob_stats_db`."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from batchjob import __version__
from batchjob.runtime import log as logs
from batchjob.runtime.output import run_with_stdout
from batchjob.runtime.settings import Parser, SettingsError, add_flags, exit_status, parse_flags
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.runtime.values import duration, integer, with_metavar
from batchjob_stats_db.admin import commands, transfer
from batchjob_stats_db.admin.commands import Arguments
from batchjob_stats_db.database.engine import DatabaseError
from batchjob_stats_db.poller.options import SECTIONS, PollerSettings, problems, settings
from batchjob_stats_db.poller.service import PollerService, serve
from batchjob_stats_db.timeseries.base import TimeSeriesError

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; exit status 1 for a failure, 2 for wrong settings."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        return run_with_stdout("batchjob_stats_db", lambda: _main(given))
    except (SettingsError, DatabaseError) as error:
        print(f"batchjob_stats_db: {error}", file=sys.stderr)
        return exit_status(error)
    except (SchedulerError, TimeSeriesError, transfer.TransferError) as error:
        print(f"batchjob_stats_db: {error}", file=sys.stderr)
    except sa.exc.DBAPIError as error:
        print(
            f"batchjob_stats_db: the database: {' '.join(str(error.orig).split())}", file=sys.stderr
        )
    except KeyboardInterrupt:
        print("batchjob_stats_db: interrupted; what was written is written", file=sys.stderr)
    return 1


def _main(arguments: list[str]) -> int:
    parser = _parser()
    flags = parse_flags(parser, arguments)
    arguments_by_name = {name: flags.pop(name) for name in list(flags) if "." not in name}
    poller_settings = settings(flags, arguments_by_name["config_file"])
    logs.set_up(poller_settings.log)
    if arguments_by_name["check_config"]:
        return _check_config(poller_settings)
    command: _Command = arguments_by_name.get("function", _poll)
    return command(poller_settings, Arguments(**arguments_by_name))


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
    parsers = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for name, function, text, arguments in _COMMANDS:
        command = parsers.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        for argument, options in arguments.items():
            command.add_argument(argument, **options)
    return parser


@with_metavar("DAY")
def _parse_day(text: str) -> int:
    try:
        return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise ValueError(f"expected a day such as 2025-01-31, got {text!r}") from None


def _poll(poller_settings: PollerSettings, given: Arguments) -> int:
    poller_settings = commands.select_clusters(poller_settings, given)
    with commands.open_for_writing(poller_settings) as engine:
        service = PollerService(poller_settings, engine)
        if given.once:
            # Poll all of them, even if one fails.
            done = [poller.run_cycle() for poller in service.pollers]
            if service.sender:
                service.sender.send_due()
            return 0 if all(done) else 1
        serve(service)
    return 0


def _check_config(poller_settings: PollerSettings) -> int:
    errors = list(problems(poller_settings))
    try:
        with commands.open_for_reading(poller_settings) as engine:
            if not errors:
                service = PollerService(poller_settings, engine)
                for poller in service.pollers:
                    errors += poller.check()
                errors += service.sender.check() if service.sender else []
    except DatabaseError as error:
        errors.append(str(error))
    for line in errors:
        print(f"batchjob_stats_db: {line}", file=sys.stderr)
    if not errors:
        print("ok")
    return 2 if errors else 0


_SINCE = {"type": _parse_day, "help": "First day, such as 2025-01-31."}
_CLUSTER = {"help": "Only this cluster."}
_Command = Callable[[PollerSettings, Arguments], int]
_COMMANDS: Sequence[tuple[str, _Command, str, Mapping[str, Mapping[str, Any]]]] = (
    ("run", _poll, "Poll until stopped (default).", {}),
    ("migrate", commands.migrate, "Create the tables, or upgrade them to the current schema.", {}),
    ("backfill", commands.backfill, "Read the schedulers' accounting from a given day.", {
        "--since": {"required": True, **_SINCE}, "--cluster": _CLUSTER,
    }),
    ("recompute", commands.recompute_usage, "Measure jobs again and recompute the daily sums.", {
        "--since": {"required": True, **_SINCE},
        "--until": {"type": _parse_day, "help": "Day after the last, such as 2025-03-01."},
        "--cluster": _CLUSTER,
    }),
    ("backup", commands.back_up, "Back up the database while it is in use.", {
        "target": {"type": Path, "nargs": "?", "help": "A directory; or a file, whose name ends in "
                   ".db or .dump (default: backup.directory)."},
        "--keep": {"type": integer, "help": "Number of backups to keep in the directory (default: "
                   "backup.keep in backup.directory, all elsewhere)."},
    }),
    ("check", commands.check_records, "Check for damage, gaps and orphaned rows.", {}),
    ("export", commands.export, "Write job records to standard output.", {
        "--format": {"choices": ("json", "csv", "parquet"), "default": "json",
                     "help": "Output format (default: json)."},
        "--output": {"type": Path, "metavar": "FILE",
                     "help": "Parquet file to write (with --format parquet)."},
        "--since": {"default": 0, **_SINCE}, "--cluster": _CLUSTER,
    }),
    ("import", commands.import_lines, "Read exported JSON lines.", {
        "file": {"type": Path, "help": "File that export wrote."},
    }),
    ("anonymise", commands.anonymise, "Replace the users of ended jobs with pseudonyms.", {
        "--key-file": {"required": True, "metavar": "FILE", "help": "File with a secret; the same "
                       "secret gives the same pseudonyms."},
        "--older-than": {"type": duration,
                         "help": "Only jobs that ended longer ago than this, such as 365d."},
    }),
    ("forget", commands.forget, "Delete all data about a user.", {
        "--user": {"required": True, "help": "Login name of the user."}, "--cluster": _CLUSTER,
    }),
)  # fmt: skip
"""The commands with their arguments."""


if __name__ == "__main__":
    sys.exit(main())

"""`batchjob delete`: deletes a run's record, samples and output, and its row in the database.

Only the poller writes rows of the database: it finds `<data>/runs/<uuid>.deleted` and deletes the
row. That file is written first, so that an interruption leaves nothing half deleted.
"""

import os
import shutil
import sys
from pathlib import Path

from batchjob.local_runs import history
from batchjob.local_runs.directory import LOGS, RUNS, SAMPLES, data_directory
from batchjob.local_runs.record import TOMBSTONE, Run
from batchjob.local_runs.user_files import touch_own
from batchjob.runtime.settings import SettingsError
from batchjob_cli.client import remote_runs
from batchjob_cli.client.connect import find_run, run_parser
from batchjob_cli.client.problems import RefusedError


def run(arguments: list[str]) -> int:
    """Delete one run, or all that have ended. Raises SettingsError."""
    parser = run_parser(
        "delete", "Deletes a run: record, samples and output. It must have ended.", "?"
    )
    add = parser.add_argument
    add("--all-ended", action="store_true", help="delete all of your runs that have ended")
    add("--yes", "-y", action="store_true", help="do not ask for confirmation")
    given = parser.parse_args(arguments)
    if (given.job is None) != given.all_ended:
        raise SettingsError("expected a JOB, or --all-ended")
    if given.server:
        if given.all_ended:
            _confirm(f"Delete all of your ended runs on {given.server}?", given.yes)
        return remote_runs.delete(given)
    if given.job is not None:
        data, chosen = find_run(given)
        if chosen.state.is_live:
            raise RefusedError(f"run {chosen.jobid} has not ended; end it with batchjob stop")
        return _delete_runs(data, [chosen])
    data = data_directory(given.data)
    own = [run for run in history.all_runs(data) if run.uid == os.geteuid()]
    ended = [run for run in own if not run.state.is_live]
    if ended:
        word = "run that has" if len(ended) == 1 else "runs that have"
        _confirm(f"Delete {len(ended)} {word} ended, with samples and output?", given.yes)
    return _delete_runs(data, ended, f", {len(own) - len(ended)} skipped (not ended)")


def _confirm(question: str, yes: bool) -> None:
    """Ask for confirmation on a terminal; raises SettingsError, RefusedError."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError("--all-ended: cannot ask for confirmation here; use --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("nothing was deleted")


def _delete_runs(data: Path, runs: list[Run], more: str = "") -> int:
    failed = 0
    for each in runs:
        try:
            delete_run(data, each)
        except OSError as error:
            failed += 1
            where = error.filename or data
            print(f"batchjob: run {each.jobid}: {where}: {error.strerror}", file=sys.stderr)
    print(f"batchjob: {len(runs) - failed} deleted{more}")
    return 1 if failed else 0


def delete_run(data: Path, run: Run) -> None:
    """Delete a run that has ended; raises OSError."""
    touch_own(data / RUNS / f"{run.jobid}{TOMBSTONE}")
    for kind in (LOGS, SAMPLES):
        directory = data / kind / run.jobid
        if directory.is_dir():
            shutil.rmtree(directory)
    (data / RUNS / f"{run.jobid}.json").unlink(missing_ok=True)

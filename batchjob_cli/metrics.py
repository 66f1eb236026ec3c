"""`batchjob metrics`: prints a job's samples, from the first one on, and new ones as they come."""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batchjob.local_runs import history
from batchjob.local_runs import record as runs
from batchjob.local_runs.directory import RUNS, SAMPLES, data_directory
from batchjob.quantities.sample import JobSample, SampleHeader
from batchjob.runtime.settings import Parser, SettingsError, argument
from batchjob.runtime.times import past_time
from batchjob.runtime.values import integer
from batchjob_cli.client import curves
from batchjob_cli.client.answer import beginning, not_ours, rows_in
from batchjob_cli.client.connect import add_arguments, server
from batchjob_cli.client.problems import NotFoundError
from batchjob_cli.client.remote import Server
from batchjob_cli.client.sample_table import TYPES, heading, row
from batchjob_cli.client.table import add_zone, show, written
from batchjob_stats_db.samples.folder import NoSuchJob, matching
from batchjob_stats_db.samples.format import values
from batchjob_stats_db.samples.rates import document
from batchjob_stats_db.samples.replay import Replay, SamplePair

_PAUSE_SECONDS = 0.5


def run(arguments: list[str]) -> int:
    """Print samples until the job has ended. Raises SettingsError."""
    given = _parser().parse_args(arguments)
    if given.server:
        return _of_server(given)
    data = data_directory(given.data)
    samples = Path(given.samples).absolute() if given.samples else data / SAMPLES
    try:
        replay = Replay(samples, _jobid(samples, data / RUNS, given.job))
    except OSError as error:
        raise SettingsError(f"{error.filename}: {error.strerror}") from error
    try:
        _print(given, replay)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise SettingsError(f"{error.filename}: {error.strerror}") from error
    finally:
        replay.close()
    for damage in replay.damages:
        print(f"batchjob metrics: {damage}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="batchjob metrics", allow_abbrev=False,
        description="Prints the samples of a job from its start and follows them until it ends.",
    )  # fmt: skip
    made.add_argument(
        "job", metavar="JOB", help="id of a job, or a prefix of it; for a run also its name"
    )
    made.add_argument(
        "--type", choices=TYPES, default="overview", help="measurements to show (default: overview)"
    )
    made.add_argument(
        "--since",
        **argument(past_time),
        help="only samples after this time: 10m (ago), 22:30, 2026-04-04T22:30",
    )
    made.add_argument("--until", **argument(past_time), help="only up to this time")
    made.add_argument("--limit", **argument(integer), help="only the latest N samples")
    add_zone(made)
    made.add_argument("--json", action="store_true", help="print each sample as a JSON object")
    made.add_argument("--no-follow", dest="follow", action="store_false",
                      help="stop at the latest sample")  # fmt: skip
    add_arguments(made)
    made.add_argument("--samples", default="", metavar="DIRECTORY",
                      help="directory of the samples")  # fmt: skip
    return made


def _of_server(given: argparse.Namespace) -> int:
    """The same from a server that keeps samples. Raises SettingsError."""
    parameters = {
        "since": None if given.since is None else int(given.since),
        "until": None if given.until is None else int(given.until),
        "follow": "true" if given.follow and given.limit is None else None,
    }
    asker = server(given)
    run = asker.run_id(given.job)
    jobid = run or given.job
    # A run that has just started is not in the list of jobs yet.
    path = f"{'runs' if run else 'jobs'}/{quote(jobid, safe='')}/samples"
    first = asker(path, {"limit": 1})
    if first.status == 503 or (first.status == 200 and not first.body):
        found_rows = list(curves.rows(asker, jobid, given.type, given.since, given.until))
        if not (run or found_rows or _is_there(asker, jobid)):
            raise NotFoundError(f"there is no job {jobid}, or none that you may see")
        if found_rows or first.status == 503:
            return _of_time_series(given, found_rows)
    if not given.json:
        print(heading(given.type), flush=True)
    found: Iterator[SamplePair] = _steps(asker.stream(path, parameters))
    if given.limit is not None:
        found = iter(deque(found, maxlen=given.limit))
    try:
        for step in found:
            print(json.dumps(document(step)) if given.json else row(given.type, step, given.zone))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    return 0


def _is_there(asker: Server, jobid: str) -> bool:
    return bool(rows_in(asker(f"jobs/{quote(jobid, safe='')}", {})))


def _of_time_series(given: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    """For a server without samples of the job, but with a time series database."""
    chosen = rows if given.limit is None else rows[max(0, len(rows) - given.limit) :]
    if given.json:
        print("".join(f"{json.dumps(row)}\n" for row in chosen), end="")
    else:
        show(written(curves.columns(given.type, given.zone), chosen))
    return 0


def _steps(stream: Iterator[bytes]) -> Iterator[SamplePair]:
    """Samples from lines that arrive in arbitrary parts."""
    before: dict[str, JobSample] = {}
    rest = b""
    for text in stream:
        *lines, rest = (rest + text).split(b"\n")
        for line in lines:
            try:
                made = json.loads(line)
                sample, node = JobSample(made["time"], values(made)), made.get("node", "")
            except (ValueError, KeyError, TypeError, AttributeError):
                raise not_ours(beginning(line)) from None
            yield SamplePair(
                SampleHeader("", made["jobid"], "", node, 0.0), sample, before.get(node)
            )
            before[node] = sample


def _jobid(samples: Path, records: Path, text: str) -> str:
    """The id of the job: one with samples, or a local run that has none yet."""
    known = [path.stem for path in records.glob("[!.]*.json")] if records.is_dir() else []
    try:
        jobid = matching(samples, text, known)
    except NoSuchJob as error:
        try:
            jobid = history.job(text, str(records.parent)).jobid
        except history.SeveralRuns as several:
            raise NotFoundError(str(several)) from several
        except (history.UnknownRun, OSError):
            raise NotFoundError(str(error)) from error
    if jobid in known and not (samples / jobid).is_dir():
        _wait(samples / jobid, records / f"{jobid}.json")
    return jobid


def _wait(folder: Path, record: Path) -> None:
    """Wait for the first sample of an active run; raises SettingsError if none will come."""
    deadline = time.monotonic() + 10
    while not folder.is_dir():
        try:
            lives = runs.alive(runs.read(record))
        except (OSError, runs.RunFileError):
            lives = False
        if not lives or time.monotonic() > deadline:
            raise NotFoundError(f"job {folder.name}: no samples were recorded")
        time.sleep(_PAUSE_SECONDS)


def _print(given: argparse.Namespace, replay: Replay) -> None:
    if not given.json:
        print(heading(given.type), flush=True)
    found: Iterator[SamplePair] = _within(given, replay)
    if given.limit is not None:
        found = iter(deque(found, maxlen=given.limit))
    _put(given, found)
    while given.follow and not replay.over(time.time()):
        if given.until is not None and time.time() > given.until:
            return
        time.sleep(_PAUSE_SECONDS)
        _put(given, _within(given, replay))


def _within(given: argparse.Namespace, replay: Replay) -> Iterator[SamplePair]:
    return (
        step
        for step in replay.read()
        if (given.since is None or step.sample.at >= given.since)
        and (given.until is None or step.sample.at <= given.until)
    )


def _put(given: argparse.Namespace, found: Iterator[SamplePair]) -> None:
    for step in found:
        print(json.dumps(document(step)) if given.json else row(given.type, step, given.zone))
    sys.stdout.flush()

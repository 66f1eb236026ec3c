"""`batchjob metrics`: prints a job's samples from the first one on, and follows new ones."""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from batchjob.local_runs import history
from batchjob.local_runs import record as runs
from batchjob.local_runs.directory import RUNS, SAMPLES, data_directory
from batchjob.quantities.sample import JobSample, SampleHeader
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.settings import Parser
from batchjob.runtime.values import integer
from batchjob_cli.client.answer import (
    foreign_answer_error,
    parse_rows,
    quote_beginning,
    require_success,
)
from batchjob_cli.client.connect import add_arguments, add_window, named_server, window_parameters
from batchjob_cli.client.problems import NotFoundError, files_named
from batchjob_cli.client.sample_table import TYPES, heading, row
from batchjob_cli.client.table import add_zone, terminal_width
from batchjob_stats_db.samples.file import flatten_values
from batchjob_stats_db.samples.folder import find_jobid
from batchjob_stats_db.samples.replay import Replay, SamplePair, sample_document

_PAUSE_SECONDS = 0.5


def run(arguments: list[str]) -> int:
    """Print samples, and follow them until the job has ended if asked to. Raises SettingsError."""
    given = _parser().parse_args(arguments)
    if given.follow is None:
        given.follow = sys.stdout.isatty()
    if given.server:
        return _print_from_server(given)
    data = data_directory(given.data)
    samples = Path(given.samples).absolute() if given.samples else data / SAMPLES
    with (
        files_named(),
        closing(Replay(samples, _find_jobid(samples, data / RUNS, given.job))) as replay,
    ):
        _print_samples(given, replay)
    for damage in replay.damages:
        print(f"batchjob metrics: {damage}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="batchjob metrics",
        allow_abbrev=False,
        description="Prints the samples of a job from its start; on a terminal, until it ends.",
    )
    parser.add_argument(
        "job", metavar="JOB", help="id of a job, or a prefix of it; for a run also its name"
    )
    parser.add_argument(
        "--type", choices=TYPES, default="overview", help="measurements to show (default: overview)"
    )
    add_window(parser, "samples")
    parser.add_argument("--limit", type=integer, help="only the latest N samples")
    add_zone(parser)
    parser.add_argument("--json", action="store_true", help="print each sample as a JSON object")
    parser.add_argument(
        "-f", "--follow", action=argparse.BooleanOptionalAction,
        help="wait for more samples until the job ends (default: only on a terminal)",
    )  # fmt: skip
    add_arguments(parser)
    parser.add_argument(
        "--samples", default="", metavar="DIRECTORY", help="directory of the samples"
    )
    return parser


def _print_from_server(given: argparse.Namespace) -> int:
    follow = "true" if given.follow and given.limit is None else None
    parameters = {**window_parameters(given), "follow": follow}
    server = named_server(given)
    run = server.find_run_id(given.job)
    jobid = run or given.job
    # A run that has just started is not in the list of jobs yet.
    path = f"{'runs' if run else 'jobs'}/{quote(jobid, safe='')}/samples"
    require_success(server(path, {"limit": 1}))
    if not (run or parse_rows(server(f"jobs/{quote(jobid, safe='')}", {}))):
        raise NotFoundError(f"job {jobid} does not exist, or is not yours to see")
    _print_table(given, _parse_samples(server.stream(path, parameters)))
    return 0


def _parse_samples(stream: Iterator[bytes]) -> Iterator[SamplePair]:
    """Parse samples from lines that arrive in arbitrary pieces."""
    before: dict[str, JobSample] = {}
    rest = b""
    for text in stream:
        *lines, rest = (rest + text).split(b"\n")
        for line in lines:
            try:
                parsed = parse_json(line)
                node = parsed.get("node", "")
                sample = JobSample(parsed["time"], flatten_values(parsed))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise foreign_answer_error(quote_beginning(line)) from None
            yield SamplePair(
                SampleHeader("", parsed["jobid"], "", node, 0.0), sample, before.get(node)
            )
            before[node] = sample


def _find_jobid(samples: Path, records: Path, text: str) -> str:
    """The id of the job: one with samples, or a local run that has none yet."""
    known = [path.stem for path in records.glob("[!.]*.json")] if records.is_dir() else []
    try:
        jobid = find_jobid(samples, text, known)
    except ValueError as error:
        try:
            jobid = history.job(text, str(records.parent)).jobid
        except history.SeveralRuns as several:
            raise NotFoundError(str(several)) from several
        except (history.UnknownRun, OSError):
            raise NotFoundError(str(error)) from error
    if jobid in known and not (samples / jobid).is_dir():
        _wait_for_samples(samples / jobid, records / f"{jobid}.json")
    return jobid


def _wait_for_samples(folder: Path, record: Path) -> None:
    """Wait for the first sample of an active run; raises SettingsError if none will come."""
    deadline = time.monotonic() + 10
    while not folder.is_dir():
        try:
            lives = runs.is_supervisor_alive(runs.read(record))
        except (OSError, runs.RunFileError):
            lives = False
        if not lives or time.monotonic() > deadline:
            raise NotFoundError(f"job {folder.name}: no samples were recorded")
        time.sleep(_PAUSE_SECONDS)


def _print_samples(given: argparse.Namespace, replay: Replay) -> None:
    _print_table(given, _samples_in_window(given, replay))
    while given.follow and not replay.is_over(time.time()):
        if given.until is not None and time.time() > given.until:
            return
        time.sleep(_PAUSE_SECONDS)
        _print_rows(given, _samples_in_window(given, replay))


def _samples_in_window(given: argparse.Namespace, replay: Replay) -> Iterator[SamplePair]:
    return (
        pair
        for pair in replay.read()
        if (given.since is None or pair.sample.at >= given.since)
        and (given.until is None or pair.sample.at <= given.until)
    )


def _print_table(given: argparse.Namespace, samples: Iterator[SamplePair]) -> None:
    if not given.json:
        print(heading(given.type, terminal_width()), flush=True)
    if given.limit is not None:
        samples = iter(deque(samples, maxlen=given.limit))
    _print_rows(given, samples)


def _print_rows(given: argparse.Namespace, samples: Iterator[SamplePair]) -> None:
    width = terminal_width()
    for pair in samples:
        line = row(given.type, pair, given.zone, width)
        print(json.dumps(sample_document(pair)) if given.json else line, flush=True)

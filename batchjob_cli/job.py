"""`batchjob job`: the report of one job."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batchjob.local_runs import history
from batchjob.local_runs.directory import data_directory
from batchjob.runtime.formatting import size
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.times import local_zone
from batchjob.schedulers import registry
from batchjob.schedulers.states import JobState
from batchjob.schedulers.submission import NextRequest, Submission
from batchjob_cli.client import connect
from batchjob_cli.client.answer import parse_rows, require_success
from batchjob_cli.client.problems import NotFoundError
from batchjob_cli.client.table import add_zone, fold, print_text, terminal_width

_LATEST = 50  # jobs of a name, among which one may have ended
_MAX_LISTED = 10  # maximum jobs listed if several have the name


def run(arguments: list[str]) -> int:
    parser = connect.command_parser(
        "job", "Shows what a job used, how efficiently it used its resources, and what to improve."
    )
    add = parser.add_argument
    add(
        "id",
        metavar="JOB",
        nargs="?",
        help="job id in the notation of the scheduler, or its name; for a local run a prefix of "
        "its id is enough; with --script FILE, the last job of the script's name is the default",
    )
    add("--cluster", help="cluster, if several have a job with this id")
    forms = ("text", "json", "markdown", "html", "seff")
    add("--format", choices=forms, default="text", help="output format (default: text)")
    add(
        "--script", nargs="?", const="", metavar="FILE",
        help="print FILE, a batch script, with the request that the report advises; without FILE, "
        "print the job's own script, if the site keeps it",
    )  # fmt: skip
    add_zone(parser)
    given = parser.parse_args(arguments)
    if given.id is None and given.script:
        given.id = _last_job_of(given, _read_script(given.script))
    if not (given.id or "").strip():
        raise SettingsError("JOB: expected an id or a name")
    query, jobid = connect.reachable_server(given), find_jobid(given)
    if given.script == "":
        return _print_script(given.id, _query_scripts(given, query, jobid))
    if given.script is not None:
        given.format = "json"
        return _print_corrected(given.script, query_report(given, query, jobid))
    text = query_report(given, query, jobid)
    if given.format in ("text", "markdown"):
        width = terminal_width() if given.format == "text" else None
        print_text(fold(text.rstrip("\n"), width))
    else:
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def query_report(given: argparse.Namespace, query: connect.QueryFunction | None, jobid: str) -> str:
    """The formatted report; an unknown job id may be a name, or the id of an array of one task."""
    try:
        return _report_of(given, query, jobid)
    except NotFoundError:
        found_jobid = _find_by_name(given, jobid)
        if found_jobid in (None, jobid):
            raise
    return _report_of(given, query, found_jobid)


def _report_of(given: argparse.Namespace, query: connect.QueryFunction | None, jobid: str) -> str:
    zone = "UTC" if given.zone else local_zone()
    if query is None:
        from batchjob_cli.client import local_job

        data = data_directory(given.data)
        return local_job.report(data, jobid, given.cluster, given.format, zone)
    parameters = _parameters(given) | {"format": given.format, "zone": zone}
    answer = query(f"jobs/{quote(jobid, safe='')}/report", parameters)
    return require_success(answer).body.decode()


def _find_by_name(given: argparse.Namespace, name: str) -> str | None:
    """The id of the job with this name, or None. Raises NotFoundError if there are several."""
    if given.server and (run := connect.named_server(given).find_run_id(name)):
        return run
    limit = _MAX_LISTED + 1
    for parameter, more in (("name", ""), ("array_jobid", f"; batchjob jobs --workflow {name}")):
        wanted = {parameter: name, "limit": limit, **_parameters(given)}
        pages = connect.job_pages(given, wanted, limit, ("jobid", "state"))
        ids = {str(row["jobid"]): str(row["state"]).lower() for page in pages for row in page}
        if len(ids) == 1:
            return next(iter(ids))
        if ids:
            shown = ", ".join(f"{jobid} ({state})" for jobid, state in list(ids.items())[:-1])
            last = " and more" if len(ids) == limit else ", {} ({})".format(*list(ids.items())[-1])
            raise NotFoundError(f"{name!r} matches several jobs: {shown}{last}{more}")
    return None


def _query_scripts(
    given: argparse.Namespace, query: connect.QueryFunction | None, jobid: str
) -> Sequence[Mapping[str, Any]]:
    """Scripts of its runs, the latest first, without runs that have none."""
    if query is None:
        from batchjob_cli.client import local_job

        kept = local_job.scripts(data_directory(given.data), jobid, given.cluster)
        return [dict(row) for row in kept]
    answer = query(f"jobs/{quote(jobid, safe='')}/script", _parameters(given))
    return parse_rows(answer, ("script", "whole_bytes"))


def _read_script(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--script: {file}: {reason(error)}") from error


def _last_job_of(given: argparse.Namespace, script: str) -> str:
    """The id of the last ended job with the script's name: that in it, else that of its file."""
    names = [name for each in _submissions() for name in each.job_names(script)]
    name = names[0] if names else Path(given.script).name
    wanted = {"name": name, "limit": _LATEST, **_parameters(given)}
    for page in connect.job_pages(given, wanted, _LATEST, ("jobid", "state")):
        for row in page:
            if not JobState(row["state"]).is_live:
                return str(row["jobid"])
    raise NotFoundError(f"no job called {name!r} has ended; expected JOB --script FILE")


def _submissions() -> Iterator[Submission]:
    return filter(None, map(registry.submission_of, registry.SOURCES))


def _check_directives(file: str, script: str, submission: Submission) -> None:
    """Refuse a script of another scheduler, whose directives would stay beside the added ones."""
    for other in _submissions():
        if other.has_directives(script) and not submission.has_directives(script):
            expected = f"expected {submission.directive}, as the job's scheduler reads"
            raise SettingsError(f"--script: {file} has lines of {other.directive}; {expected}")


def _print_corrected(file: str, report: str) -> int:
    """Print a batch script with the request of a report, and say on stderr how it was reckoned."""
    script, again = _read_script(file), parse_json(report)["resubmission"]
    if again is None:
        sys.stdout.write(script)
        print("batchjob: nothing to change: the report advises no other request", file=sys.stderr)
        return 0
    submission, request = registry.submission_of(again["source"]), NextRequest(**again["request"])
    assert submission is not None  # only jobs of such schedulers have a resubmission
    _check_directives(file, script, submission)
    sys.stdout.write(submission.corrected_script(script, request))
    print(f"batchjob: {again['basis']}", file=sys.stderr)
    for what in submission.unplaced(script, request):
        print(
            f"batchjob: {what} are not changed: the script does not say how it requests them",
            file=sys.stderr,
        )
    return 0


def _parameters(given: argparse.Namespace) -> dict[str, str]:
    return {"cluster": given.cluster} if given.cluster else {}


def _print_script(name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    if not rows:
        raise NotFoundError(f"there is no batch script of job {name} that you may see")
    print_text(rows[0]["script"].rstrip("\n"))
    if len(rows[0]["script"].encode()) < rows[0]["whole_bytes"]:
        print(
            f"batchjob: truncated; the script has {size(rows[0]['whole_bytes'])}", file=sys.stderr
        )
    return 0


def find_jobid(given: argparse.Namespace) -> str:
    """The id of a run of this machine by its name or a prefix of its id; anything else unchanged.

    A job of a cluster whose id is the text itself comes before a prefix.
    """
    text = str(given.id)
    if given.server:
        return text
    try:
        run_id = history.job(text, given.data).jobid
    except history.SeveralRuns as error:
        if connect.runs_of_job(given, text, given.cluster, ("jobid",)):
            return text
        raise NotFoundError(str(error)) from error
    except (history.UnknownRun, OSError):
        # A scheduler's job; the query that follows reports errors.
        return text
    is_prefix = run_id.startswith(text)
    is_jobid = is_prefix and connect.runs_of_job(given, text, given.cluster, ("jobid",))
    return text if is_jobid else run_id

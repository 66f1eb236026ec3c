"""`batchjob job`: the report of one job."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from batchjob.local_runs import history
from batchjob.local_runs.directory import data_directory
from batchjob.runtime.formatting import size
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.times import local_zone
from batchjob_cli.client.answer import parse_rows, require_success
from batchjob_cli.client.connect import (
    QueryFunction,
    command_parser,
    job_pages,
    named_server,
    reachable_server,
)
from batchjob_cli.client.problems import NotFoundError
from batchjob_cli.client.table import add_zone, print_text

_MAX_LISTED = 10  # maximum jobs listed if several have the name


def run(arguments: list[str]) -> int:
    parser = command_parser(
        "job", "Shows what a job used, how efficiently it used its resources, and what to improve."
    )
    add = parser.add_argument
    add(
        "id",
        metavar="JOB",
        help="job id in the notation of the scheduler, or its name; for a local run a prefix of "
        "its id is enough",
    )
    add("--cluster", help="cluster, if several have a job with this id")
    add("--format", choices=("text", "json", "markdown", "html", "seff"), default="text",
        help="output format (default: text)")  # fmt: skip
    add(
        "--script", action="store_true", help="print its batch script instead, if the site keeps it"
    )
    add_zone(parser)
    given = parser.parse_args(arguments)
    if not given.id.strip():
        raise SettingsError("JOB: expected an id or a name")
    query, jobid = reachable_server(given), find_jobid(given)
    if given.script:
        return _print_script(given.id, _query_scripts(given, query, jobid))
    text = query_report(given, query, jobid)
    if given.format in ("text", "markdown"):
        print_text(text.rstrip("\n"))
    else:
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def query_report(given: argparse.Namespace, query: QueryFunction | None, jobid: str) -> str:
    """The formatted report; an unknown job id may be a name, or the id of an array of one task."""
    try:
        return _report_of(given, query, jobid)
    except NotFoundError:
        found_jobid = _find_by_name(given, jobid)
        if found_jobid in (None, jobid):
            raise
    return _report_of(given, query, found_jobid)


def _report_of(given: argparse.Namespace, query: QueryFunction | None, jobid: str) -> str:
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
    if given.server and (run := named_server(given).find_run_id(name)):
        return run
    limit = _MAX_LISTED + 1
    for parameter, more in (("name", ""), ("array_jobid", f"; batchjob jobs --workflow {name}")):
        wanted = {parameter: name, "limit": limit, **_parameters(given)}
        pages = job_pages(given, wanted, limit, ("jobid", "state"))
        ids = {str(row["jobid"]): str(row["state"]).lower() for page in pages for row in page}
        if len(ids) == 1:
            return next(iter(ids))
        if ids:
            shown = ", ".join(f"{jobid} ({state})" for jobid, state in list(ids.items())[:-1])
            last = " and more" if len(ids) == limit else ", {} ({})".format(*list(ids.items())[-1])
            raise NotFoundError(f"{name!r} matches several jobs: {shown}{last}{more}")
    return None


def _query_scripts(
    given: argparse.Namespace, query: QueryFunction | None, jobid: str
) -> Sequence[Mapping[str, Any]]:
    """Scripts of its runs, the latest first, without runs that have none."""
    if query is None:
        from batchjob_cli.client import local_job

        kept = local_job.scripts(data_directory(given.data), jobid, given.cluster)
        return [dict(row) for row in kept]
    answer = query(f"jobs/{quote(jobid, safe='')}/script", _parameters(given))
    return parse_rows(answer, ("script", "whole_bytes"))


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
    """The id of a run of this machine by its name; anything else unchanged."""
    if given.server:
        return str(given.id)
    try:
        return history.job(given.id, given.data).jobid
    except history.SeveralRuns as error:
        raise NotFoundError(str(error)) from error
    except (history.UnknownRun, OSError):
        # A scheduler's job; the query that follows reports errors.
        return str(given.id)

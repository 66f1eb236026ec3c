"""`batchjob job`: the report of one job."""

import argparse
import json
import sys
from http import HTTPStatus
from urllib.parse import quote

from batchjob.local_runs import history
from batchjob.runtime.formatting import size
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.times import local_zone
from batchjob_cli.client.connect import ApiReply, Ask, Parameters, asked, good, parser, server
from batchjob_cli.client.problems import NotFoundError
from batchjob_cli.client.table import add_zone, show


def run(arguments: list[str]) -> int:
    """Print the report; the exit status. Raises SettingsError."""
    made = parser("job", "What a job used, how well it used what it had, and what to do better.")
    add = made.add_argument
    add(
        "id",
        help="as the scheduler writes it; of a local run the first characters or its name will do",
    )
    add("--cluster", help="where several clusters have jobs of this id")
    add("--format", choices=("text", "json", "markdown", "html"), default="text")
    add("--script", action="store_true", help="its batch script instead, where the site keeps it")
    add_zone(made)
    given = made.parse_args(arguments)
    if not given.id.strip():
        raise SettingsError("JOB: expected an id or a name")
    parameters = {"format": given.format, "zone": "UTC" if given.zone else local_zone()}
    if given.cluster:
        parameters["cluster"] = given.cluster
    with asked(given) as ask:
        if given.script:
            return _script(given, ask)
        answer = good(_report(given, ask, parameters))
    text = answer.body.decode()
    if given.format in ("text", "markdown"):
        show(text.rstrip("\n"))
    else:
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _report(given: argparse.Namespace, ask: Ask, parameters: Parameters) -> ApiReply:
    """The answer about a job; what is no job's id may be the name of a run on the server."""
    jobid = _jobid(given)
    answer = ask(f"jobs/{quote(jobid, safe='')}/report", parameters)
    if answer.status != HTTPStatus.NOT_FOUND or not given.server:
        return answer
    named = server(given).run_id(jobid)
    return answer if named == jobid else ask(f"jobs/{named}/report", parameters)


def _script(given: argparse.Namespace, ask: Ask) -> int:
    """Print the script of the latest run."""
    parameters = {"cluster": given.cluster} if given.cluster else {}
    answer = good(ask(f"jobs/{quote(_jobid(given), safe='')}/script", parameters))
    rows = json.loads(answer.body)
    if not rows:
        raise NotFoundError(f"there is no batch script of job {given.id} that you may see")
    show(rows[0]["script"].rstrip("\n"))
    if len(rows[0]["script"].encode()) < rows[0]["whole_bytes"]:
        print(f"batchjob: its beginning; it has {size(rows[0]['whole_bytes'])}", file=sys.stderr)
    return 0


def _jobid(given: argparse.Namespace) -> str:
    """The id of a run of this machine by its name; anything else as it is."""
    if given.server:
        return str(given.id)
    try:
        return history.job(given.id, given.data).jobid
    except (history.UnknownRun, OSError):  # a scheduler's job; who answers will say what is wrong
        return str(given.id)

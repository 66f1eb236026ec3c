"""`batchjob job`: the report of one job."""

import argparse
import sys
from urllib.parse import quote

from batchjob.local_runs import history
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.times import local_zone
from batchjob_cli.client.connect import asked, good, parser
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
    add_zone(made)
    given = made.parse_args(arguments)
    if not given.id.strip():
        raise SettingsError("JOB: expected an id or a name")
    parameters = {"format": given.format, "zone": "UTC" if given.zone else local_zone()}
    if given.cluster:
        parameters["cluster"] = given.cluster
    with asked(given) as ask:
        answer = good(ask(f"jobs/{quote(_jobid(given), safe='')}/report", parameters))
    text = answer.body.decode()
    if given.format in ("text", "markdown"):
        show(text.rstrip("\n"))
    else:
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _jobid(given: argparse.Namespace) -> str:
    """The id of a run of this machine by its name; anything else as it is."""
    if given.server:
        return str(given.id)
    try:
        return history.job(given.id, given.data).jobid
    except (history.UnknownRun, OSError):  # a scheduler's job; who answers will say what is wrong
        return str(given.id)

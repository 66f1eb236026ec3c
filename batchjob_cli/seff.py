"""`batchjob seff`: the efficiency of one job in the lines of Slurm's seff."""

import argparse
import time

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.settings import SettingsError
from batchjob_cli.client.connect import command_parser, reachable_server
from batchjob_cli.client.problems import NotFoundError, UnreachableError
from batchjob_cli.client.table import add_zone, fold, print_text, terminal_width
from batchjob_cli.job import find_jobid, query_report

_SECONDS_BETWEEN_LOOKS = 3.0


def run(arguments: list[str]) -> int:
    parser = command_parser(
        "seff",
        "Shows how efficiently a job used its resources, in the lines of Slurm's seff, "
        "followed by GPUs, energy and advice.",
    )
    add = parser.add_argument
    add(
        "id",
        metavar="JOB",
        help="job id in the notation of the scheduler, such as 123, 123_4 or 123+1",
    )
    add("--cluster", help="cluster, if several have a job with this id")
    add(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait until the job has ended and its figures are final, but no longer than this",
    )
    add("-n", "--no-color", action="store_true", help="option of seff; the output has no colors")
    add_zone(parser)
    given = parser.parse_args(arguments)
    if not given.id.strip():
        raise SettingsError("JOB: expected an id")
    _wait_for_final_figures(given)
    given.format = "seff"
    report = query_report(given, reachable_server(given), find_jobid(given)).rstrip("\n")
    print_text(fold(report, terminal_width()))
    return 0


def _wait_for_final_figures(given: argparse.Namespace) -> None:
    """Return when the figures are final, or the time to wait is over.

    A job that is not on record, or a server that does not answer, may come yet.
    """
    given.format = "json"
    deadline = time.monotonic() + given.wait
    while (left := deadline - time.monotonic()) > 0:
        try:
            report = parse_json(query_report(given, reachable_server(given), find_jobid(given)))
            if report["basis"]["final"] and not report["interim"]:
                return
        except (NotFoundError, UnreachableError):
            pass
        time.sleep(min(left, _SECONDS_BETWEEN_LOOKS))

"""Chooses the source of a command's data: a server over HTTP, or this machine's database.

Both give the same answers: lists, reports and scripts are made by the same functions, here without
the web server, whose libraries take longer to import than an answer to compute.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from batchjob.local_runs.directory import LOCAL, data_directory
from batchjob.runtime.settings import Parser, SettingsError
from batchjob.runtime.times import past_time
from batchjob.secret_files import SecretFileError, read_secret
from batchjob_cli.client.answer import next_page_link, parse_rows
from batchjob_cli.client.problems import NotFoundError, files_named
from batchjob_cli.client.running_up import find_running_up

if TYPE_CHECKING:
    from batchjob.local_runs.record import Run
    from batchjob.runtime.http_client import HttpReply
    from batchjob_cli.client.remote import Server

_READ_SECONDS = 10.0  # `up` reads the records of runs every few seconds
_PAUSE_SECONDS = 0.1
SERVER, TOKEN = "BATCHJOB_SERVER", "BATCHJOB_TOKEN"
CERT, KEY, CA = "BATCHJOB_CERT_FILE", "BATCHJOB_KEY_FILE", "BATCHJOB_CA_FILE"

Parameters = Mapping[str, Any]


QueryFunction = Callable[[str, Parameters], "HttpReply"]
"""Path below /api/v1, or the `next` link of a response, and parameters -> response."""


# Option, value, environment variable of the default, and help.
_ARGUMENTS = (
    ("--server", "URL", SERVER,
     "URL of the server, such as https://jobs.example.org (default: ${})"),
    ("--token-file", "FILE", "",
     f"file with the token for the server (default: the token in ${TOKEN})"),
    ("--cert", "FILE", CERT, "client certificate for the server (PEM) (default: ${})"),
    ("--key", "FILE", KEY,
     "key of the client certificate, unless it is in the same file (default: ${})"),
    ("--ca-file", "FILE", CA, "CA certificates to trust (PEM) (default: ${})"),
    ("--data", "DIRECTORY", "", "data directory of the local database "
     "(default: $BATCHJOB_DATA or ~/.local/state/batchjob)"),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server", "Default: the local database.")
    for flag, value, variable, text in _ARGUMENTS:
        default = os.environ.get(variable, "")
        group.add_argument(flag, default=default, metavar=value, help=text.format(variable))


def add_window(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --since and --until, for `window_parameters`."""
    parser.add_argument(
        "--since",
        type=past_time,
        help=f"only {what} after this time: 10m (ago), 22:30, 2026-04-04T22:30",
    )
    parser.add_argument("--until", type=past_time, help="only up to this time")


def job_pages(
    given: argparse.Namespace, parameters: Parameters, limit: int, keys: Sequence[str] = ()
) -> Iterator[Sequence[Any]]:
    """Pages of jobs, at most `limit` jobs in total; raises SettingsError.

    `keys`: the keys that are needed; no others are read, of which a job has over a hundred.
    """
    query = reachable_server(given)
    if query is not None:
        wanted = {"fields": ",".join(keys)} if keys else {}
        yield from read_pages(query, "jobs", {**parameters, **wanted}, limit)
        return
    from batchjob_cli.client import local_jobs

    yield from local_jobs.job_pages(data_directory(given.data), parameters, limit, keys)


def runs_of_job(
    given: argparse.Namespace, jobid: str, cluster: str | None, keys: Sequence[str]
) -> Sequence[Any]:
    """A job's runs, the latest first, with these keys; raises SettingsError."""
    query = reachable_server(given)
    if query is not None:
        wanted = {"cluster": cluster, "fields": ",".join(keys)}
        return parse_rows(query(f"jobs/{quote(jobid, safe='')}", wanted), keys)
    from batchjob_cli.client import local_jobs

    one: Parameters = {"jobid": jobid, "cluster": cluster, "limit": 1}
    pages = local_jobs.job_pages(data_directory(given.data), one, 1, keys)
    return [row for page in pages for row in page]


def reachable_server(given: argparse.Namespace) -> "Server | None":
    """The named server, or the local `batchjob up`; None if only the database is left to read.

    Raises SettingsError.
    """
    return named_server(given) if given.server else _running_up_server(data_directory(given.data))


def _running_up_server(data: Path) -> "Server | None":
    """The `batchjob up` of this data directory, if it is running; not over TLS."""
    up = find_running_up(data)
    if up is None or not up.token or not up.url.startswith("http://"):
        return None
    from batchjob_cli.client.remote import Server

    server = Server(up.url, up.token)
    _wait_until_read(server, data)
    return server


def _wait_until_read(server: "Server", data: Path) -> None:
    """Wait until it has read the runs that have just started or ended.

    Otherwise `batchjob run ...; batchjob job ...` would find the run unknown, or running.
    """
    from batchjob.local_runs import history

    give_up_at = time.monotonic() + _READ_SECONDS
    try:
        changed = history.changed_runs(data, time.time() - _READ_SECONDS)
    except OSError:
        return
    for run in changed:
        while not _has_read(server, run) and time.monotonic() < give_up_at:
            time.sleep(_PAUSE_SECONDS)


def _has_read(server: "Server", run: "Run") -> bool:
    answer = server(f"jobs/{run.jobid}", {"cluster": LOCAL})
    if answer.status != HTTPStatus.OK:
        return answer.status != HTTPStatus.NOT_FOUND  # the command's own request reports it
    rows = parse_rows(answer, ("state",))
    return bool(rows) and rows[0]["state"] == run.state


def named_server(given: argparse.Namespace) -> "Server":
    from batchjob_cli.client.remote import Server

    token = _read_token(given.token_file)
    return Server(given.server, token, given.ca_file, given.cert, given.key)


def _read_token(path: str) -> str:
    if not path:
        return os.environ.get(TOKEN, "")
    try:
        return read_secret(path).strip()
    except SecretFileError as error:
        raise SettingsError(f"--token-file: {error}") from error


def command_parser(name: str, description: str) -> Parser:
    parser = Parser(prog=f"batchjob {name}", description=description, allow_abbrev=False)
    add_arguments(parser)
    return parser


def window_parameters(given: argparse.Namespace) -> dict[str, Any]:
    """The options --since and --until, where they were given, as parameters of the API."""
    times = {"since": given.since, "until": given.until}
    return {name: int(at) for name, at in times.items() if at is not None}


def read_pages(
    query: QueryFunction, path: str, parameters: Parameters, limit: int
) -> Iterator[Sequence[Any]]:
    """The rows of a list, page by page, until there are no more, or `limit` have been read."""
    given, keys = parameters, [*filter(None, parameters.get("fields", "").split(","))]
    while path and limit > 0:
        answer = query(path, given)
        rows = parse_rows(answer, keys)[:limit]
        yield rows
        limit -= len(rows)
        path, given = next_page_link(answer.headers.get("link", "")), {}


def run_parser(name: str, description: str, nargs: str | None = None) -> argparse.ArgumentParser:
    """A parser with the server options and the argument JOB (`job`: how many)."""
    parser = command_parser(name, description)
    parser.add_argument(
        "job", nargs=nargs, metavar="JOB", help="id of a run, a prefix of it, or its name"
    )
    return parser


def find_run(given: argparse.Namespace) -> "tuple[Path, Run]":
    """The data directory and the run meant by JOB; raises SettingsError."""
    from batchjob.local_runs import history

    try:
        with files_named():
            return data_directory(given.data), history.job(given.job, given.data)
    except history.UnknownRun as error:
        raise NotFoundError(str(error)) from error

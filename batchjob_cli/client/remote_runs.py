"""The commands about runs on a server that has `batchjob up --runs.remote`."""

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from batchjob.local_runs.record import Run, SupervisorProcess
from batchjob.runtime.formatting import format_count
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.values import format_cpu_list
from batchjob.schedulers.states import JobState
from batchjob_cli.client.answer import parse_document, require_success
from batchjob_cli.client.connect import named_server, window_parameters
from batchjob_cli.run.summary import format_report

_EXTRA_SECONDS = 30.0  # in addition to a run's grace period
_ANSWER_SECONDS = 60.0  # for the server, which waits 30 s for the end of a run
_PAUSE_SECONDS = 0.5
_TIMED_OUT_STATUS = 124


def run_path(given: argparse.Namespace, part: str = "") -> str:
    """The path below /api/v1; the run is named as on its own machine."""
    return f"runs/{quote(given.job, safe='')}{part}"


def end_run(given: argparse.Namespace, verb: str, grace: float) -> int:
    """`stop` or `cancel`; raises SettingsError."""
    body = {"grace_seconds": grace} if verb == "stop" else None
    server, until = named_server(given), time.monotonic() + grace + _EXTRA_SECONDS
    answer = server.request("POST", run_path(given, f"/{verb}"), {}, body, _ANSWER_SECONDS)
    run = parse_document(answer, "id", "status", "end_time")
    while run["end_time"] is None and time.monotonic() < until:  # the grace period goes on
        time.sleep(_PAUSE_SECONDS)
        answer = server.request("GET", f"runs/{run['id']}", {})
        run = parse_document(answer, "id", "status", "end_time")
    print(f"batchjob: run {run['id']}: {run['status']}")
    return 0 if run["end_time"] is not None else 1


def delete(given: argparse.Namespace) -> int:
    if given.job is not None:
        require_success(named_server(given).request("DELETE", run_path(given), {}))
        print("batchjob: deleted 1 run")
        return 0
    answer = named_server(given).request("DELETE", "runs", {"ended": "true"})
    counts = parse_document(answer, "deleted", "skipped")
    deleted = format_count(counts["deleted"], "run")
    print(f"batchjob: deleted {deleted}; {counts['skipped']} not ended, or not deleted")
    return 0


def logs(given: argparse.Namespace) -> int:
    if given.timestamps:
        raise SettingsError("--timestamps: a server gives the output as it was written")
    parameters = {
        "stream": given.stream,
        **window_parameters(given),
        "limit": given.limit,
        "follow": "true" if given.follow else None,
    }
    _copy_output(given, run_path(given, "/logs"), parameters)
    return 0


def _copy_output(given: argparse.Namespace, path: str, parameters: dict[str, Any]) -> None:
    for text in named_server(given).stream(path, parameters):
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


def start(given: argparse.Namespace, command: list[str]) -> int:
    """Start a run there, and show its output until it ends, unless it runs in the background.

    Exit status as for a run of this machine. Raises SettingsError.
    """
    request = {
        "command": command,
        "name": given.name,
        "cpus": given.cpus,
        "cpu_list": format_cpu_list(given.cpu_list or frozenset()) or None,
        "memory_bytes": given.memory,
        "gpus": given.gpus,
        "io_bytes_per_second": given.io,
        "time_limit_seconds": given.time_limit,
        "start_time": None if given.at is None else str(int(given.at)),
    }
    server = named_server(given)
    answer = server.request("POST", "runs", {}, request, _EXTRA_SECONDS * 3)
    run = parse_document(answer, "id", "state")
    if given.detach or run["state"] == "PENDING":
        print(run["id"])
        return 0
    _copy_output(given, f"runs/{run['id']}/logs", {"follow": "true"})
    answer = server.request("GET", f"runs/{run['id']}", {})
    run = parse_document(answer, "id", "status", "state", "exit_signal", "exit_code")
    if not given.quiet:
        sys.stderr.write(format_report(_run_of(run)))
    if run["state"] == "TIMEOUT":
        return _TIMED_OUT_STATUS
    return 128 + run["exit_signal"] if run["exit_signal"] else int(run["exit_code"] or 0)


_FIELDS = {
    "id": "jobid", "status": "state_word", "cpus": "allocated_cpus", "gpus": "allocated_gpus",
    "memory_bytes": "allocated_memory_bytes",
}  # fmt: skip


def _run_of(answer: Mapping[str, Any]) -> Run:
    """The run of an answer, as far as the report shows it."""
    named = {_FIELDS.get(name, name): value for name, value in answer.items()}
    fields = {name: value for name, value in named.items() if name in Run._fields}
    absent = {"node": "", "user": "", "uid": 0, "submit_time": 0.0, "start_time": None}
    nobody = SupervisorProcess(0, 0, "")
    return Run(**{**absent, **fields, "state": JobState(answer["state"]), "supervisor": nobody})

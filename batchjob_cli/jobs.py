"""`batchjob jobs`: what has run, newest first."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from batchjob.runtime.cells import harmless
from batchjob.runtime.formatting import digits, run_time, share, size
from batchjob.runtime.settings import argument
from batchjob.runtime.times import past_time, time_in_words
from batchjob.runtime.values import at_least_one, called
from batchjob.schedulers.states import JobState
from batchjob_cli.client.connect import Ask, asked, pages, parser
from batchjob_cli.client.table import TableColumn, add_zone, show, written

# Option -> parameter of the API, and what it means.
_FILTERS = {
    "user": ("user", "of this user"),
    "account": ("account", "of this account"),
    "tool": ("tool", "done with this tool"),
    "name": ("name", "of this name"),
    "cluster": ("cluster", "on this cluster"),
    "partition": ("partition", "in this partition or queue"),
    "node": ("node", "that ran on this node"),
}


def add_filters(add: Any) -> None:
    """Options that choose jobs."""
    for name, (_, text) in _FILTERS.items():
        add(f"--{name}", metavar=name.upper(), help=f"only jobs {text}")
    add("--state", action="append", default=[], **argument(_state),
        help="only jobs in this state, such as failed; may be repeated")  # fmt: skip
    add("--since", **argument(past_time), help="started after: 2026-03-31, 14:30, or 2d ago")
    add("--until", **argument(past_time), help="started before")


def chosen(given: argparse.Namespace) -> dict[str, Any]:
    """The same as parameters of the API."""
    found = {
        parameter: getattr(given, name)
        for name, (parameter, _) in _FILTERS.items()
        if getattr(given, name) is not None
    }
    if given.state:
        found["state"] = [state.value for state in given.state]
    if given.since is not None:
        found["started_from"] = int(given.since)
    if given.until is not None:
        found["started_before"] = int(given.until)
    return found


@called("STATE")
def _state(text: str) -> JobState:
    try:
        return JobState(text.upper())
    except ValueError:
        known = ", ".join(state.lower() for state in JobState)
        raise ValueError(f"{text!r} is none of {known}") from None


def run(arguments: list[str]) -> int:
    """Print jobs; the exit status. Raises SettingsError."""
    made = parser("jobs", "Lists jobs: those that wait, then the newest.")
    add_filters(made.add_argument)
    add = made.add_argument
    add("--running", action="store_true", help="only jobs that run now")
    add("--pending", action="store_true", help="only jobs that wait")
    add("--sort", default="", metavar="KEY", help="such as energy_joules; -KEY: largest first")
    add("--limit", **argument(at_least_one), default=50, help="at most so many (default: 50)")
    add("--format", choices=("table", "json", "csv"), default="table")
    add_zone(made)
    given = made.parse_args(arguments)
    with asked(given) as ask:
        rows = list(_rows(given, ask))
    if given.format == "table":
        _table(rows, given.zone)
    else:
        {"json": as_json, "csv": as_csv}[given.format](rows)
    return 0


def _rows(given: argparse.Namespace, ask: Ask) -> Iterator[Mapping[str, Any]]:
    parameters = chosen(given) | {"limit": min(given.limit, 1000)}
    if given.pending:
        parameters["state"] = [*parameters.get("state", ()), JobState.PENDING.value]
    if given.running:
        parameters["running"] = "true"
    if given.sort:
        parameters["sort"] = given.sort
    for page in pages(ask, "jobs", parameters, given.limit):
        yield from page


def _table(rows: Sequence[Mapping[str, Any]], zone: tzinfo | None) -> None:
    show(written(columns(zone), rows) if rows else "no job")


def as_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """An array, a row on each line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    show(f"[\n{lines}\n]" if rows else "[]")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """With a header; no text can be a formula of a spreadsheet."""
    import csv

    if rows:
        out = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows({key: harmless(value) for key, value in row.items()} for row in rows)


def _known(key: str, form: Any) -> Any:
    return lambda row: "-" if row.get(key) is None else form(row[key])


def _took(row: Mapping[str, Any]) -> str:
    if row.get("elapsed_seconds") is not None:
        return run_time(row["elapsed_seconds"])
    if row.get("start_time") is None or row["state"] == JobState.VANISHED:
        return "-"  # not started, or nobody knows when it ended
    return run_time(max(0.0, time.time() - row["start_time"] / 1000))


def columns(zone: tzinfo | None) -> tuple[TableColumn, ...]:
    """The table, with times in a zone; None: local time."""
    started = _known("start_time", lambda at: time_in_words(at / 1000, zone))
    return (*_WHO, TableColumn("STARTED", started), *_WHAT)


def _state_of(row: Mapping[str, Any]) -> str:
    """A run that somebody stopped was cancelled too, and yet is not one that never started."""
    stopped = row.get("state_word") == "stopped"
    return "stopped" if stopped else str(row["state"]).lower()


_WHO = (
    TableColumn("JOB", lambda row: row["jobid"]),
    TableColumn("NAME", lambda row: (row.get("name") or "-")[:24]),
    TableColumn("USER", lambda row: row.get("user") or "-"),
    TableColumn("STATE", _state_of),
)
_WHAT = (
    TableColumn("TIME", _took, right=True),
    TableColumn("CPUS", _known("allocated_cpus", digits), right=True),
    TableColumn("CPU EFF.", _known("cpu_efficiency", share), right=True),
    TableColumn("PEAK MEMORY", _known("memory_used_bytes", size), right=True),
    TableColumn("EXIT", _known("exit_code", str), right=True),
)

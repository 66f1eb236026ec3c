"""`batchjob jobs`: what has run, newest first."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from batchjob.cells import harmless
from batchjob.readable import clock, share, size
from batchjob.settings import argument
from batchjob.states import JobState
from batchjob.values import at_least_one, called
from batchjob_cli.ask.asked import asked, pages, parser
from batchjob_cli.ask.known import peak_memory_bytes
from batchjob_cli.ask.table import Column, show, written
from batchjob_cli.run.times import past_time

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
    made = parser("jobs", "Lists jobs, the newest first.")
    add_filters(made.add_argument)
    add = made.add_argument
    add("--running", action="store_true", help="only jobs that run now")
    add("--sort", default="", metavar="KEY", help="such as energy_joules; -KEY: largest first")
    add("--limit", **argument(at_least_one), default=50, help="at most so many (default: 50)")
    add("--format", choices=("table", "json", "csv"), default="table")
    given = made.parse_args(arguments)
    parameters = chosen(given) | {"limit": min(given.limit, 1000)}
    if given.running:
        parameters["running"] = "true"
    if given.sort:
        parameters["sort"] = given.sort
    with asked(given) as ask:
        rows = [row for page in pages(ask, "jobs", parameters, given.limit) for row in page]
    _FORMS[given.format](rows)
    return 0


def _table(rows: Sequence[Mapping[str, Any]]) -> None:
    show(written(COLUMNS, rows) if rows else "no job")


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


_FORMS = {"table": _table, "json": as_json, "csv": as_csv}


def _moment(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(milliseconds / 1000))


def _known(key: str, form: Any) -> Any:
    return lambda row: "-" if row.get(key) is None else form(row[key])


def _took(row: Mapping[str, Any]) -> str:
    if row.get("elapsed_seconds") is not None:
        return clock(row["elapsed_seconds"])
    if row.get("start_time") is None:
        return "-"
    return clock(max(0.0, time.time() - row["start_time"] / 1000))


def _peak(row: Mapping[str, Any]) -> str:
    peak = peak_memory_bytes(row)
    return "-" if peak is None else size(peak)


COLUMNS = (
    Column("JOB", lambda row: row["jobid"]),
    Column("NAME", lambda row: (row.get("name") or "-")[:24]),
    Column("USER", lambda row: row.get("user") or "-"),
    Column("STATE", lambda row: row["state"].lower()),
    Column("STARTED", lambda row: _moment(row.get("start_time"))),
    Column("TIME", _took, right=True),
    Column("CPUS", _known("allocated_cpus", str), right=True),
    Column("CPU EFF.", _known("cpu_efficiency", share), right=True),
    Column("PEAK MEMORY", _peak, right=True),
    Column("EXIT", _known("exit_code", str), right=True),
)

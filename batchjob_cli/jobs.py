"""`batchjob jobs`: lists jobs, newest first."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchjob.runtime.formatting import harmless
from batchjob.runtime.settings import argument
from batchjob.runtime.times import past_time
from batchjob.runtime.values import at_least_one, called
from batchjob.schedulers.states import JobState
from batchjob_cli.client.connect import job_pages, parser
from batchjob_cli.client.table import add_zone, in_colour, show, terminal_width, written
from batchjob_cli.job_columns import DEFAULT_KEYS, columns_named, default_columns

# Option -> parameter of the API and its meaning.
_FILTERS = {
    "user": ("user", "of this user"),
    "account": ("account", "of this account"),
    "tool": ("tool", "tracked by this tool"),
    "name": ("name", "with this name"),
    "cluster": ("cluster", "on this cluster"),
    "partition": ("partition", "in this partition or queue"),
    "node": ("node", "that ran on this node"),
    "record-id": (
        "record_id",
        "with this id, given by the user or by another system such as Celery",
    ),
    "workflow": ("array_jobid", "of this workflow or job array"),
}


def add_filters(add: Any) -> None:
    """Add the options that select jobs."""
    for name, (_, text) in _FILTERS.items():
        add(f"--{name}", metavar=name.upper().replace("-", "_"), help=f"only jobs {text}")
    add("--state", action="append", default=[], **argument(_state),
        help="only jobs in this state, such as failed; may be repeated")  # fmt: skip
    add(
        "--since",
        **argument(past_time),
        help="only jobs started after this time: 2026-03-31, 14:30, or 2d (ago)",
    )
    add("--until", **argument(past_time), help="only jobs started before this time")


def chosen(given: argparse.Namespace) -> dict[str, Any]:
    """The same as parameters of the API."""
    found = {
        parameter: value
        for name, (parameter, _) in _FILTERS.items()
        if (value := getattr(given, name.replace("-", "_"))) is not None
    }
    if given.state:
        found["state"] = [state.value for state, _ in given.state]
        if all(word for _, word in given.state):
            found["state_word"] = [word for _, word in given.state]
    if given.since is not None:
        found["started_from"] = int(given.since)
    if given.until is not None:
        found["started_before"] = int(given.until)
    return found


_WORDS = {
    "success": (JobState.COMPLETED, ""),
    "error": (JobState.FAILED, "error"),
    "stopped": (JobState.CANCELLED, "stopped"),
}


@called("STATE")
def _state(text: str) -> tuple[JobState, str]:
    """A state, and a more specific word; "" for any."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return JobState(text.upper()), ""
    except ValueError:
        known = ", ".join([*(state.lower() for state in JobState), *_WORDS])
        raise ValueError(f"expected one of {known}, got {text!r}") from None


def run(arguments: list[str]) -> int:
    """Print jobs; the exit status. Raises SettingsError."""
    made = parser("jobs", "Lists jobs: pending jobs first, then the most recent.")
    add_filters(made.add_argument)
    add = made.add_argument
    add("--running", action="store_true", help="only running jobs")
    add("--pending", action="store_true", help="only pending jobs")
    add("--sort", default="", metavar="KEY",
        help="key to sort by, such as energy_used_joules; -KEY: descending")  # fmt: skip
    add("--columns", "-o", default=(), type=_names, metavar="KEY,...",
        help="columns to show, such as jobid,state: keys of --format json")  # fmt: skip
    add(
        "--limit", **argument(at_least_one), default=50, help="maximum number of jobs (default: 50)"
    )
    add("--format", choices=("table", "json", "csv"), default="table",
        help="output format (default: table)")  # fmt: skip
    add_zone(made)
    given = made.parse_args(sort_joined(arguments))
    rows = list(_rows(given))
    if given.format == "table":
        _table(rows, given)
    else:
        {"json": as_json, "csv": as_csv}[given.format](_chosen_alone(rows, given.columns))
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _rows(given: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    parameters = chosen(given) | {"limit": min(given.limit, 1000)}
    if given.pending:
        parameters["state"] = [*parameters.get("state", ()), JobState.PENDING.value]
    if given.running:
        parameters["running"] = "true"
    if given.sort:
        parameters["sort"] = given.sort
    keys = DEFAULT_KEYS if given.format == "table" and not given.columns else ()
    for page in job_pages(given, parameters, given.limit, keys):
        yield from page


def _table(rows: Sequence[Mapping[str, Any]], given: argparse.Namespace) -> None:
    if not rows:
        show("no job")
        return
    width = terminal_width()
    columns = (
        columns_named(given.columns, rows, given.zone)
        if given.columns
        else default_columns(rows, given.zone, short=width is not None)
    )
    show(written(columns, rows, width, colours=in_colour()))


def _chosen_alone(
    rows: list[Mapping[str, Any]], names: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    columns_named(names, rows, None)
    return [{name: row[name] for name in names} for row in rows] if names else rows


def sort_joined(arguments: Sequence[str]) -> list[str]:
    """`--sort -KEY` as `--sort=-KEY`: argparse would take the former for two options."""
    given = list(arguments)
    for place in range(len(given) - 1):
        if given[place] == "--sort":
            return [*given[:place], f"--sort={given[place + 1]}", *given[place + 2 :]]
    return given


def as_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """An array, a row on each line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    show(f"[\n{lines}\n]" if rows else "[]")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """With a header; texts that a spreadsheet would take for formulas are escaped."""
    import csv

    if rows:
        out = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows({key: harmless(value) for key, value in row.items()} for row in rows)

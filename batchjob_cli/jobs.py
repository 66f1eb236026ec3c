"""`batchjob jobs`: lists jobs, newest first."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchjob.runtime.formatting import escape_formula
from batchjob.runtime.times import past_time
from batchjob.runtime.values import at_least_one, with_metavar
from batchjob.schedulers.states import JobState
from batchjob_cli.client.connect import command_parser, job_pages
from batchjob_cli.client.table import (
    add_zone,
    format_table,
    print_text,
    terminal_width,
    use_colours,
)
from batchjob_cli.job_columns import DEFAULT_KEYS, columns_named, default_columns

# Option -> parameter of the API and its meaning.
_FILTERS = {
    "user": ("user", "of this user"),
    "account": ("account", "of this account"),
    "tool": ("tool", "tracked by this tool"),
    "name": ("name_contains", "with this in their name"),
    "cluster": ("cluster", "on this cluster"),
    "partition": ("partition", "in this partition or queue"),
    "node": ("node", "that ran on this node"),
    "record-id": (
        "record_id",
        "with this id, given by the user or by another system such as Celery",
    ),
    "workflow": ("array_jobid", "of this workflow or job array"),
}

_SAME_OF_TASKS = {"limit", "user", "account", "name_contains", "cluster", "partition"}
# With these parameters only, an array is one row of the table: other filters select its tasks.


def add_filters(add: Any) -> None:
    for name, (_, text) in _FILTERS.items():
        add(f"--{name}", metavar=name.upper().replace("-", "_"), help=f"only jobs {text}")
    add("--state", action="append", default=[], type=_parse_state,
        help="only jobs in this state, such as failed; may be repeated")  # fmt: skip
    add(
        "--since",
        type=past_time,
        help="only jobs started after this time: 2026-03-31, 14:30, 2d (ago), yesterday, last week",
    )
    add("--until", type=past_time, help="only jobs started before this time")


def filter_parameters(given: argparse.Namespace) -> dict[str, Any]:
    parameters = {
        parameter: value
        for name, (parameter, _) in _FILTERS.items()
        if (value := getattr(given, name.replace("-", "_"))) is not None
    }
    if given.state:
        parameters["state"] = [state.value for state, _ in given.state]
        if all(word for _, word in given.state):
            parameters["state_word"] = [word for _, word in given.state]
    if given.since is not None:
        parameters["started_from"] = int(given.since)
    if given.until is not None:
        parameters["started_before"] = int(given.until)
    return parameters


_STATE_WORDS = {
    "success": (JobState.COMPLETED, ""),
    "error": (JobState.FAILED, "error"),
    "stopped": (JobState.CANCELLED, "stopped"),
}


@with_metavar("STATE")
def _parse_state(text: str) -> tuple[JobState, str]:
    """A state, and a more specific word; "" for any."""
    if text.lower() in _STATE_WORDS:
        return _STATE_WORDS[text.lower()]
    try:
        return JobState(text.upper()), ""
    except ValueError:
        known = ", ".join([*(state.lower() for state in JobState), *_STATE_WORDS])
        raise ValueError(f"expected one of {known}, got {text!r}") from None


def run(arguments: list[str]) -> int:
    """Print jobs; the exit status. Raises SettingsError."""
    parser = command_parser("jobs", "Lists jobs: pending jobs first, then the most recent.")
    add_filters(parser.add_argument)
    add = parser.add_argument
    add("--running", action="store_true", help="only running jobs")
    add("--pending", action="store_true", help="only pending jobs")
    add("--sort", default="", metavar="KEY",
        help="key to sort by, such as energy_used_joules; -KEY: descending")  # fmt: skip
    add("--columns", "-o", default=(), type=_parse_names, metavar="KEY,...",
        help="columns to show, such as jobid,state: keys of --format json")  # fmt: skip
    add("--limit", type=at_least_one, default=50, help="maximum number of jobs (default: 50)")
    add("--format", choices=("table", "json", "csv"), default="table",
        help="output format (default: table)")  # fmt: skip
    add_zone(parser)
    given = parser.parse_args(join_sort_option(arguments))
    rows = list(_query_rows(given))
    if given.format == "table":
        _print_table(rows, given)
    else:
        {"json": print_json, "csv": print_csv}[given.format](_select_keys(rows, given.columns))
    return 0


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _query_rows(given: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    parameters = filter_parameters(given) | {"limit": min(given.limit, 1000)}
    if given.pending:
        parameters["state"] = [*parameters.get("state", ()), JobState.PENDING.value]
    if given.running:
        parameters["running"] = "true"
    if given.sort:
        parameters["sort"] = given.sort
    if given.format == "table" and not given.columns and parameters.keys() <= _SAME_OF_TASKS:
        parameters["arrays_once"] = "true"
    keys = _shown_keys(given) if given.format == "table" and not given.columns else ()
    for page in job_pages(given, parameters, given.limit, keys):
        yield from page


def _shown_keys(given: argparse.Namespace) -> tuple[str, ...]:
    """The keys of the default columns, and that by which the jobs are sorted."""
    return tuple(dict.fromkeys((*DEFAULT_KEYS, given.sort.lstrip("-") or "jobid")))


def _print_table(rows: Sequence[Mapping[str, Any]], given: argparse.Namespace) -> None:
    if not rows:
        print_text("No job matches.")
        return
    width = terminal_width()
    columns = columns_named(given.columns, rows, given.zone) or (
        *default_columns(rows, given.zone, short=width is not None),
        *columns_named(_shown_keys(given)[len(DEFAULT_KEYS) :], rows, given.zone),
    )
    print_text(format_table(columns, rows, width, colours=use_colours()))


def _select_keys(
    rows: list[Mapping[str, Any]], names: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    columns_named(names, rows, None)
    return [{name: row[name] for name in names} for row in rows] if names else rows


def join_sort_option(arguments: Sequence[str]) -> list[str]:
    """Replace `--sort -KEY` by `--sort=-KEY`: argparse would take the former for two options."""
    given = list(arguments)
    for place in range(len(given) - 1):
        if given[place] == "--sort":
            return [*given[:place], f"--sort={given[place + 1]}", *given[place + 2 :]]
    return given


def print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print an array, a row on each line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    print_text(f"[\n{lines}\n]" if rows else "[]")


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a header and rows; texts that a spreadsheet would take for formulas are escaped."""
    import csv

    if rows:
        out = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows({key: escape_formula(value) for key, value in row.items()} for row in rows)

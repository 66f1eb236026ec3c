"""`batchjob top`: running and waiting jobs, updated every few seconds."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Header, Static

from batchjob.judgements import RUNNING_STATES
from batchjob.local_runs.directory import data_directory
from batchjob.runtime.formatting import digits, share, size
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.values import at_least_one, duration
from batchjob.schedulers.states import JobState
from batchjob_cli.client.answer import parse_rows
from batchjob_cli.client.connect import Parameters, command_parser, job_pages, reachable_server
from batchjob_cli.client.table import TableColumn, add_zone, cell, fit_columns, fold, use_colours
from batchjob_cli.job import query_report
from batchjob_cli.job_columns import DEFAULT_KEYS, default_columns
from batchjob_cli.jobs import add_filters, filter_parameters

_SORTS = ("-start_time", "-cpu_efficiency", "-usage_memory_peak_bytes", "-energy_used_joules")
_STYLES = {"31": "red", "32": "green", "33": "yellow", "34": "blue", "2": "dim"}

_ENDED = tuple(state.value for state in JobState if not state.is_live)
_USE_KEYS = ("cluster", "jobid", "cpus", "memory_bytes", "gpu_utilization_ratio")
_OF_WHOLE = ("CPU EFF.", "PEAK MEMORY")
_MARGIN = 4  # characters of the table's padding and its scroll bar

Rows = Sequence[Mapping[str, Any]]


def run(arguments: list[str]) -> int:
    given = parse_arguments(arguments)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SettingsError("top: expected a terminal; elsewhere use `batchjob jobs --running`")
    query_rows(given, _SORTS[0], ended=False)  # report errors in the query right away
    JobsTop(given).run()
    return 0


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = command_parser(
        "top",
        "Shows running and pending jobs, and what they use now. q: quit, s: sort, e: ended jobs, "
        "Enter: the report of a job.",
    )
    add_filters(parser.add_argument)
    add = parser.add_argument
    add("--interval", type=duration, default=3.0, help="time between updates (default: 3s)")
    add("--limit", type=at_least_one, default=200, help="maximum number of jobs (default: 200)")
    add_zone(parser)
    given: argparse.Namespace = parser.parse_args(arguments)
    return given


def query_rows(given: argparse.Namespace, sort: str, *, ended: bool) -> Rows:
    """The jobs to show: running ones, then waiting ones, then ended ones. Raises SettingsError.

    `sort` is the order among the running ones, which have what they use now, and the ended ones.
    """
    wanted = filter_parameters(given)
    parts = [wanted | {"running": "true", "sort": sort}, wanted | {"state": ["PENDING"]}]
    ended_states = [state for state in wanted.get("state", _ENDED) if state in _ENDED]
    if ended and ended_states:
        parts.append(wanted | {"state": ended_states, "sort": sort})
    rows: list[Mapping[str, Any]] = []
    for part in parts:
        if remaining := given.limit - len(rows):
            rows += _query_jobs(given, part, remaining)
    uses = {(use["cluster"], use["jobid"]): use for use in _current_uses(given)}
    nothing: Mapping[str, Any] = {}
    return [{**row, "now": uses.get((row["cluster"], row["jobid"]), nothing)} for row in rows]


def _current_uses(given: argparse.Namespace) -> Rows:
    query = reachable_server(given)
    if query is not None:
        return parse_rows(query("current-use", {"user": given.user}), _USE_KEYS)
    from batchjob_cli.client import local_job

    return local_job.current_uses(data_directory(given.data))


def _now(key: str, write: Callable[[float], str]) -> Callable[[Mapping[str, Any]], str]:
    """The text of what a row uses now; "" for a job that does not run."""
    show = cell(key, write)
    return lambda row: show(row["now"]) if row["state"] in RUNNING_STATES else ""


def _columns(rows: Rows, zone: tzinfo | None) -> list[TableColumn]:
    """Those of lists, with what is used now instead of the means and peaks of whole jobs."""
    has_gpus = any(row["now"].get("gpu_utilization_ratio") is not None for row in rows)
    return [
        *(each for each in default_columns(rows, zone, short=True) if each.title not in _OF_WHOLE),
        TableColumn("CPUS NOW", _now("cpus", lambda used: digits(round(used, 2))), right=True),
        TableColumn("MEMORY NOW", _now("memory_bytes", size), right=True),
        *([TableColumn("GPUS NOW", _now("gpu_utilization_ratio", share), right=True)]
          if has_gpus else []),
    ]  # fmt: skip


def _query_jobs(
    given: argparse.Namespace, wanted: Parameters, limit: int
) -> list[Mapping[str, Any]]:
    parameters = {**wanted, "limit": min(limit, 1000)}
    return [row for page in job_pages(given, parameters, limit, DEFAULT_KEYS) for row in page]


class JobReport(Screen[None]):
    """The report of a job, until a key."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "app.pop_screen", "Back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static(Text(self._text)))
        yield Footer()


class JobsTop(App[None]):
    """A table that is updated; errors are shown in the title, and the next update is tried.

    Running jobs stay in sight when the others scroll.
    """

    TITLE = "batchjob"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("e", "ended", "Ended jobs"),
    ]

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self._given = given
        self._sort = 0
        self._ended = False
        self._rows: Rows = ()

    def compose(self) -> ComposeResult:
        yield Header(show_clock=False)
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.reload_jobs()
        self.set_interval(self._given.interval, self.reload_jobs)

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(_SORTS)
        self.reload_jobs()

    def action_ended(self) -> None:
        self._ended = not self._ended
        self.reload_jobs()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self._open_job(self._rows[event.cursor_row])

    @work(thread=True, group="reports")  # or the next update of the table would end it
    def _open_job(self, row: Mapping[str, Any]) -> None:
        given = {**vars(self._given), "cluster": row["cluster"], "format": "text"}
        asked = argparse.Namespace(**given)
        try:
            text = query_report(asked, reachable_server(asked), row["jobid"])
        except SettingsError as error:
            text = str(error)
        report = JobReport(fold(text, self.size.width - _MARGIN))
        self.call_from_thread(self.push_screen, report)

    @work(thread=True, exclusive=True)
    def reload_jobs(self) -> None:
        """Query in a thread, so that keys are handled meanwhile."""
        try:
            rows = query_rows(self._given, _SORTS[self._sort], ended=self._ended)
        except SettingsError as error:
            self.call_from_thread(setattr, self, "sub_title", str(error))
        else:
            self.call_from_thread(self._show_rows, rows)

    def _show_rows(self, rows: Rows) -> None:
        self._rows = rows
        table = self.screen_stack[0].query_one(DataTable)
        cursor_row = table.cursor_row
        columns = _columns(rows, self._given.zone)
        table.clear(columns=True)
        cells = [[column.cell(row) for column in columns] for row in rows]
        kept = fit_columns(columns, cells, self.size.width - _MARGIN)
        for place, width in kept.items():
            table.add_column(columns[place].title, width=width)
        for row, texts in zip(rows, cells, strict=True):
            table.add_row(*(_styled_cell(columns[place], row, texts[place]) for place in kept))
        table.move_cursor(row=min(cursor_row, max(0, len(rows) - 1)))
        running = sum(row["state"] in RUNNING_STATES for row in rows)
        table.fixed_rows = min(running, max(0, self.size.height // 2 - 2))
        order = _SORTS[self._sort].lstrip("-").removeprefix("usage_").replace("_", " ")
        now = f"{datetime.now(self._given.zone).astimezone(self._given.zone):%H:%M:%S %Z}"
        self.sub_title = f"{running} running of {len(rows)} shown, by {order}, {now}"


def _styled_cell(column: TableColumn, row: Mapping[str, Any], text: str) -> Text:
    colour = column.colour(row) if column.colour and use_colours() else ""
    return Text(
        text, _STYLES.get(colour, ""), justify="right" if column.right else "left",
        overflow="ellipsis", no_wrap=True,
    )  # fmt: skip

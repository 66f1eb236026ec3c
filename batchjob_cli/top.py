"""`batchjob top`: running and waiting jobs, updated every few seconds."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Header

from batchjob.runtime.settings import SettingsError, type_and_metavar
from batchjob.runtime.values import at_least_one, duration
from batchjob_cli.client.connect import Parameters, command_parser, job_pages
from batchjob_cli.client.table import TableColumn, add_zone, fit_columns, use_colours
from batchjob_cli.job_columns import DEFAULT_KEYS, default_columns
from batchjob_cli.jobs import add_filters, filter_parameters

_SORTS = ("-start_time", "-cpu_efficiency", "-usage_memory_peak_bytes", "-energy_used_joules")
_STYLES = {"31": "red", "32": "green", "33": "yellow", "34": "blue", "2": "dim"}

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
        "top", "Shows running and pending jobs. q: quit, s: sort, e: ended jobs."
    )
    add_filters(parser.add_argument)
    add = parser.add_argument
    add(
        "--interval",
        **type_and_metavar(duration),
        default=3.0,
        help="time between updates (default: 3s)",
    )
    add(
        "--limit",
        **type_and_metavar(at_least_one),
        default=200,
        help="maximum number of jobs (default: 200)",
    )
    add_zone(parser)
    given: argparse.Namespace = parser.parse_args(arguments)
    return given


def query_rows(given: argparse.Namespace, sort: str, *, ended: bool) -> Rows:
    """The jobs to show: running ones, then waiting ones; or the newest. Raises SettingsError.

    `sort` is the order among the running ones.
    """
    wanted = filter_parameters(given) | {"sort": sort}
    if ended:
        return _query_jobs(given, wanted, given.limit)
    rows = _query_jobs(given, wanted | {"running": "true"}, given.limit)
    if remaining := given.limit - len(rows):
        rows += _query_jobs(given, filter_parameters(given) | {"state": ["PENDING"]}, remaining)
    return rows


def _query_jobs(
    given: argparse.Namespace, wanted: Parameters, limit: int
) -> list[Mapping[str, Any]]:
    parameters = {**wanted, "limit": min(limit, 1000)}
    return [row for page in job_pages(given, parameters, limit, DEFAULT_KEYS) for row in page]


class JobsTop(App[None]):
    """A table that is updated; errors are shown in the title, and the next update is tried."""

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
        table = self.query_one(DataTable)
        cursor_row = table.cursor_row
        columns = default_columns(rows, self._given.zone, short=True)
        table.clear(columns=True)
        cells = [[column.cell(row) for column in columns] for row in rows]
        kept = fit_columns(columns, cells, self.size.width - _MARGIN)
        for place, width in kept.items():
            table.add_column(columns[place].title, width=width)
        for row, texts in zip(rows, cells, strict=True):
            table.add_row(*(_styled_cell(columns[place], row, texts[place]) for place in kept))
        table.move_cursor(row=min(cursor_row, max(0, len(rows) - 1)))
        running = sum(row["state"] == "RUNNING" for row in rows)
        order = _SORTS[self._sort].lstrip("-").removeprefix("usage_").replace("_", " ")
        now = f"{datetime.now(self._given.zone).astimezone(self._given.zone):%H:%M:%S %Z}"
        self.sub_title = f"{running} running of {len(rows)} shown, by {order}, {now}"


def _styled_cell(column: TableColumn, row: Mapping[str, Any], text: str) -> Text:
    colour = column.colour(row) if column.colour and use_colours() else ""
    return Text(
        text, _STYLES.get(colour, ""), justify="right" if column.right else "left",
        overflow="ellipsis", no_wrap=True,
    )  # fmt: skip

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

from batchjob.runtime.settings import SettingsError, argument
from batchjob.runtime.values import at_least_one, duration
from batchjob_cli.client.connect import Parameters, job_pages, parser
from batchjob_cli.client.table import TableColumn, add_zone, fitting, in_colour
from batchjob_cli.job_columns import DEFAULT_KEYS, default_columns
from batchjob_cli.jobs import add_filters, chosen

_SORTS = ("-start_time", "-cpu_efficiency", "-usage_memory_peak_bytes", "-energy_used_joules")
_STYLES = {"31": "red", "32": "green", "33": "yellow", "34": "blue", "2": "dim"}

_MARGIN = 4  # characters of the table's padding and its scroll bar

Rows = Sequence[Mapping[str, Any]]


def run(arguments: list[str]) -> int:
    """Show jobs until `q` is pressed; the exit status. Raises SettingsError."""
    given = command_line(arguments)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SettingsError("top: expected a terminal; elsewhere use `batchjob jobs --running`")
    rows_of(given, _SORTS[0], ended=False)  # report errors in the query right away
    JobsTop(given).run()
    return 0


def command_line(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments; raises SettingsError."""
    made = parser("top", "Shows running and pending jobs. q: quit, s: sort, e: ended jobs.")
    add_filters(made.add_argument)
    add = made.add_argument
    add("--interval", **argument(duration), default=3.0, help="time between updates (default: 3s)")
    add(
        "--limit",
        **argument(at_least_one),
        default=200,
        help="maximum number of jobs (default: 200)",
    )
    add_zone(made)
    given: argparse.Namespace = made.parse_args(arguments)
    return given


def rows_of(given: argparse.Namespace, sort: str, *, ended: bool) -> Rows:
    """The jobs to show: running ones, then waiting ones; or the newest. Raises SettingsError.

    `sort` is the order among the running ones.
    """
    wanted = chosen(given) | {"sort": sort}
    if ended:
        return _listed(given, wanted, given.limit)
    rows = _listed(given, wanted | {"running": "true"}, given.limit)
    if left := given.limit - len(rows):
        rows += _listed(given, chosen(given) | {"state": ["PENDING"]}, left)
    return rows


def _listed(given: argparse.Namespace, wanted: Parameters, most: int) -> list[Mapping[str, Any]]:
    parameters = {**wanted, "limit": min(most, 1000)}
    return [row for page in job_pages(given, parameters, most, DEFAULT_KEYS) for row in page]


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
        """Title, table, keys."""
        yield Header(show_clock=False)
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Update now, and then periodically."""
        self.look()
        self.set_interval(self._given.interval, self.look)

    def action_sort(self) -> None:
        """Switch to the next order."""
        self._sort = (self._sort + 1) % len(_SORTS)
        self.look()

    def action_ended(self) -> None:
        """Show or hide ended jobs."""
        self._ended = not self._ended
        self.look()

    @work(thread=True, exclusive=True)
    def look(self) -> None:
        """Query in a thread, so that keys are handled meanwhile."""
        try:
            rows = rows_of(self._given, _SORTS[self._sort], ended=self._ended)
        except SettingsError as error:
            self.call_from_thread(setattr, self, "sub_title", str(error))
        else:
            self.call_from_thread(self._show, rows)

    def _show(self, rows: Rows) -> None:
        table = self.query_one(DataTable)
        place = table.cursor_row
        columns = default_columns(rows, self._given.zone, short=True)
        table.clear(columns=True)
        cells = [[column.cell(row) for column in columns] for row in rows]
        kept = fitting(columns, cells, self.size.width - _MARGIN)
        for place, width in kept.items():
            table.add_column(columns[place].title, width=width)
        for row, texts in zip(rows, cells, strict=True):
            table.add_row(*(_shown(columns[place], row, texts[place]) for place in kept))
        table.move_cursor(row=min(place, max(0, len(rows) - 1)))
        running = sum(row["state"] == "RUNNING" for row in rows)
        order = _SORTS[self._sort].lstrip("-").removeprefix("usage_").replace("_", " ")
        now = f"{datetime.now(self._given.zone).astimezone(self._given.zone):%H:%M:%S %Z}"
        self.sub_title = f"{running} running of {len(rows)} shown, by {order}, {now}"


def _shown(column: TableColumn, row: Mapping[str, Any], text: str) -> Text:
    colour = column.colour(row) if column.colour and in_colour() else ""
    return Text(
        text, _STYLES.get(colour, ""), justify="right" if column.right else "left",
        overflow="ellipsis", no_wrap=True,
    )  # fmt: skip

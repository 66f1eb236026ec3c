"""Tables of jobs: their columns, and the contents of cells.

Functions render the rows, since a page has hundreds of them with twenty cells each. They return
HTML: text from elsewhere must pass through `escape`, `escape_id` or `escape_repeated`.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC
from functools import partial
from typing import NamedTuple

from markupsafe import Markup, escape

from batchjob.runtime.formatting import format_exit_code
from batchjob.runtime.times import format_time
from batchjob_stats_server.pages.rendering import fragments, links, template_filters, usage_bars
from batchjob_stats_server.pages.rendering.fragments import escape_id, escape_repeated
from batchjob_stats_server.pages.rendering.template_filters import absent
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import Efficiency, Row

NOT_REPORTED = "not reported by the scheduler"

LISTED_WAITING_COLUMNS = (
    "id", "cluster", "jobid", "submit_time", "eligible_time", "run", "array_jobid", "array_index",
    "het_jobid", "het_offset", "name", "state", "state_word", "source", "reason", "username",
    "account", "partition", "qos", "start_time", "end_time", "requested_nodes", "requested_cpus",
    "requested_gpus", "allocated_cpus", "allocated_gpus", "allocated_memory_bytes", "gpus_held",
    "usage_gpus", "as_of_time", "as_of_basis",
)  # fmt: skip
"""Columns to query for waiting jobs."""

LISTED_COLUMNS = (
    *LISTED_WAITING_COLUMNS, "elapsed_seconds", "suspended_seconds", "time_limit_seconds",
    "allocated_nodes", "resized_cpu_seconds", "peak_memory_bytes", "exit_code", "exit_signal",
    "exit_code_or_128_more", "usage_samples", "usage_nodes",
    "caveats", "usage_until_time", "usage_caveats", "usage_gpu_utilization_ratio",
    "usage_gpu_sm_active_ratio", "usage_memory_limit_bytes",
    "energy_used_joules", "energy_basis", "cpu_efficiency", "cpu_basis",
    "cpu_unused_seconds", "gpu_unused_seconds", "memory_efficiency", "memory_used_bytes",
    "memory_basis", "memory_short",
)  # fmt: skip
"""Columns to query for other jobs. All columns, three times as many, would take longer."""


class TableContext(NamedTuple):
    """What cells show in addition to the row."""

    now: int
    gpus: Mapping[int, Sequence[float | None]]  # utilisation of each of a job's GPUs, by row id


class ListColumn(NamedTuple):
    """A column of a table of jobs."""

    title: str
    sort: str  # sort key of the list; "" if it cannot be sorted by this column
    render_cell: Callable[[Row, TableContext], str]  # returns the HTML of a cell
    style: str = ""  # CSS class of its cells
    label: str = ""  # shown next to the value on narrow screens, if it differs from the title

    @property
    def head_style(self) -> str:
        return self.style if self.style in ("n", "minor") else ""


COLUMN_TITLES: Mapping[str, str] = {
    "account": "Account", "partition": "Partition", "qos": "QOS", "submitted": "Submitted",
    "started": "Started", "ended": "Ended", "elapsed": "Elapsed", "nodes": "Nodes",
    "cpus": "CPUs", "gpus": "GPUs", "time": "Time used", "cpu": "CPU", "memory": "Memory",
    "gpu": "GPU, with a cell for each", "peak": "Peak memory",
    "cpu_unused": "Unused CPU time", "gpu_unused": "Unused GPU time", "energy": "Energy",
    "exit": "Exit",
}  # fmt: skip
"""The columns from which users choose, as named there; the others are shown where they say more."""

_OF_TASKS = {
    "Nodes", "CPUs", "GPUs", "Time used", "Memory", "GPU", "SMs", "Exit",
    COLUMN_TITLES["cpu_unused"], COLUMN_TITLES["gpu_unused"],
}  # fmt: skip
_EACH_TASK = absent("each task of the array has its own")

DEFAULT_COLUMNS = COLUMN_TITLES.keys() - {
    "qos", "submitted", "ended", "peak", "cpu_unused", "gpu_unused", "exit"
}  # fmt: skip


def columns(
    chosen: Collection[str], sort: str, *, has_gpus: bool, has_waiting: bool, several_users: bool,
    several_clusters: bool,
) -> list[ListColumn]:  # fmt: skip
    """Columns from left to right, after the checkbox and the job's id: for jobs in all states.

    `chosen`: keys of COLUMN_TITLES; `sort`: the list's key, whose column is shown as well.
    """
    shown = {"name", "state", *chosen}
    shown |= {name for name, column in _STARTED_COLUMNS.items() if sort and column.sort == sort}
    if several_users:
        shown.add("user")
    if several_clusters:
        shown.add("cluster")
    if not has_gpus:
        shown -= {"gpus", "gpu", "gpu_unused"}
    if has_waiting:
        shown.add("time")  # at least one for the reason
    table = {**_OWNER_COLUMNS, **_STARTED_COLUMNS}
    if several_users and several_clusters:
        table["account"] = table["account"]._replace(style="minor")
    return [column for name, column in table.items() if name in shown]


def body(
    rows: Sequence[Row], table_columns: Sequence[ListColumn], context: TableContext,
    is_waiting: bool = False,
) -> Markup:  # fmt: skip
    shown = _of_waiting(table_columns) if is_waiting else table_columns
    closing_tags = ["</th>"] + ["</td>"] * len(shown)  # closing tag of the previous cell
    cells = []
    for end, column in zip(closing_tags, shown, strict=False):
        style = f' class="{column.style}"' if column.style else ""
        label = column.label or column.title
        if column is _REASON:
            style = f' colspan="{1 + len(table_columns) - len(shown)}"'
        cells.append((f'{end}<td role="cell"{style} data-label="{label}">', column))
    pieces: list[str] = []
    for row in rows:
        pieces.append(_row_start(row))
        is_array = bool(row.get("array_states"))
        for opening, column in cells:
            of_each_task = is_array and column.title in _OF_TASKS
            pieces += (opening, _EACH_TASK if of_each_task else column.render_cell(row, context))
        pieces.append("</td></tr>\n")
    return template_filters.trusted_html("".join(pieces))


def _of_waiting(table_columns: Sequence[ListColumn]) -> list[ListColumn]:
    """What jobs that have not started show in these columns; the reason takes the last ones."""
    owner = [column for column in table_columns if column.title in _OWNER_TITLES]
    asked = [
        _WAITING_COLUMNS[each.title] for each in table_columns if each.title in _WAITING_COLUMNS
    ]
    return [*owner, *asked, _REASON]


def _row_start(row: Row) -> str:
    run, jobid = escape(links.reference(row)), escape_id(row["jobid"])
    if row.get("array_states"):  # only its tasks can be compared
        empty = '<tr role="row"><td role="cell" class="tick"></td><th role="rowheader" scope="row">'
        return f"{empty}{fragments.job_link(row)}"
    return (
        '<tr role="row"><td role="cell" class="tick"><input type="checkbox" name="job" '
        f'value="{run}" aria-label="Compare job {jobid}"></td>'
        f'<th role="rowheader" scope="row">{fragments.job_link(row)}'
    )


def _text_column(title: str, key: str, missing: str, style: str = "") -> ListColumn:
    dash = absent(missing)

    def render_cell(row: Row, _: TableContext) -> str:
        return escape_repeated(row[key]) if row[key] else dash

    return ListColumn(title, key, render_cell, style)


def _time_column(title: str, key: str, missing: str) -> ListColumn:
    dash = absent(missing)

    def render_cell(row: Row, context: TableContext) -> str:
        seconds = row[key]
        return dash if seconds is None else template_filters.moment(seconds, False, context.now)

    return ListColumn(title, key, render_cell)


def _waiting_cell(row: Row, context: TableContext) -> str:
    waited = explain.waiting_seconds(row, context.now)
    if waited is None:
        return template_filters.absent("it is not ready to start")
    return template_filters.duration(waited)


def _elapsed_cell(row: Row, context: TableContext) -> str:
    seconds = explain.elapsed_seconds(row, context.now)
    missing = explain.elapsed_missing(row) if seconds is None else ""
    return absent(missing) if seconds is None else template_filters.duration(seconds)


def _number_column(
    title: str, sort: str, key: str, missing: str = NOT_REPORTED,
    format_value: Callable[..., str] = template_filters.number,
) -> ListColumn:  # fmt: skip
    dash = absent(missing)

    def render_cell(row: Row, _: TableContext) -> str:
        return dash if row[key] is None else format_value(row[key])

    return ListColumn(title, sort, render_cell, "n")


def _hours_column(title: str, key: str, missing: str) -> ListColumn:
    return _number_column(title, key, key, missing, template_filters.hours)


def _held_cpus_cell(row: Row, context: TableContext) -> str:
    """The CPUs that a job holds, or held at its end."""
    text = _ALLOCATED_CPUS.render_cell(row, context)
    return f"{text} at last" if row["resized_cpu_seconds"] else text


def _gpu_count_cell(key: str, row: Row, _: TableContext) -> str:
    return template_filters.number(row[key]) if row[key] else ""


def _time_used_cell(row: Row, context: TableContext) -> str:
    used = explain.time_ratio(row, context.now)
    if used.ratio is None:
        return absent(used.missing)
    text = template_filters.percent(used.ratio)
    high = usage_bars.level(used.what, used.ratio) == "high"
    return f'<span class="bad">{text}</span>' if high else text


def _measured_bar(used: Efficiency, row: Row, now: int) -> str:
    """A bar; of a running job, it says as of when it is."""
    bar = usage_bars.job_bar(used, row, now)
    if row["end_time"] is None and row["usage_until_time"] is not None:
        as_of = f"as of {_time_in_words(row['usage_until_time'])}"
        bar = bar._replace(detail=f"{bar.detail}; {as_of}" if bar.detail else as_of)
    return fragments.usage_bar(bar)


@functools.lru_cache(4096)
def _time_in_words(seconds: float) -> str:
    """Cached, since most running jobs were last measured together."""
    return format_time(seconds, UTC)


def _gpu_cell(row: Row, context: TableContext) -> str:
    used = explain.gpu_ratio(row)
    if used is None:
        return ""
    cells = fragments.gpu_cells(context.gpus.get(row["id"], ()))
    return f"{_measured_bar(used, row, context.now)}{cells}"


def _energy_cell(row: Row, _: TableContext) -> str:
    joules = row["energy_used_joules"]
    missing = explain.energy_missing(row) if joules is None else ""
    if joules is None:
        return absent(missing)
    return explain.energy_of(row, template_filters.energy(joules))


def _exit_cell(row: Row, _: TableContext) -> str:
    if row["exit_signal"]:
        return f"signal {row['exit_signal']}"
    exit_code = format_exit_code(row["exit_code"], row["exit_code_or_128_more"])
    return exit_code or absent("it has not ended, or its scheduler does not say")


_OWNER_COLUMNS = {
    "name": ListColumn("Name", "name", lambda row, _: fragments.job_name(row), "name"),
    "state": ListColumn("State", "state", lambda row, _: fragments.job_state(row)),
    "user": ListColumn("User", "user", lambda row, _: fragments.user_link(row["username"]), "user"),
    "account": _text_column("Account", "account", "no account is known"),
    "cluster": ListColumn("Cluster", "", lambda row, _: fragments.cluster_link(row["cluster"])),
    "partition": _text_column("Partition", "partition", "no partition is known", "minor"),
    "qos": _text_column("QOS", "qos", "no QOS is known"),
    "submitted": _time_column("Submitted", "submit_time", ""),
}
_OWNER_TITLES = {column.title for column in _OWNER_COLUMNS.values()}
_WAITING_COLUMNS = {
    "Started": _time_column("Submitted", "submit_time", ""),
    "Ended": ListColumn("Ended", "", lambda *_: absent("it has not started")),
    "Elapsed": ListColumn("Waiting", "elapsed_seconds", _waiting_cell, "n"),
    "Nodes": _number_column("Nodes", "allocated_nodes", "requested_nodes"),
    "CPUs": _number_column("CPUs", "allocated_cpus", "requested_cpus"),
    "GPUs": ListColumn("GPUs", "allocated_gpus", partial(_gpu_count_cell, "requested_gpus"), "n"),
}
_REASON = _text_column("Reason", "reason", "the scheduler gives no reason")
_ALLOCATED_CPUS = _number_column("CPUs", "allocated_cpus", "allocated_cpus")
_STARTED_COLUMNS = {
    "started": _time_column("Started", "start_time", "it has not started"),
    "ended": _time_column("Ended", "end_time", "it has not ended"),
    "elapsed": ListColumn("Elapsed", "elapsed_seconds", _elapsed_cell, "n"),
    "nodes": _number_column("Nodes", "allocated_nodes", "allocated_nodes"),
    "cpus": _ALLOCATED_CPUS._replace(render_cell=_held_cpus_cell),
    "gpus": ListColumn("GPUs", "allocated_gpus", partial(_gpu_count_cell, "gpus_held"), "n"),
    "time": ListColumn("Time used", "time_efficiency", _time_used_cell, "n"),
    "cpu": ListColumn(
        "CPU",
        "cpu_efficiency",
        lambda row, context: _measured_bar(explain.cpu_ratio(row), row, context.now),
        label="CPU used",
    ),
    "memory": ListColumn(
        "Memory",
        "memory_efficiency",
        lambda row, context: _measured_bar(explain.memory_ratio(row), row, context.now),
        label="Memory used",
    ),
    "peak": _number_column(
        "Peak memory",
        "usage_memory_peak_bytes",
        "memory_used_bytes",
        "not measured",
        template_filters.size,
    ),
    "gpu": ListColumn("GPU", "usage_gpu_utilization_ratio", _gpu_cell, label="GPU used"),
    "gpu_sm": _number_column(
        "SMs",
        "usage_gpu_sm_active_ratio",
        "usage_gpu_sm_active_ratio",
        "measured on Hopper and later",
        template_filters.percent,
    ),
    "cpu_unused": _hours_column("Unused CPU time", "cpu_unused_seconds", "not measured"),
    "gpu_unused": _hours_column("Unused GPU time", "gpu_unused_seconds", "no GPU, or not measured"),
    "energy": ListColumn("Energy", "energy_used_joules", _energy_cell, "n"),
    "exit": ListColumn("Exit", "", _exit_cell, "n"),
}

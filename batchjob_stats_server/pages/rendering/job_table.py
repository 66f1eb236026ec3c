"""Tables of jobs: their columns, and the contents of cells.

Functions write the rows, since a page has hundreds of them with twenty cells each. They write HTML:
text from elsewhere must pass through `escape` or `words`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from batchjob_stats_server.pages.job_columns import LINES, TITLES, Column
from batchjob_stats_server.pages.rendering import fragments, links, template_filters, usage_bars
from batchjob_stats_server.pages.rendering.fragments import escaped, words
from batchjob_stats_server.pages.rendering.sparklines import Line, LineKey, Sparkline
from batchjob_stats_server.pages.rendering.template_filters import absent
from batchjob_stats_server.report import explain

Row = Mapping[Any, Any]

_UNTOLD = "not reported by the scheduler"

READ_WAITING = (
    "id", "cluster", "jobid", "submit_time", "eligible_time", "run", "array_jobid", "array_index",
    "het_jobid", "het_offset", "name", "state", "reason", "username", "account", "partition", "qos",
    "start_time", "end_time", "requested_nodes", "requested_cpus", "requested_gpus",
    "allocated_cpus", "allocated_gpus", "allocated_memory_bytes", "usage_gpus",
)  # fmt: skip
"""What cells of jobs that wait are made of; one that ran before may have lines as well."""

READ = (
    *READ_WAITING, "elapsed_seconds", "suspended_seconds", "time_limit_seconds",
    "allocated_nodes", "peak_memory_bytes", "exit_code", "exit_signal", "usage_samples",
    "usage_nodes",
    "usage_until_time", "usage_doubt", "usage_gpu_utilization_ratio", "usage_memory_limit_bytes",
    "energy_used_joules", "cpu_efficiency", "cpu_basis",
    "memory_efficiency", "memory_used_bytes", "memory_basis",
)  # fmt: skip
"""What cells and lines are made of: a job has thrice as many columns, which take their time."""


class TableFacts(NamedTuple):
    """What cells need in addition to the rows."""

    now: int
    gpus: Mapping[int, Sequence[float | None]]  # utilisation of each of a job's GPUs, by row id
    sparks: Mapping[LineKey, Sparkline] | None  # None: there are no measurements


class ListColumn(NamedTuple):
    """A column of a table of jobs."""

    title: str
    sort: str  # sort key of the list; "" if it cannot be sorted by this column
    write: Callable[[Row, TableFacts], str]  # returns the HTML of a cell
    style: str = ""  # CSS class of its cells
    label: str = ""  # shown next to the value on narrow screens, if it differs from the title

    @property
    def head_style(self) -> str:
        """The CSS class of its heading."""
        return self.style if self.style in ("n", "minor") else ""


class ListLayout(NamedTuple):
    """What decides which columns a table has."""

    chosen: Collection[Column]
    waits: bool  # whether the jobs have not started yet
    gpus: bool  # whether any job has GPUs
    several_users: bool
    several_clusters: bool
    lines: bool  # whether there are measurements


def columns(layout: ListLayout) -> list[ListColumn]:
    """Columns from left to right, after the checkbox and the job's id."""
    return [column for wanted, column in _wanted(layout) if wanted]


def body(rows: Sequence[Row], shown: Sequence[ListColumn], facts: TableFacts) -> Markup:
    """The rows of a table."""
    ends = ["</th>"] + ["</td>"] * len(shown)  # closing tag of the previous cell
    cells = [(end + _opening(each), each.write) for end, each in zip(ends, shown, strict=False)]
    pieces: list[str] = []
    for row in rows:
        pieces.append(_begin(row))
        pieces += [piece for opening, write in cells for piece in (opening, write(row, facts))]
        pieces.append("</td></tr>\n")
    return fragments.html("".join(pieces))


def _opening(column: ListColumn) -> str:
    style = f' class="{column.style}"' if column.style else ""
    return f'<td role="cell"{style} data-label="{column.label or column.title}">'


def _begin(row: Row) -> str:
    run, jobid = escape(links.reference(row)), escaped(row["jobid"])
    return (
        '<tr role="row"><td role="cell" class="tick"><input type="checkbox" name="job" '
        f'value="{run}" aria-label="Compare job {jobid}"></td>'
        f'<th role="rowheader" scope="row">{fragments.job_link(row)}'
    )


def _wanted(layout: ListLayout) -> Iterator[tuple[bool, ListColumn]]:
    """All columns, and whether each is shown."""
    chosen, waits, held = layout.chosen, layout.waits, "requested" if layout.waits else "allocated"
    yield True, ListColumn("Name", "name", lambda row, _: fragments.name(row), "name")
    yield True, ListColumn("State", "state", lambda row, _: fragments.state(row["state"]))
    yield layout.several_users, ListColumn("User", "user", _user, "user")
    account = _words("Account", "account", "no account is known")
    crowd = layout.several_users and layout.several_clusters
    yield Column.ACCOUNT in chosen, account._replace(style="minor") if crowd else account
    yield layout.several_clusters, ListColumn("Cluster", "", _cluster)
    partition = _words("Partition", "partition", "no partition is known")
    yield Column.PARTITION in chosen, partition._replace(style="minor")
    yield Column.QOS in chosen, _words("QOS", "qos", "no QOS is known")
    yield waits or Column.SUBMITTED in chosen, _time("Submitted", "submit_time", "")
    yield (
        not waits and Column.STARTED in chosen,
        _time("Started", "start_time", "it has not started"),
    )
    yield not waits and Column.ENDED in chosen, _time("Ended", "end_time", "it has not ended")
    title, write = ("Waiting", _waiting) if waits else ("Elapsed", _elapsed)
    yield Column.ELAPSED in chosen, ListColumn(title, "elapsed_seconds", write, "n")
    for column, name in ((Column.NODES, "nodes"), (Column.CPUS, "cpus")):
        write = partial(_number, f"{held}_{name}", _UNTOLD)
        title = "Nodes" if name == "nodes" else "CPUs"
        yield column in chosen, ListColumn(title, f"allocated_{name}", write, "n")
    gpus = ListColumn("GPUs", "allocated_gpus", partial(_gpus, f"{held}_gpus"), "n")
    yield layout.gpus and Column.GPUS in chosen, gpus
    if waits:
        yield True, _words("Reason", "reason", "the scheduler gives no reason")._replace(sort="")
    else:
        yield from _of_started(layout)


def _of_started(layout: ListLayout) -> Iterator[tuple[bool, ListColumn]]:
    """Columns of jobs that have started."""
    chosen = layout.chosen
    yield Column.TIME in chosen, ListColumn("Time used", "time_efficiency", _time_used, "n")
    cpu = ListColumn("CPU", "cpu_efficiency", _cpu, label="CPU used")
    yield Column.CPU in chosen, cpu
    memory = ListColumn("Memory", "memory_efficiency", _memory, label="Memory used")
    yield Column.MEMORY in chosen, memory
    yield Column.PEAK in chosen, ListColumn("Peak memory", "usage_memory_peak_bytes", _peak, "n")
    gpu = ListColumn("GPU", "usage_gpu_utilization_ratio", _gpu, label="GPU used")
    yield layout.gpus and Column.GPU in chosen, gpu
    for column, line in LINES.items():
        seen = column in chosen and layout.lines and (layout.gpus or line is not Line.GPU)
        yield seen, ListColumn(TITLES[column], "", partial(_line, line))
    yield Column.ENERGY in chosen, ListColumn("Energy", "energy_used_joules", _energy, "n")
    yield Column.EXIT in chosen, ListColumn("Exit", "", _exit, "n")


def _words(title: str, key: str, missing: str) -> ListColumn:
    dash = absent(missing)
    return ListColumn(title, key, lambda row, _: words(row[key]) if row[key] else dash)


def _time(title: str, key: str, missing: str) -> ListColumn:
    dash = absent(missing)

    def write(row: Row, facts: TableFacts) -> str:
        at = row[key]
        return dash if at is None else template_filters.moment(at, False, facts.now)

    return ListColumn(title, key, write)


def _user(row: Row, _: TableFacts) -> str:
    return fragments.user_link(row["username"])


def _cluster(row: Row, _: TableFacts) -> str:
    return fragments.cluster_link(row["cluster"])


def _waiting(row: Row, facts: TableFacts) -> str:
    return template_filters.lasting(explain.waiting(row, facts.now))


def _elapsed(row: Row, facts: TableFacts) -> str:
    seconds = explain.elapsed(row, facts.now)
    missing = explain.no_elapsed(row) if seconds is None else ""
    return absent(missing) if seconds is None else template_filters.lasting(seconds)


def _number(key: str, missing: str, row: Row, _: TableFacts) -> str:
    value = row[key]
    return absent(missing) if value is None else template_filters.number(value)


def _gpus(key: str, row: Row, _: TableFacts) -> str:
    return template_filters.number(row[key]) if row[key] else ""


def _time_used(row: Row, facts: TableFacts) -> str:
    used = explain.time_ratio(row, facts.now)
    if used.ratio is None:
        return absent(used.missing)
    text = template_filters.share(used.ratio)
    high = usage_bars.level(used.what, used.ratio) == "high"
    return f'<span class="bad">{text}</span>' if high else text


def _cpu(row: Row, _: TableFacts) -> str:
    return fragments.bar(usage_bars.shown(explain.cpu_ratio(row)))


def _memory(row: Row, _: TableFacts) -> str:
    return fragments.bar(usage_bars.shown(explain.memory_ratio(row)))


def _gpu(row: Row, facts: TableFacts) -> str:
    used = explain.gpu_ratio(row)
    if used is None:
        return ""
    cells = fragments.gpu_cells(facts.gpus.get(row["id"], ()))
    return f"{fragments.bar(usage_bars.shown(used))}{cells}"


def _peak(row: Row, _: TableFacts) -> str:
    size = row["memory_used_bytes"]
    return absent("not measured") if size is None else template_filters.size(size)


def _line(line: Line, row: Row, facts: TableFacts) -> str:
    if line is Line.GPU and not row["allocated_gpus"]:
        return ""
    return fragments.spark((facts.sparks or {}).get((row["id"], line)))


def _energy(row: Row, _: TableFacts) -> str:
    joules = row["energy_used_joules"]
    missing = explain.energy_missing(row) if joules is None else ""
    return absent(missing) if joules is None else template_filters.energy(joules)


def _exit(row: Row, facts: TableFacts) -> str:
    if row["exit_signal"]:
        return f"signal {row['exit_signal']}"
    return _number("exit_code", "it has not ended, or its scheduler does not say", row, facts)

"""`batchjob stats`: totals, and how often work succeeds."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from batchjob.judgements import FAILED_STATES
from batchjob.runtime.formatting import energy, format_duration, share, size
from batchjob.schedulers.states import JobState
from batchjob_cli.client.connect import command_parser, job_pages
from batchjob_cli.client.table import TableColumn, cell, format_table, print_text, terminal_width
from batchjob_cli.jobs import add_filters, filter_parameters, print_csv, print_json

_KEYS = ("name", "tool", "account", "user", "partition", "state", "cluster")
_FIELDS = (
    "state", "end_time", "elapsed_seconds", "cpu_used_seconds", "memory_used_bytes",
    "energy_used_joules",
    "energy_basis",
)  # fmt: skip
_MAX_JOBS = 200_000  # maximum jobs read
_DAYS = 30


def totals(rows: Iterable[Mapping[str, Any]], by: str) -> list[dict[str, Any]]:
    """A total for each value of `by`, most jobs first, and one for all at the end.

    Sums are over the jobs whose value is known, of which there are `jobs_with_...`.
    """
    groups: dict[str, dict[str, Any]] = {}
    overall: dict[str, Any] = defaultdict(int)
    for row in rows:
        for sums in (groups.setdefault(row[by] or "", defaultdict(int)), overall):
            _add(sums, row)
    ordered = sorted(groups.items(), key=lambda group: (-group[1]["jobs"], group[0]))
    found = [_total(key, sums, overall=False) for key, sums in ordered]
    return [*found, _total("", overall, overall=True)] if found else []


def _add(sums: dict[str, Any], row: Mapping[str, Any]) -> None:
    state = JobState(row["state"])
    sums["jobs"] += 1
    sums["ended"] += row["end_time"] is not None
    sums["succeeded"] += state is JobState.COMPLETED
    sums["failed"] += state in FAILED_STATES
    sums["cancelled"] += state is JobState.CANCELLED
    sums["peak"] = max(sums["peak"], row["memory_used_bytes"] or 0)
    # Accounting's energy is that of whole nodes, and would count once for each of their jobs.
    joules = row["energy_used_joules"] if row["energy_basis"] == "measured" else None
    values = {"time": row["elapsed_seconds"], "cpu_time": row["cpu_used_seconds"], "energy": joules}
    for name, value in values.items():
        if value is not None:
            sums[name] += value
            sums[f"jobs_with_{name}"] += 1


def _total(key: str, sums: dict[str, Any], *, overall: bool) -> dict[str, Any]:
    """`failed`: see `batchjob.judgements.FAILED_MEANS`; `overall`: whether it is of all jobs."""

    def ratio(part: str, whole: str) -> float | None:
        return sums[part] / sums[whole] if sums[whole] else None

    return {
        "key": key, "jobs": sums["jobs"], "ended": sums["ended"], "succeeded": sums["succeeded"],
        "failed": sums["failed"], "cancelled": sums["cancelled"],
        "success_ratio": ratio("succeeded", "ended"),
        "elapsed_seconds": float(sums["time"]),
        "mean_elapsed_seconds": ratio("time", "jobs_with_time"),
        "cpu_seconds": float(sums["cpu_time"]),
        "mean_cpu_seconds": ratio("cpu_time", "jobs_with_cpu_time"),
        "jobs_with_time": sums["jobs_with_time"],
        "jobs_with_cpu_time": sums["jobs_with_cpu_time"],
        "peak_memory_bytes": sums["peak"] or None,  # of the job with the highest peak
        "energy_joules": sums["energy"] if sums["jobs_with_energy"] else None,
        "jobs_with_energy": sums["jobs_with_energy"], "overall": overall,
    }  # fmt: skip


def run(arguments: list[str]) -> int:
    """Print totals; the exit status. Raises SettingsError."""
    parser = command_parser(
        "stats", f"Shows totals and success rates of jobs in the last {_DAYS} days."
    )
    add_filters(parser.add_argument)
    parser.add_argument(
        "--by", choices=_KEYS, default="name", help="key to group by (default: name)"
    )
    parser.add_argument("--format", choices=("table", "json", "csv"), default="table",
                      help="output format (default: table)")  # fmt: skip
    given = parser.parse_args(arguments)
    if given.since is None:
        given.since = time.time() - _DAYS * 86400
    fields = dict.fromkeys((given.by, *_FIELDS))
    parameters = filter_parameters(given) | {"limit": 1000, "fields": ",".join(fields)}
    rows = (row for page in job_pages(given, parameters, _MAX_JOBS) for row in page)
    results = totals(rows, given.by)
    if given.format == "table":
        columns = _columns(given.by)
        text = format_table(columns, results, terminal_width()) if results else "No job matches."
        print_text(text)
    else:
        {"json": print_json, "csv": print_csv}[given.format](results)
    return 0


def _columns(by: str) -> tuple[TableColumn, ...]:
    return (
        TableColumn(
            by.upper(), lambda row: "all" if row["overall"] else row["key"] or "-", elastic=True
        ),
        TableColumn("JOBS", cell("jobs", str), right=True),
        TableColumn("ENDED", cell("ended", str), right=True, drop_order=4),
        TableColumn("FAILED", cell("failed", str), right=True),
        TableColumn("CANCELLED", cell("cancelled", str), right=True, drop_order=3),
        TableColumn("SUCCEEDED", cell("success_ratio", share), right=True, drop_order=2),
        TableColumn("TIME", cell("elapsed_seconds", format_duration), right=True, drop_order=3),
        TableColumn(
            "MEAN", cell("mean_elapsed_seconds", format_duration), right=True, drop_order=5
        ),
        TableColumn("CPU TIME", cell("cpu_seconds", format_duration), right=True, drop_order=1),
        TableColumn("MEAN", cell("mean_cpu_seconds", format_duration), right=True, drop_order=5),
        TableColumn("PEAK MEMORY", cell("peak_memory_bytes", size), right=True, drop_order=2),
        TableColumn("ENERGY", cell("energy_joules", energy), right=True, drop_order=3),
    )

"""`batchjob stats`: totals, and how often work succeeds."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from batchjob.judgements import FAILED_STATES
from batchjob.runtime.formatting import energy, format_duration, share, size
from batchjob.schedulers.states import JobState
from batchjob_cli.client.connect import command_parser, job_pages
from batchjob_cli.client.table import TableColumn, cell, format_table, print_text
from batchjob_cli.jobs import add_filters, filter_parameters, print_csv, print_json

_KEYS = ("name", "tool", "account", "user", "partition", "state", "cluster")
_FIELDS = (
    "state", "end_time", "elapsed_seconds", "cpu_used_seconds", "memory_used_bytes",
    "energy_used_joules",
    "energy_basis",
)  # fmt: skip
_MAX_JOBS = 200_000  # maximum jobs read
_DAYS = 30


class Total(NamedTuple):
    """A group of jobs; sums are over the jobs whose value is known."""

    key: str
    jobs: int = 0
    ended: int = 0
    succeeded: int = 0
    failed: int = 0  # see `batchjob.judgements.FAILED_MEANS`
    success_ratio: float | None = None  # of the ended jobs
    elapsed_seconds: float = 0.0
    mean_elapsed_seconds: float | None = None
    cpu_seconds: float = 0.0
    mean_cpu_seconds: float | None = None
    jobs_with_time: int = 0  # jobs with known elapsed time
    jobs_with_cpu_time: int = 0  # jobs with known CPU time
    peak_memory_bytes: int | None = None  # of the job with the highest peak
    energy_joules: float | None = None
    jobs_with_energy: int = 0  # jobs with measured energy
    overall: bool = False  # the total of all jobs

    def plus(self, row: Mapping[str, Any]) -> "Total":
        """The total with one more job."""
        state = JobState(row["state"])
        ended = self.ended + (row["end_time"] is not None)
        succeeded = self.succeeded + (state is JobState.COMPLETED)
        elapsed = self.elapsed_seconds + (row["elapsed_seconds"] or 0.0)
        cpu = self.cpu_seconds + (row["cpu_used_seconds"] or 0.0)
        jobs_with_time = self.jobs_with_time + (row["elapsed_seconds"] is not None)
        jobs_with_cpu_time = self.jobs_with_cpu_time + (row["cpu_used_seconds"] is not None)
        peaks = [each for each in (self.peak_memory_bytes, row["memory_used_bytes"]) if each]
        # Accounting's energy is that of whole nodes, and would count once for each of their jobs.
        measured = row["energy_used_joules"] if row["energy_basis"] == "measured" else None
        joules = [each for each in (self.energy_joules, measured) if each is not None]
        return Total(
            self.key,
            self.jobs + 1,
            ended,
            succeeded,
            self.failed + (state in FAILED_STATES),
            succeeded / ended if ended else None,
            elapsed,
            elapsed / jobs_with_time if jobs_with_time else None,
            cpu,
            cpu / jobs_with_cpu_time if jobs_with_cpu_time else None,
            jobs_with_time,
            jobs_with_cpu_time,
            max(peaks, default=None),
            sum(joules) if joules else None,
            self.jobs_with_energy + (measured is not None),
            self.overall,
        )


def totals(rows: Iterable[Mapping[str, Any]], by: str) -> list[Total]:
    """A total for each value of `by`, most jobs first, and one for all at the end."""
    totals_by_key: dict[str, Total] = {}
    overall = Total("", overall=True)
    for row in rows:
        key = row[by] or ""
        totals_by_key[key] = totals_by_key.get(key, Total(key)).plus(row)
        overall = overall.plus(row)
    groups = sorted(totals_by_key.values(), key=lambda total: (-total.jobs, total.key))
    return [*groups, overall] if groups else []


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
        print_text(
            format_table(_columns(given.by), [each._asdict() for each in results])
            if results
            else "no job"
        )
    else:
        {"json": print_json, "csv": print_csv}[given.format]([each._asdict() for each in results])
    return 0


def _columns(by: str) -> tuple[TableColumn, ...]:
    return (
        TableColumn(by.upper(), lambda row: "all" if row["overall"] else row["key"] or "-"),
        TableColumn("JOBS", cell("jobs", str), right=True),
        TableColumn("ENDED", cell("ended", str), right=True),
        TableColumn("FAILED", cell("failed", str), right=True),
        TableColumn("SUCCEEDED", cell("success_ratio", share), right=True),
        TableColumn("TIME", cell("elapsed_seconds", format_duration), right=True),
        TableColumn("MEAN", cell("mean_elapsed_seconds", format_duration), right=True),
        TableColumn("CPU TIME", cell("cpu_seconds", format_duration), right=True),
        TableColumn("MEAN", cell("mean_cpu_seconds", format_duration), right=True),
        TableColumn("PEAK MEMORY", cell("peak_memory_bytes", size), right=True),
        TableColumn("ENERGY", cell("energy_joules", energy), right=True),
    )

"""A person's jobs at present: what runs and how, what waits, what failed, and what to change.

Commands on this machine read it from the database themselves, so nothing of the web server is
imported here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from batchjob.judgements import FAILED_STATES, unused_cpu_seconds
from batchjob.runtime.formatting import digits, format_duration, share, size, to_printable
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.measure.current_use import CurrentUse
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import visible_jobs
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import Page, list_jobs, rows_by_ids
from batchjob_stats_db.queries.stats import usual_waits
from batchjob_stats_server.api.reports import ReportSources, report_of
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.headline import headline
from batchjob_stats_server.report.model import Advice, Report, ReportInput, Row
from batchjob_stats_server.report.text import Document, ReportLine

if TYPE_CHECKING:
    from batchjob_stats_server.services import Services

HOUR, HOURS = 3600, 24
_MOST_LIVE, _MOST_ENDED = 200, 200  # jobs that are read
_LONGEST_DAYS = 31  # jobs that ran for longer are not among the ended ones
_CHANGES = 3

COLUMNS = (
    "id", "cluster", "jobid", "submit_time", "eligible_time", "run", "array_jobid", "array_index",
    "het_jobid", "het_offset", "name", "state", "state_word", "source", "reason", "username",
    "account", "partition", "start_time", "end_time", "elapsed_seconds", "suspended_seconds",
    "time_limit_seconds", "requested_nodes", "requested_cpus", "requested_gpus", "allocated_cpus",
    "allocated_memory_bytes", "gpus_held", "exit_code", "exit_signal", "exit_code_or_128_more",
    "derived_exit_code", "derived_exit_signal", "error", "dependencies", "priority",
    "expected_start_time", "as_of_time", "as_of_basis", "cpu_efficiency", "memory_efficiency",
    "usage_gpu_utilization_ratio", "energy_used_joules", "allocated_nodes", "memory_short",
    "cancelled_by", "node_list", "uid", "cpu_unused_seconds", "gpu_unused_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A job that left much unused, and what to change."""

    jobid: str
    user: str
    name: str
    cluster: str
    title: str
    reason: str
    step: str
    line: str  # the next submit line, if one is known that would have been enough


class Group(NamedTuple):
    """Jobs that wait or failed alike, the latest first."""

    rows: Sequence[Row]
    words: str  # why they wait, or how they ended


class Present(NamedTuple):
    """Of one person; the rows have COLUMNS."""

    now: int
    running: Sequence[Row]
    to_measure: Sequence[JobToMeasure]  # the running ones
    waiting: Sequence[Group]
    ended: Sequence[Row]  # since yesterday, by their start, the latest first
    is_cut: bool  # whether more have ended since then
    shares: Mapping[tuple[str, str], float]  # cluster and account: what is used of the share
    use: Mapping[int, CurrentUse] = {}  # by the row's id; of those that were measured just now
    changes: Sequence[Change] = ()

    def failed(self) -> list[Group]:
        """The failed jobs, grouped by their name and how they ended."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.ended:
            if row["state"] in FAILED_STATES:
                groups.setdefault((row["name"], row["state"]), []).append(row)
        return [Group(rows, headline(ReportInput(rows[0], self.now))) for rows in groups.values()]

    def by_hour(self) -> dict[str, dict[int, tuple[float, float]]]:
        """What was used and held in each of the last 24 hours, by its begin, on average.

        What a job used counts as its mean over its whole time, and memory as its peak.
        """
        first, last = self.now // HOUR * HOUR - (HOURS - 1) * HOUR, self.now
        sums: dict[str, dict[int, tuple[float, float]]] = {
            what: {} for what in ("CPUs", "Memory", "GPUs", "Power")
        }
        for row in (*self.running, *self.ended):
            begin, end = row["start_time"], row["end_time"] or last
            if begin is None or end <= max(begin, first):
                continue
            rates = _rates(row, end - begin)
            for hour in range(max(first, int(begin) // HOUR * HOUR), math.ceil(end), HOUR):
                seconds = min(end, hour + HOUR) - max(begin, hour)
                part = seconds / max(1, min(HOUR, last - hour))
                for what, used, held in rates:
                    before = sums[what].get(hour, (0.0, 0.0))
                    sums[what][hour] = before[0] + part * used, before[1] + part * held
        return sums


def _rates(row: Row, seconds: float) -> list[tuple[str, float, float]]:
    """What a job used and held; power is only used."""
    amounts = (
        ("CPUs", row["allocated_cpus"], row["cpu_efficiency"]),
        ("Memory", row["allocated_memory_bytes"], row["memory_efficiency"]),
        ("GPUs", row["gpus_held"], row["usage_gpu_utilization_ratio"]),
        ("Power", (row["energy_used_joules"] or 0.0) / seconds, 1.0),
    )
    return [(what, (ratio or 0.0) * held, held) for what, held, ratio in amounts if held]


def gather(sources: "Services | ReportSources", access: Access, user: str | None) -> Present:
    """The present of a person by the database; None: of everybody whom the caller may see."""
    now, policy = int(sources.clock()), sources.settings.tsdb.policy()
    own, live = Filter(user=user), Page(_MOST_LIVE, columns=COLUMNS)
    since = day_of(now) - DAY
    with sources.reader.connect() as db:
        running = list_jobs(db, access, own._replace(running=True), page=live).rows
        pending = own._replace(states=(JobState.PENDING,))
        waiting = list_jobs(db, access, pending, page=live).rows
        # In the order of an index: the newest jobs are read, not all that a person ever had.
        newest = own._replace(started_from=since - _LONGEST_DAYS * DAY, ended_from=since)
        ended, more = list_jobs(db, access, newest, page=Page(_MOST_ENDED, columns=COLUMNS))
        waits = usual_waits(db, access, None, now) if waiting else ()
        ids = [row["id"] for row in running] if sources.stores.has_store else ()
        jobs = visible_jobs(db, access, ids, policy, now) if ids else {}
    of_partition = {
        (row["cluster"], row["partition"]): row
        for row in waits if not (row["username"] or row["account"])
    }  # fmt: skip
    accounts = {(row["cluster"], row["account"]) for row in (*running, *waiting, *ended)}
    return Present(
        now, running, list(jobs.values()), _alike(waiting, of_partition, now), ended,
        more is not None, dict(_shares(sources, sorted(accounts), now)),
    )  # fmt: skip


def use_row(row: Row, use: CurrentUse) -> dict[str, Any]:
    """A running job and what it uses now, with the keys of the API."""
    return {
        "id": row["id"], "cluster": row["cluster"], "jobid": row["jobid"], "cpus": use.cpus,
        "memory_bytes": use.memory_bytes, "gpu_utilization_ratio": use.gpu_ratio,
        "sample_time": 1000 * use.sample_time,
    }  # fmt: skip


def _alike(waiting: Sequence[Row], waits: Mapping[tuple[str, str], Row], now: int) -> list[Group]:
    """The tasks of an array that wait for the same reason are one group."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in waiting:
        key = row["cluster"], row["array_jobid"] or row["id"], row["reason"]
        groups.setdefault(key, []).append(row)
    return [
        Group(rows, headline(ReportInput(rows[0], now, usual_wait=waits.get(where))))
        for rows in groups.values()
        for where in [(rows[0]["cluster"], rows[0]["partition"])]
    ]


def _shares(
    sources: "Services | ReportSources", accounts: Sequence[tuple[str, str]], now: int
) -> Iterator[tuple[tuple[str, str], float]]:
    for cluster, account in accounts:
        reading = sources.readings.of(cluster, now) if sources.readings else None
        shares = reading.shares.get(account, {}) if reading else {}
        if shares.get("shares_ratio") and "usage_ratio" in shares:
            yield (cluster, account), shares["usage_ratio"] / shares["shares_ratio"]


def find_changes(
    sources: "Services | ReportSources", access: Access, rows: Sequence[Row], most: int = _CHANGES
) -> list[Change]:
    """Of each name the job that left most unused, if something can be advised for it."""
    worst: dict[tuple[str, str], tuple[float, int]] = {}
    for row in rows:
        name = row["username"], row["name"]
        unused = unused_cpu_seconds(row)
        if unused > worst.get(name, (0.0, 0))[0]:
            worst[name] = unused, row["id"]
    ids = [number for _, number in sorted(worst.values(), reverse=True)[: 2 * most]]
    with sources.reader.connect() as db:
        jobs = rows_by_ids(db, ids)
    found = (_change(report_of(sources, access, job)) for job in jobs)
    return [change for change in found if change is not None][:most]


def _change(report: Report) -> Change | None:
    first, again = report.advice[0] if report.advice else None, report.resubmission
    if not (first or again):
        return None
    return Change(
        jobid=report.job.jobid,
        user=report.job.user,
        name=report.job.name,
        cluster=report.job.cluster,
        title=first.title if first else "It needs less than it asked for",
        reason=first.reason if first else "",
        step=first.step if first else "",
        line=again.line if again else "",
    )


def document(present: Present) -> Document:
    """The same for a terminal."""
    sections = [
        ("Running", [_running_line(row, present) for row in present.running]),
        ("Waiting", [_group_line(group) for group in present.waiting]),
        ("Failed since yesterday", [_group_line(group) for group in present.failed()]),
        ("Used in the last 24 hours", list(_hour_lines(present))),
        ("Used of the share", [
            ReportLine(to_printable(f"{account} on {cluster}"), share(ratio))
            for (cluster, account), ratio in present.shares.items()
        ]),
    ]  # fmt: skip
    advice = tuple(
        Advice(f"batchjob job {each.jobid}", to_printable(f"{each.jobid[:8]} {each.name}"),
               each.title, each.reason, to_printable(each.line or each.step), {})
        for each in present.changes
    )  # fmt: skip
    waiting, failed = (
        sum(len(group.rows) for group in groups) for groups in (present.waiting, present.failed())
    )
    summary = (
        f"{len(present.running)} running, {waiting} waiting; "
        f"{failed} failed of {len(present.ended)} that ended since yesterday."
    )
    sections = [each for each in sections if each[1]]
    return Document("Your jobs now", summary, "", sections, advice, [])


def _running_line(row: Row, present: Present) -> ReportLine:
    use, held = present.use.get(row["id"]), row["allocated_memory_bytes"]
    parts = []
    if use and use.cpus is not None:
        of = f" of {digits(row['allocated_cpus'])}" if row["allocated_cpus"] else ""
        parts.append(f"{digits(round(use.cpus, 2))}{of} CPU{'s' if of != ' of 1' else ''}")
    if use and use.memory_bytes is not None:
        parts.append(f"{size(use.memory_bytes)}{f' of {size(held)}' if held else ''}")
    if use and use.gpu_ratio is not None:
        parts.append(f"GPUs {share(use.gpu_ratio)}")
    measured = f"{format_duration(present.now - use.sample_time)} ago" if use else "no sample"
    ran = explain.elapsed_seconds(row, present.now)
    words = [*([] if ran is None else [f"for {format_duration(ran)}"]), *parts, measured]
    return ReportLine(to_printable(f"{row['jobid'][:8]} {row['name']}"), ", ".join(words))


def _group_line(group: Group) -> ReportLine:
    row, number = group.rows[0], len(group.rows)
    more = f" and {number - 1} more" if number > 1 else ""
    label = to_printable(f"{row['jobid'][:8]} {row['name']}{more}")
    return ReportLine(label, to_printable(group.words))


def _hour_lines(present: Present) -> Iterator[ReportLine]:
    for what, values in present.by_hour().items():
        used, held = (sum(each) / HOURS for each in zip((0.0, 0.0), *values.values(), strict=True))
        if what == "Power" and used:
            yield ReportLine(what, f"{digits(round(used))} W on average")
        elif what != "Power" and held:
            held_time = f"{format_duration(HOURS * HOUR * held)} of {what[:-1]} time"
            amount = f"{size(held)} on average" if what == "Memory" else held_time
            yield ReportLine(what, f"{share(used / held)} of {amount}", used / held)

"""Daily sums per cluster, account and user, made anew for each day that changed.

From them come the sums of the day without the user, and of the spans of days that it is in, in the
same transaction.

A job's time and usage are split over the days (UTC) it ran; all columns may be added up. The days
to make are in `rollup_due`, written with the rows that changed them; a day is made, and its mark
removed, in one transaction. So a day can be made again at any time, with the same result.
"""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob.states import JobState
from batchjob_stats_db import schema
from batchjob_stats_db.bulk import upsert
from batchjob_stats_db.days import DAY, SPANS, day_of, span_of
from batchjob_stats_db.waits import add_waits

# "Runs that overlap a day" is two open ranges, which no B-tree answers. But a run of up to a day
# began in two days' time; longer ones, which are few, are found by two indexes of their own.
WEEK = 7 * DAY

_FAILED = tuple(
    state.value
    for state in JobState
    if state.name in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE")
)

# States in which a run has no end; named so that the index of unfinished jobs is used.
_ENDLESS = tuple(state.value for state in JobState if state.live or state is JobState.VANISHED)

# Tables whose rows are made from the runs of a day.
_OF_RUNS = (schema.daily_usage, schema.daily_emissions, schema.daily_wait)

Number = ColumnElement[Any]


def mark_days(db: Connection, cluster: str, days: Collection[int]) -> None:
    """Note that these days (their midnights) are to be made anew."""
    if days:
        statement = upsert(db.dialect.name, schema.rollup_due, ["cluster", "day"])
        db.exec_driver_sql(statement, [(cluster, day) for day in sorted(days)])


def mark_running(db: Connection, cluster: str, now: int) -> None:
    """Note the days since the last daily sums: running jobs went on in them, changed or not."""
    daily = schema.daily_usage
    last = db.execute(
        sa.select(sa.func.max(daily.c.day)).where(daily.c.cluster == cluster)
    ).scalar()
    today = day_of(now)
    first = today if last is None else min(max(last, today - 400 * DAY), today)
    mark_days(db, cluster, range(first, today + 1, DAY))


def unmark_days(db: Connection, cluster: str, before: int) -> None:
    """Leave the sums of days that begin before a time as they are."""
    due = schema.rollup_due
    db.execute(sa.delete(due).where(due.c.cluster == cluster, due.c.day < before))


def due_days(db: Connection, cluster: str, limit: int) -> list[int]:
    """Days to be made, the newest first."""
    due = schema.rollup_due
    query = sa.select(due.c.day).where(due.c.cluster == cluster).order_by(due.c.day.desc())
    return list(db.execute(query.limit(limit)).scalars())


def roll_up(db: Connection, cluster: str, day: int, now: int) -> None:
    """Make one day's rows anew, those of its spans, and remove its mark."""
    for table in (*_OF_RUNS, schema.rollup_due):
        db.execute(sa.delete(table).where(table.c.cluster == cluster, table.c.day == day))
    if day <= now:  # else a job is from the future: some clock is wrong
        _add_runs(db, cluster, day, now)
        add_waits(db, cluster, day)
    sum_day(db, cluster, day)
    sum_spans(db, cluster, day)


def drop_days(db: Connection, cluster: str, before: int) -> int:
    """Delete the sums of days that begin before a time; returns how many rows by user."""
    rows = 0
    for sums in schema.SUMS:
        rows += _drop(db, cluster, sums.by_user, before)
        for table in (sums.by_account, sums.by_day, sums.user_spans, sums.account_spans):
            _drop(db, cluster, table, before)
    _drop(db, cluster, schema.daily_wait, before)
    sum_spans(db, cluster, before)  # the days that stay, of spans that began earlier
    return rows


def _drop(db: Connection, cluster: str, table: sa.Table, before: int) -> int:
    old = (table.c.cluster == cluster) & (table.c.day < before)
    return db.execute(sa.delete(table).where(old)).rowcount


def sum_day(db: Connection, cluster: str, day: int) -> None:
    """Make a day's sums without the user anew, from those by user."""
    for sums in schema.SUMS:
        _fold(db, cluster, sums.by_user, 1, sums.by_account, 1, day)
        _fold(db, cluster, sums.by_account, 1, sums.by_day, 1, day)


def sum_spans(db: Connection, cluster: str, time: int) -> None:
    """Make the sums of the spans that a time lies in anew, each from the shorter ones."""
    for sums in schema.SUMS:
        for days, spans in sums.spans():
            source, part = days, 1
            for length in SPANS:
                _fold(db, cluster, source, part, spans, length, span_of(time, length))
                source, part = spans, length


def _fold(
    db: Connection, cluster: str, source: sa.Table, part: int, into: sa.Table, length: int, day: int
) -> None:
    """Make the rows of so many days from `day` on anew, from those of `part` days each."""
    db.execute(sa.delete(into).where(*of_length(into, cluster, length), into.c.day == day))
    given = {"cluster": sa.literal(cluster), "days": _at(length), "day": _at(day)}
    keys = [key.name for key in into.primary_key if key.name not in given]
    groups = [source.c[name] for name in keys]
    added = [source.c[each.name] for each in into.columns if not each.primary_key]
    rows = (
        sa.select(
            *(given[key.name] for key in into.primary_key if key.name in given),
            *groups,
            *map(sa.func.sum, added),
        )
        .where(
            *of_length(source, cluster, part),
            source.c.day >= day,
            source.c.day < day + length * DAY,
        )
        .group_by(source.c.cluster, *groups)
    )
    db.execute(sa.insert(into).from_select([each.name for each in into.columns], rows))


def of_length(table: sa.Table, cluster: str, days: int) -> list[ColumnElement[bool]]:
    """A cluster's rows of this length; a table without `days` has those of one day alone."""
    length = [table.c.days == days] if "days" in table.c else []
    return [table.c.cluster == cluster, *length]


def _add_runs(db: Connection, cluster: str, day: int, now: int) -> None:
    """Add the runs of a day up, by account and user."""
    parts = _parts(cluster, day, now)
    names = ["cluster", "day", "account", "username", *schema.DAILY_SUMS]
    db.execute(sa.insert(schema.daily_usage).from_select(names, _sums(parts, cluster, day)))
    names = ["cluster", "day", "account", "username", "provider", "grams"]
    db.execute(sa.insert(schema.daily_emissions).from_select(names, _grams(parts, cluster, day)))


def _parts(cluster: str, day: int, now: int) -> sa.CTE:
    """The runs that touch a day, each with the seconds and the share of it that lie in the day."""
    job = schema.job
    until = min(day + DAY, max(now, day))
    vanished = job.c.state == JobState.VANISHED.value
    end = sa.case(
        (job.c.end_time.is_not(None), _larger(job.c.end_time, job.c.start_time)),
        (vanished, _larger(job.c.update_time, job.c.start_time)),  # its end was never seen
        else_=_larger(_at(now), job.c.start_time),
    )
    in_day = (job.c.start_time < day + DAY) & (end >= day)
    start, length = job.c.start_time, job.c.end_time - job.c.start_time
    tiers = (
        (start >= day - DAY) & in_day,
        (start < day - DAY) & (start >= day - WEEK) & in_day & (length > _constant(DAY)),
        (start < day - WEEK) & in_day & (length > _constant(WEEK)),
        (start < day - DAY) & in_day & job.c.end_time.is_(None) & job.c.state.in_(_ENDLESS),
    )
    columns = [
        job.c.id, job.c.account, job.c.username, job.c.state, job.c.submit_time,
        job.c.eligible_time, job.c.start_time, job.c.end_time,
        job.c.allocated_cpus, job.c.allocated_gpus, job.c.allocated_memory_bytes,
        end.label("until"),
    ]  # fmt: skip
    runs = sa.union_all(
        *(sa.select(*columns).where(job.c.cluster == cluster, which) for which in tiers)
    ).cte("runs")
    seconds = _smaller(runs.c.until, _at(until)) - _larger(runs.c.start_time, _at(day))
    whole = runs.c.until - runs.c.start_time
    return sa.select(
        runs,
        _larger(seconds, _at(0)).label("seconds"),
        # A run of no length is in the day of its start, whole.
        sa.case(
            (whole > 0, sa.cast(_larger(seconds, _at(0)), sa.Float) / whole),
            else_=1.0,
        ).label("share"),
    ).cte("parts")


def _sums(parts: sa.CTE, cluster: str, day: int) -> sa.Select[Any]:
    usage = schema.job_usage
    job = parts.c
    started = (job.start_time >= day) & (job.start_time < day + DAY)
    ended = (job.end_time >= day) & (job.end_time < day + DAY)
    measured = usage.c.samples > 0
    cpus = job.seconds * sa.func.coalesce(job.allocated_cpus, 0)
    gpus = job.seconds * sa.func.coalesce(job.allocated_gpus, 0)
    # 1 TiB for a day is 9.5e16 byte seconds: a hundred such jobs are more than a BIGINT.
    memory = sa.cast(job.seconds, sa.Float) * sa.func.coalesce(job.allocated_memory_bytes, 0)
    ready = sa.func.coalesce(job.eligible_time, job.submit_time)
    used = {each.key: _or_zero(each) for each in usage.columns}
    sums: dict[str, Number] = {
        "jobs_started": _count(started),
        "jobs_ended": _count(ended),
        "jobs_failed": _count(ended & job.state.in_(_FAILED)),
        "wait_seconds": sa.case((started, _larger(job.start_time - ready, _at(0))), else_=0),
        "wall_seconds": job.seconds,
        "cpu_allocated_seconds": cpus,
        "gpu_allocated_seconds": gpus,
        "memory_allocated_byte_seconds": memory,
        "measured_cpu_allocated_seconds": sa.case((measured, cpus), else_=0),
        "measured_gpu_allocated_seconds": sa.case(
            (usage.c.gpu_utilization_ratio.is_not(None), gpus), else_=0
        ),
        "measured_memory_allocated_byte_seconds": sa.case((measured, memory), else_=0),
        "cpu_seconds": job.share * (used["user_cpu_seconds"] + used["system_cpu_seconds"]),
        "gpu_seconds": gpus * used["gpu_utilization_ratio"],
        "memory_byte_seconds": job.seconds * used["memory_average_bytes"],
        "energy_host_joules": job.share
        * (used["energy_host_active_joules"] + used["energy_host_idle_joules"]),
        "energy_gpu_joules": job.share
        * (used["energy_gpu_active_joules"] + used["energy_gpu_idle_joules"]),
    }
    return (
        sa.select(
            sa.literal(cluster),
            _at(day),
            job.account,
            job.username,
            *(sa.func.sum(sa.cast(sums[name], sa.Float)) for name in schema.DAILY_SUMS),
        )
        .select_from(parts.outerjoin(usage, usage.c.job_id == job.id))
        .group_by(job.account, job.username)
    )


def _grams(parts: sa.CTE, cluster: str, day: int) -> sa.Select[Any]:
    emissions = schema.job_emissions
    job = parts.c
    return (
        sa.select(
            sa.literal(cluster),
            _at(day),
            job.account,
            job.username,
            emissions.c.provider,
            sa.func.sum(job.share * emissions.c.grams),
        )
        .select_from(parts.join(emissions, emissions.c.job_id == job.id))
        .group_by(job.account, job.username, emissions.c.provider)
    )


def _constant(seconds: int) -> Number:
    """Not a parameter: a partial index is used where its condition stands there literally."""
    return sa.literal_column(str(seconds))


def _at(time: int) -> Number:
    return sa.literal(time, sa.BigInteger)


def _count(condition: ColumnElement[bool]) -> Number:
    return sa.case((condition, 1), else_=0)


def _or_zero(column: Number) -> Number:
    """In a sum, what was not measured adds nothing; the measured_ columns say how much that is."""
    return sa.func.coalesce(column, 0.0)


def _larger(a: Number, b: Number) -> Number:
    return sa.case((a > b, a), else_=b)


def _smaller(a: Number, b: Number) -> Number:
    return sa.case((a < b, a), else_=b)

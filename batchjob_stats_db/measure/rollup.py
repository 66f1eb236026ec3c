"""Daily sums per cluster, account and user, rebuilt for each day that changed.

From them come the sums of the day without the user, and of its month, in the same transaction.

A job's time and usage are split over the days (UTC) it ran; all columns may be added up. What was
measured of a run counts for the time up to its `until_time`, with the allocation of that time; the
CPU time of an ended run that was not measured to its end is accounting's. The days
to make are in `rollup_due`, written with the rows that changed them; a day is made, and its mark
removed, in one transaction. So a day can be made again at any time, with the same result.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.upsert import upsert
from batchjob_stats_db.days import DAY, day_of, month_of, next_month
from batchjob_stats_db.measure.waits import add_waits
from batchjob_stats_db.queries.efficiency import WHOLE, suspended

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
    """Note that these days (their midnights) are to be rebuilt."""
    if days:
        statement = upsert(db.dialect.name, schema.rollup_due, ["cluster", "day"])
        db.exec_driver_sql(statement, [(cluster, day) for day in sorted(days)])


def mark_running(db: Connection, cluster: str, now: int) -> None:
    """Note the days since the last daily sums: running jobs went on in them, though no row changed.

    Days to come have no sums; those that there are were made when a clock was wrong.
    """
    job, daily, today = schema.job, schema.daily_usage, day_of(now)
    running = sa.select(job.c.id).where(
        job.c.cluster == cluster,
        job.c.end_time.is_(None),
        job.c.state.in_(_ENDLESS),
        job.c.state != JobState.VANISHED.value,
        job.c.start_time.is_not(None),
    )
    days = sa.select(daily.c.day).where(daily.c.cluster == cluster).distinct()
    if db.execute(running.limit(1)).first():
        last = db.execute(
            sa.select(sa.func.max(daily.c.day)).where(daily.c.cluster == cluster)
        ).scalar()
        first = today if last is None else min(last, today)
        mark_days(db, cluster, range(first, today + 1, DAY))
    ahead = db.execute(days.where(daily.c.day > today)).scalars().all()
    for day in ahead:
        roll_up(db, cluster, day, now)
    mark_days(db, cluster, ahead)


def unmark_days(db: Connection, cluster: str, before: int) -> None:
    """Leave the sums of days that begin before a time as they are."""
    due = schema.rollup_due
    db.execute(sa.delete(due).where(due.c.cluster == cluster, due.c.day < before))


def due_days(db: Connection, cluster: str, limit: int, now: int | None = None) -> list[int]:
    """Days to be made: half of them the newest, which people look at, half the oldest.

    So no day waits for ever, however many become due each time. With `now`, of days that have come.
    """
    due = schema.rollup_due
    query = sa.select(due.c.day).where(due.c.cluster == cluster)
    if now is not None:
        query = query.where(due.c.day <= now)
    newest = db.execute(query.order_by(due.c.day.desc()).limit(limit - limit // 2)).scalars().all()
    oldest = db.execute(query.order_by(due.c.day).limit(limit)).scalars().all()
    return [*newest, *(day for day in oldest if day not in newest)][:limit]


def roll_up(db: Connection, cluster: str, day: int, now: int) -> None:
    """Recompute the rows of one day and of its month, and remove its mark."""
    has_come = day <= now  # else a job is from the future: some clock is wrong
    for table in (*_OF_RUNS, *((schema.rollup_due,) if has_come else ())):
        db.execute(sa.delete(table).where(table.c.cluster == cluster, table.c.day == day))
    if has_come:
        _add_runs(db, cluster, day, now)
        add_waits(db, cluster, day)
    sum_day(db, cluster, day)
    sum_month(db, cluster, day)


def drop_days(db: Connection, cluster: str, before: int) -> int:
    """Delete the sums of days that begin before a time; returns how many rows by user."""
    rows = 0
    for sums in schema.SUMS:
        rows += _drop(db, cluster, sums.by_user, before)
        for table in (sums.by_account, sums.by_day):
            _drop(db, cluster, table, before)
        for _, table in sums.months():
            which = (table.c.cluster == cluster) & (table.c.month < month_of(before))
            db.execute(sa.delete(table).where(which))
    _drop(db, cluster, schema.daily_wait, before)
    sum_month(db, cluster, before)  # of which some days stay
    return rows


def _drop(db: Connection, cluster: str, table: sa.Table, before: int) -> int:
    old = (table.c.cluster == cluster) & (table.c.day < before)
    return db.execute(sa.delete(table).where(old)).rowcount


def sum_day(db: Connection, cluster: str, day: int) -> None:
    """Make a day's sums without the user again, from those by user."""
    for sums in schema.SUMS:
        _fold(db, cluster, sums.by_user, sums.by_account, day, day + DAY)
        _fold(db, cluster, sums.by_account, sums.by_day, day, day + DAY)


def sum_month(db: Connection, cluster: str, time: int) -> None:
    """Recompute the sums of a month from its days."""
    for sums in schema.SUMS:
        for days, months in sums.months():
            _fold(db, cluster, days, months, month_of(time), next_month(time))


def _fold(
    db: Connection, cluster: str, days: sa.Table, into: sa.Table, begin: int, end: int
) -> None:
    """Recompute the rows of the day or month that begins at `begin` from the days up to `end`."""
    when = "month" if "month" in into.c else "day"
    db.execute(sa.delete(into).where(into.c.cluster == cluster, into.c[when] == begin))
    given = {"cluster": sa.literal(cluster), when: _at(begin)}
    groups = [days.c[key.name] for key in into.primary_key if key.name not in given]
    added = [days.c[each.name] for each in into.columns if not each.primary_key]
    rows = (
        sa.select(*given.values(), *groups, *map(sa.func.sum, added))
        .where(days.c.cluster == cluster, days.c.day >= begin, days.c.day < end)
        .group_by(days.c.cluster, *groups)
    )
    db.execute(sa.insert(into).from_select([each.name for each in into.columns], rows))


def _add_runs(db: Connection, cluster: str, day: int, now: int) -> None:
    """Add the runs of a day up, by account and user."""
    parts = _parts(cluster, day, now)
    names = ["cluster", "day", "account", "username", *schema.DAILY_SUMS]
    db.execute(sa.insert(schema.daily_usage).from_select(names, _sums(parts, cluster, day)))
    if db.execute(sa.select(schema.job_emissions.c.job_id).limit(1)).first() is None:
        return  # no provider is configured
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
        sa.func.coalesce(
            job.c.cpu_seconds, job.c.user_cpu_seconds + job.c.system_cpu_seconds
        ).label("accounted_cpu_seconds"),
        suspended(end).label("suspended_seconds"),
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
        # Of its time; while it is suspended others have its CPUs. When it was, nobody tells.
        sa.case(
            (
                (whole > 0) & (runs.c.suspended_seconds > 0),
                1.0 - sa.cast(_smaller(runs.c.suspended_seconds, whole), sa.Float) / whole,
            ),
            else_=1.0,
        ).label("active"),
    ).cte("parts")


class _Measured(NamedTuple):
    """What of a run is measured: usage is of the time up to `until_time`, often not of all."""

    seconds: Number  # of the day
    part: Number  # of the run's node time in these seconds
    share: Number  # of what was measured that is in the day
    to_end: ColumnElement[bool]  # whether the run is over and was measured to its end
    complete: ColumnElement[bool]  # and so that it is preferred to accounting


def _measured(job: Any, day: int) -> _Measured:
    usage = schema.job_usage.c
    seen = usage.samples > 0
    to_end = seen & job.end_time.is_not(None) & (usage.until_time >= job.until)
    begin = _larger(job.start_time, _at(day))
    partly = _larger(_smaller(begin + job.seconds, usage.until_time) - begin, _at(0))
    whole = usage.until_time - job.start_time
    return _Measured(
        sa.case((to_end, job.seconds), (seen, partly), else_=0),
        sa.case((usage.coverage < 1.0, usage.coverage), else_=1.0),
        sa.case(
            (to_end, job.share), (seen & (whole > 0), sa.cast(partly, sa.Float) / whole), else_=0.0
        ),
        to_end,
        to_end & (usage.coverage >= WHOLE),
    )


def _sums(parts: sa.CTE, cluster: str, day: int) -> sa.Select[Any]:
    usage = schema.job_usage
    job = parts.c
    started = (job.start_time >= day) & (job.start_time < day + DAY)
    ended = (job.end_time >= day) & (job.end_time < day + DAY)
    measured = _measured(job, day)
    cpus = sa.func.coalesce(job.allocated_cpus, 0)
    gpus = sa.func.coalesce(job.allocated_gpus, 0)
    # 1 TiB for a day is 9.5e16 byte seconds: a hundred such jobs are more than a BIGINT.
    memory = sa.cast(sa.func.coalesce(job.allocated_memory_bytes, 0), sa.Float)
    ready = sa.func.coalesce(job.eligible_time, job.submit_time)
    used = {each.key: _or_zero(each) for each in usage.columns}
    # Accounting knows the CPU time of ended runs, also where no measurement has all of it.
    accounted = (
        job.end_time.is_not(None)
        & job.accounted_cpu_seconds.is_not(None)
        & ~_true(measured.complete)
    )
    sums: dict[str, Number] = {
        "jobs_started": _count(started),
        "jobs_ended": _count(ended),
        "jobs_failed": _count(ended & job.state.in_(_FAILED)),
        "wait_seconds": sa.case((started, _larger(job.start_time - ready, _at(0))), else_=0),
        "wall_seconds": job.seconds,
        "cpu_allocated_seconds": job.seconds * job.active * cpus,
        "gpu_allocated_seconds": job.seconds * gpus,
        "memory_allocated_byte_seconds": job.seconds * memory,
        "measured_cpu_allocated_seconds": cpus
        * job.active
        * sa.case((accounted, job.seconds), else_=measured.seconds * measured.part),
        "measured_gpu_allocated_seconds": sa.case(
            (usage.c.gpu_utilization_ratio.is_not(None), measured.seconds * gpus), else_=0
        ),
        "measured_memory_allocated_byte_seconds": measured.seconds * memory,
        "cpu_seconds": sa.case(
            (accounted, job.share * job.accounted_cpu_seconds),
            else_=measured.share * (used["user_cpu_seconds"] + used["system_cpu_seconds"]),
        ),
        "gpu_seconds": measured.seconds * gpus * used["gpu_utilization_ratio"],
        "memory_byte_seconds": measured.seconds * used["memory_average_bytes"],
        "energy_host_joules": measured.share
        * (used["energy_host_active_joules"] + used["energy_host_idle_joules"]),
        "energy_gpu_joules": measured.share
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
    emissions, usage = schema.job_emissions, schema.job_usage
    job = parts.c
    return (
        sa.select(
            sa.literal(cluster),
            _at(day),
            job.account,
            job.username,
            emissions.c.provider,
            sa.func.sum(_measured(job, day).share * emissions.c.grams),
        )
        .select_from(
            parts.join(emissions, emissions.c.job_id == job.id).join(
                usage, usage.c.job_id == job.id
            )
        )
        .group_by(job.account, job.username, emissions.c.provider)
    )


def _constant(seconds: int) -> Number:
    """Not a parameter: a partial index is used where its condition stands there literally."""
    return sa.literal_column(str(seconds))


def _at(time: int) -> Number:
    return sa.literal(time, sa.BigInteger)


def _count(condition: ColumnElement[bool]) -> Number:
    return sa.case((condition, 1), else_=0)


def _true(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """NULL, as of runs without usage, is false."""
    return sa.func.coalesce(condition, sa.false())


def _or_zero(column: Number) -> Number:
    """In a sum, what was not measured adds nothing; the measured_ columns say how much that is."""
    return sa.func.coalesce(column, 0.0)


def _larger(a: Number, b: Number) -> Number:
    return sa.case((a > b, a), else_=b)


def _smaller(a: Number, b: Number) -> Number:
    return sa.case((a < b, a), else_=b)

"""Daily sums per cluster, account and user, rebuilt for each day that changed.

The sums of the day without the user, and those of its month, are computed from them in the same
transaction.

The days to rebuild are in `rollup_due`, written with the rows that changed them; a day is rebuilt,
and its mark removed, in one transaction, so it can be rebuilt at any time with the same result.

Beside them is how much is measured of the jobs on each node: sums of the jobs that ended on a day.
They show whether a node's exporter works now, so older days are not kept. Usual waits and paces of
nodes are made again each hour.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from statistics import median
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.upsert import write_rows
from batchjob_stats_db.days import DAY, day_of, midnight, month_of, next_month
from batchjob_stats_db.measure.daily_sums import STATES_WITHOUT_END, add_runs
from batchjob_stats_db.queries.efficiency import wait_seconds

# Tables whose rows are computed from the runs of a day.
_TABLES_OF_RUNS = (
    schema.daily_usage, schema.daily_emissions, schema.daily_wait, schema.daily_node_coverage
)  # fmt: skip


SHORT_SECONDS = 120
"""A job that ends sooner may have ended between two scrapes."""

_KEPT_DAYS = 2

# Percentiles of waits by nearest rank: the wait of a job that this fraction of the jobs did not
# exceed. Those of days cannot be combined into one of a month: they are stored, and never added.
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}

_PACE_SECONDS = 7 * DAY
_MAX_COMPARED = 20_000  # latest jobs whose pace is compared
_MIN_RUN_SECONDS = 60  # of such a job; starting takes most of the time of shorter ones
_MIN_RUNS, _MIN_NODES = 5, 3

USUAL_DAYS = 30
_USUAL_SECONDS = 3600  # how often all waits of these days are read
LEAST_JOBS = 10  # a percentile of fewer jobs would reveal single jobs


def mark_days(db: Connection, cluster: str, days: Collection[int]) -> None:
    write_rows(db, schema.rollup_due, [(cluster, day) for day in sorted(days)])


def mark_running(db: Connection, cluster: str, now: int) -> None:
    """Mark the days since the last daily sums: running jobs used them without a changed row.

    Days of the future have no sums; existing ones were made while a clock was wrong.
    """
    job, daily, today = schema.job, schema.daily_usage, day_of(now)
    running = sa.select(job.c.id).where(
        job.c.cluster == cluster,
        job.c.end_time.is_(None),
        job.c.state.in_(STATES_WITHOUT_END),
        job.c.state != JobState.VANISHED.value,
        schema.HAS_STARTED,
    )
    days = sa.select(daily.c.day).where(daily.c.cluster == cluster).distinct()
    if db.execute(running.limit(1)).first():
        last = db.scalar(sa.select(sa.func.max(daily.c.day)).where(daily.c.cluster == cluster))
        first = today if last is None else min(last, today)
        mark_days(db, cluster, range(first, today + 1, DAY))
    ahead = db.scalars(days.where(daily.c.day > today)).all()
    for day in ahead:
        roll_up(db, cluster, day, now)
    mark_days(db, cluster, ahead)


def unmark_days(db: Connection, cluster: str, before: int) -> None:
    """Remove the marks of days that begin before a time, so that their sums stay as they are."""
    due = schema.rollup_due
    db.execute(sa.delete(due).where(due.c.cluster == cluster, due.c.day < before))


def due_days(db: Connection, cluster: str, limit: int, now: int | None = None) -> list[int]:
    """Days to be rebuilt: half of them the newest, which people look at, half the oldest.

    So no day waits for ever, however many become due each time. With `now`, no day of the future.
    """
    due = schema.rollup_due
    query = sa.select(due.c.day).where(due.c.cluster == cluster)
    if now is not None:
        query = query.where(due.c.day <= now)
    newest = db.execute(query.order_by(due.c.day.desc()).limit(limit - limit // 2)).scalars().all()
    oldest = db.execute(query.order_by(due.c.day).limit(limit)).scalars().all()
    return [*newest, *(day for day in oldest if day not in newest)][:limit]


def roll_up(db: Connection, cluster: str, day: int, now: int) -> None:
    """Rebuild the rows of one day and of its month, and remove its mark."""
    has_begun = day <= now  # otherwise the job is from the future: some clock is wrong
    for table in (*_TABLES_OF_RUNS, *((schema.rollup_due,) if has_begun else ())):
        db.execute(sa.delete(table).where(table.c.cluster == cluster, table.c.day == day))
    if has_begun:
        add_runs(db, cluster, day, now)
        add_waits(db, cluster, day)
        add_node_coverage(db, cluster, day, now)
        renew_usual_waits(db, cluster, now)
    sum_day(db, cluster, day)
    sum_month(db, cluster, day)


def drop_days(db: Connection, cluster: str, before: int) -> int:
    """Delete the sums of days that begin before a time; returns how many rows by user."""
    rows = 0
    for sums in schema.SUMS:
        rows += _drop_rows(db, cluster, sums.by_user, before)
        for table in (sums.by_account, sums.by_day):
            _drop_rows(db, cluster, table, before)
        for _, table in sums.months():
            which = (table.c.cluster == cluster) & (table.c.month < month_of(before))
            db.execute(sa.delete(table).where(which))
    _drop_rows(db, cluster, schema.daily_wait, before)
    sum_month(db, cluster, before)  # a part of this month's days remains
    return rows


def _drop_rows(db: Connection, cluster: str, table: sa.Table, before: int) -> int:
    old = (table.c.cluster == cluster) & (table.c.day < before)
    return db.execute(sa.delete(table).where(old)).rowcount


def sum_day(db: Connection, cluster: str, day: int) -> None:
    for sums in schema.SUMS:
        _sum_into(db, cluster, sums.by_user, sums.by_account, day, day + DAY)
        _sum_into(db, cluster, sums.by_account, sums.by_day, day, day + DAY)


def sum_month(db: Connection, cluster: str, time: int) -> None:
    for sums in schema.SUMS:
        for days, months in sums.months():
            _sum_into(db, cluster, days, months, month_of(time), next_month(time))


def _sum_into(
    db: Connection, cluster: str, days: sa.Table, into: sa.Table, begin: int, end: int
) -> None:
    """Rebuild the rows of the day or month that begins at `begin` from the days up to `end`."""
    when = "month" if "month" in into.c else "day"
    db.execute(sa.delete(into).where(into.c.cluster == cluster, into.c[when] == begin))
    given: dict[str, ColumnElement[Any]] = {
        "cluster": sa.literal(cluster),
        when: sa.literal(begin, sa.BigInteger),
    }
    groups = [days.c[key.name] for key in into.primary_key if key.name not in given]
    added = [days.c[each.name] for each in into.columns if not each.primary_key]
    rows = (
        sa.select(*given.values(), *groups, *map(sa.func.sum, added))
        .where(days.c.cluster == cluster, days.c.day >= begin, days.c.day < end)
        .group_by(days.c.cluster, *groups)
    )
    db.execute(sa.insert(into).from_select([each.name for each in into.columns], rows))


def first_day(now: int) -> int:
    return day_of(now) - (_KEPT_DAYS - 1) * DAY


def add_node_coverage(db: Connection, cluster: str, day: int, now: int) -> None:
    """Write the sums of the jobs that ended on a day, unless it is too old, and delete old ones.

    Short jobs and those that have yet to be measured do not count. A job of several nodes counts on
    each of them.
    """
    table = schema.daily_node_coverage
    db.execute(sa.delete(table).where(table.c.cluster == cluster, table.c.day < first_day(now)))
    if day < first_day(now):
        return
    job, share, usage = schema.job, schema.job_node, schema.job_usage
    # Use only indexed columns of `job`: reading its rows would take twice as long.
    seconds = sa.func.coalesce(share.c.until_time, job.c.end_time) - share.c.start_time
    due = sa.select(job.c.id).where(job.c.cluster == cluster, job.c.usage_due_time.is_not(None))
    unmeasured = sa.case((sa.func.coalesce(usage.c.samples, 0) == 0, 1), else_=0)
    covered = sa.func.coalesce(usage.c.coverage, 0.0)
    # In this join order, a job's usage is read before its nodes, and therefore only once.
    measured = job.outerjoin(usage, usage.c.job_id == job.c.id)
    sums = map(sa.func.sum, (unmeasured, seconds, covered * seconds))
    here = (sa.literal(cluster), sa.literal(day, sa.BigInteger), share.c.node)
    rows = (
        sa.select(*here, sa.func.count(), *sums)
        .select_from(measured.join(share, share.c.job_id == job.c.id))
        .where(
            job.c.cluster == cluster, job.c.end_time >= day, job.c.end_time < day + DAY,
            seconds >= SHORT_SECONDS, job.c.id.not_in(due),
        )
        .group_by(share.c.node)
    )  # fmt: skip
    db.execute(sa.insert(table).from_select([column.name for column in table.columns], rows))


def waits(*which: ColumnElement[bool]) -> sa.Select[Any]:
    """Waits of started jobs under these conditions, with the columns of `daily_wait`."""
    job = schema.job.c
    day = midnight(job.start_time).label("day")
    each = _ranked_waits((job.cluster, day, job.partition), *which)
    percentiles = {name: _percentile(each, share) for name, share in _PERCENTILES.items()}
    statistics = {"mean": sa.func.avg(each.wait), **percentiles, "max": sa.func.max(each.wait)}
    groups = (each.cluster, each.day, each.partition)
    jobs = sa.func.max(each.jobs_started).label("jobs_started")
    seconds = (
        sa.cast(statistics[name], sa.Float).label(f"wait_{name}_seconds") for name in schema.WAITS
    )
    return sa.select(*groups, jobs, *seconds).group_by(*groups).order_by(*groups)


def _ranked_waits(group_key: Sequence[ColumnElement[Any]], *which: ColumnElement[bool]) -> Any:
    """Waits of started jobs, with their rank in their group and its number of jobs."""
    job = schema.job.c
    waited = wait_seconds(job)
    ranked = sa.select(
        *group_key,
        waited.label("wait"),
        sa.func.row_number().over(partition_by=group_key, order_by=waited).label("rank"),
        sa.func.count().over(partition_by=group_key).label("jobs_started"),
    ).where(job.start_time.is_not(None), *which)
    return ranked.subquery().c


def _percentile(each: Any, share: int) -> ColumnElement[Any]:
    return sa.func.min(sa.case((each.rank * 100 >= each.jobs_started * share, each.wait)))


def add_waits(db: Connection, cluster: str, day: int) -> None:
    job, table = schema.job.c, schema.daily_wait
    rows = waits(job.cluster == cluster, job.start_time >= day, job.start_time < day + DAY)
    db.execute(sa.insert(table).from_select([each.name for each in table.columns], rows))


def renew_usual_waits(db: Connection, cluster: str, now: int) -> None:
    """Compute the waits of the last 30 days, and paces, again, unless less than an hour old."""
    table = schema.usual_wait
    of_cluster = table.c.cluster == cluster
    age = now - (db.scalar(sa.select(sa.func.max(table.c.computed_time)).where(of_cluster)) or 0)
    if 0 <= age < _USUAL_SECONDS:
        return
    renew_paces(db, cluster, now)
    db.execute(sa.delete(table).where(of_cluster))
    job = schema.job.c
    which = (
        job.cluster == cluster, job.start_time >= now - USUAL_DAYS * DAY, job.start_time <= now
    )  # fmt: skip
    for owner in (job.partition, job.username, job.account):
        each = _ranked_waits((owner,), *which)
        owners = [
            each[name] if name == owner.name else sa.literal("")
            for name in ("partition", "username", "account")
        ]
        rows = (
            sa.select(
                sa.literal(cluster),
                *owners,
                sa.func.max(each.jobs_started),
                *(sa.cast(_percentile(each, share), sa.Float) for share in (50, 90)),
                sa.literal(now, sa.BigInteger),
            )
            .where(sa.true() if owner is job.partition else each[owner.name] != "")
            .group_by(each[owner.name])
            .having(sa.func.max(each.jobs_started) >= LEAST_JOBS)
        )
        db.execute(sa.insert(table).from_select([column.name for column in table.columns], rows))


def renew_paces(db: Connection, cluster: str, now: int) -> None:
    """Compute again how many times as long jobs of the last week took on a node as elsewhere.

    Compared are completed jobs of one node each, with those of the same user, name and size: each
    with the median of the medians of the nodes, of which there are three or more. The figure of a
    node is the median over five such jobs or more.
    """
    job, table = schema.job.c, schema.node_pace
    db.execute(sa.delete(table).where(table.c.cluster == cluster))
    size = (job.allocated_cpus, job.allocated_gpus)
    query = (
        sa.select(schema.job_node.c.node, job.elapsed_seconds, job.username, job.name, *size)
        .select_from(schema.job.join(schema.job_node))
        .where(
            job.cluster == cluster, job.end_time >= now - _PACE_SECONDS,
            job.state == JobState.COMPLETED, job.allocated_nodes == 1, job.name != "",
            job.elapsed_seconds >= _MIN_RUN_SECONDS,
        )
        .order_by(job.end_time.desc())
        .limit(_MAX_COMPARED)
    )  # fmt: skip
    alike: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for node, seconds, *key in db.execute(query):
        alike[tuple(key)][node].append(seconds)
    ratios: dict[str, list[float]] = defaultdict(list)
    for by_node in alike.values():
        if len(by_node) < _MIN_NODES:
            continue
        usual = median(map(median, by_node.values()))
        for node, times in by_node.items():
            ratios[node] += [seconds / usual for seconds in times]
    paces = [
        (cluster, node, median(each), len(each))
        for node, each in ratios.items()
        if len(each) >= _MIN_RUNS
    ]
    write_rows(db, table, paces)

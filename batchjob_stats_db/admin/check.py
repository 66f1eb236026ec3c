"""Checks a database: damage, orphaned rows, days without jobs, stale sources."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from math import isclose
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.runtime.times import format_date
from batchjob.schedulers.node_names import NodeNames
from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY, day_of, midnight
from batchjob_stats_db.queries.stats import refusals

_STALE_SECONDS = 6 * 3600
_OVERDUE_SECONDS = DAY


def findings(db: Connection, now: int) -> Iterator[str]:
    """Each finding in one line; none if there are no problems."""
    yield from _damaged_values(db)
    yield from _orphaned_rows(db)
    yield from _stale_sources(db, now)
    for cluster in db.execute(sa.select(schema.cluster.c.name)).scalars().all():
        yield from _days_without_jobs(db, cluster)
        yield from _inconsistent_sums(db, cluster)
        yield from _wrong_job_counts(db, cluster)
        yield from _overdue_work(db, cluster, now)


def foreign_targets(db: Connection, cluster: str, targets: Collection[str]) -> Iterator[str]:
    """Say if no target (`instance`) has the name of a node: then no series of a job is refused."""
    seen = schema.daily_node_coverage.c
    nodes = db.scalars(sa.select(seen.node).where(seen.cluster == cluster).distinct()).all()
    known = NodeNames(nodes)
    if nodes and targets and not any(each in known for each in targets):
        yield (
            f"{cluster}: no scrape target has the name of a node: targets such as {min(targets)}, "
            f"nodes such as {min(nodes)}; series of jobs from nodes that were not allocated to "
            "them are counted"
        )


def _damaged_values(db: Connection) -> Iterator[str]:
    if db.dialect.name != "sqlite":
        return
    for (line,) in db.execute(sa.text("PRAGMA integrity_check(20)")):
        if line != "ok":
            yield f"damaged: {line}"
    for table in schema.metadata.sorted_tables:
        found = db.execute(sa.select(*map(_count_of_another_type, table.columns))).one()
        for column, count in zip(table.columns, found, strict=True):
            if count:
                yield f"damaged: {table.name}.{column.name}: {count} values of the wrong type"


def _count_of_another_type(column: sa.Column[Any]) -> sa.ColumnElement[int]:
    """SQLite accepts any value in any column, so that damage may turn a number into a text."""
    types = ("text",) if isinstance(column.type, sa.String) else ("integer", "real")
    return sa.func.count().filter(sa.func.typeof(column).not_in((*types, "null")))


def _orphaned_rows(db: Connection) -> Iterator[str]:
    """Foreign keys prevent orphans, but a file changed by other programs may have some."""
    if db.dialect.name == "sqlite":
        found = db.execute(sa.text("PRAGMA foreign_key_check"))
        tables = Counter(row[0] for row in found if row[2] == "job")
        for table, count in tables.items():
            yield f"{table}: {count} rows without a job"


def _stale_sources(db: Connection, now: int) -> Iterator[str]:
    state = schema.poll_state.c
    for row in db.execute(sa.select(schema.poll_state).order_by(state.cluster, state.source)):
        name = f"{row.cluster}: {row.source}"
        if row.success_time is None:
            yield f"{name}: never read; {row.error}"
        elif row.success_time < now - (
            2 * DAY if row.source.endswith(".reread") else _STALE_SECONDS  # once a night
        ):
            yield f"{name}: not read for {(now - row.success_time) // 3600} h; {row.error}"
    for cluster in db.execute(sa.select(schema.quarantine.c.cluster).distinct()).scalars().all():
        for each in refusals(db, cluster):
            number, meaning = each["number"], each["meaning"]
            yield f"{cluster}: {each['source']}: {number} rows in quarantine: {meaning}"


def _days_without_jobs(db: Connection, cluster: str) -> Iterator[str]:
    """Days without jobs between days with jobs."""
    daily = schema.daily_usage.c
    query = sa.select(daily.day).where(daily.cluster == cluster).distinct().order_by(daily.day)
    for day, following in pairwise(db.execute(query).scalars().all()):
        if following - day > DAY:
            days = (following - day) // DAY - 1
            yield f"{cluster}: no job ran for {days} days after {format_date(day)}"


def _inconsistent_sums(db: Connection, cluster: str) -> Iterator[str]:
    """Sums that differ from those of the users' days from which they were made."""
    for sums in schema.SUMS:
        expected = _column_totals(db, sums.columns, sums.by_user, cluster)
        for table in (sums.by_account, sums.by_day, sums.monthly_by_user, sums.monthly_by_account):
            for name, total in _column_totals(db, sums.columns, table, cluster).items():
                # Sums of floats in a different order differ in their last digits.
                if not isclose(total, expected[name], rel_tol=1e-9, abs_tol=1e-6):
                    yield f"{cluster}: {table.name}: {name} is {total}, by user {expected[name]}"


def _wrong_job_counts(db: Connection, cluster: str) -> Iterator[str]:
    """Days whose sums do not match the number of jobs.

    Days that are due to be rebuilt, and those that retention may have thinned out, are skipped.
    """
    job, by_day, due = schema.job.c, schema.USAGE.by_day.c, schema.rollup_due.c
    oldest = db.execute(sa.select(sa.func.min(job.end_time)).where(job.cluster == cluster)).scalar()
    kept = db.execute(sa.select(sa.func.min(by_day.day)).where(by_day.cluster == cluster)).scalar()
    if oldest is None or kept is None:
        return
    first = max(day_of(oldest) + DAY, kept)
    due_days = set(db.execute(sa.select(due.day).where(due.cluster == cluster)).scalars())
    for name, time in (("jobs_started", job.start_time), ("jobs_ended", job.end_time)):
        day = midnight(time).label("day")
        ran = (job.cluster == cluster) & job.start_time.is_not(None) & (time >= first)
        counted = sa.select(day, sa.func.count().label("jobs")).where(ran).group_by(day)
        jobs = {row.day: row.jobs for row in db.execute(counted)}
        summed = sa.select(by_day.day, by_day[name]).where(
            by_day.cluster == cluster, by_day.day >= first
        )
        sums = {row[0]: int(row[1]) for row in db.execute(summed)}
        for each in sorted(jobs.keys() | sums.keys()):
            actual, stored = jobs.get(each, 0), sums.get(each, 0)
            if actual != stored and each not in due_days:
                day_text = format_date(each)
                yield f"{cluster}: {name} of {day_text} is {stored}, but there are {actual} jobs"


def _column_totals(
    db: Connection, columns: Iterable[str], table: sa.Table, cluster: str
) -> dict[str, float]:
    added = (sa.func.coalesce(sa.func.sum(table.c[name]), 0.0).label(name) for name in columns)
    query = sa.select(*added).where(table.c.cluster == cluster)
    return dict(db.execute(query).mappings().one())


def _overdue_work(db: Connection, cluster: str, now: int) -> Iterator[str]:
    job = schema.job.c
    late = sa.select(sa.func.count()).where(
        job.cluster == cluster, job.usage_due_time < now - _OVERDUE_SECONDS
    )
    count = db.execute(late).scalar()
    if count:
        yield f"{cluster}: {count} jobs have been due for measurement for more than a day"
    due = schema.rollup_due.c
    days = db.execute(sa.select(sa.func.count()).where(due.cluster == cluster)).scalar() or 0
    if days > 2:
        yield f"{cluster}: the sums of {days} days have not been updated"

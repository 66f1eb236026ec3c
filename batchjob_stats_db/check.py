"""Look for what must not be: damage, rows without their job, days without jobs, stale sources."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import isclose

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db import schema
from batchjob_stats_db.days import DAY, SPANS
from batchjob_stats_db.rollup import of_length

_STALE_SECONDS = 6 * 3600
_OVERDUE_SECONDS = DAY


def findings(db: Connection, now: int) -> Iterator[str]:
    """Each finding in one line; none when all is well."""
    yield from _damage(db)
    yield from _orphans(db)
    yield from _sources(db, now)
    for cluster in db.execute(sa.select(schema.cluster.c.name)).scalars().all():
        yield from _gaps(db, cluster)
        yield from _differing(db, cluster)
        yield from _overdue(db, cluster, now)


def _damage(db: Connection) -> Iterator[str]:
    if db.dialect.name == "sqlite":
        for (line,) in db.execute(sa.text("PRAGMA quick_check(20)")):
            if line != "ok":
                yield f"damaged: {line}"


def _orphans(db: Connection) -> Iterator[str]:
    """With foreign keys on there are none; a file changed by other hands may have some."""
    job = schema.job
    for table in schema.metadata.sorted_tables:
        if "job_id" not in table.columns:
            continue
        missing = ~sa.exists().where(job.c.id == table.c.job_id)
        count = db.execute(sa.select(sa.func.count()).select_from(table).where(missing)).scalar()
        if count:
            yield f"{table.name}: {count} rows without their job"


def _sources(db: Connection, now: int) -> Iterator[str]:
    state = schema.poll_state.c
    for row in db.execute(sa.select(schema.poll_state).order_by(state.cluster, state.source)):
        name = f"{row.cluster}: {row.source}"
        if row.success_time is None:
            yield f"{name}: never read; {row.error}"
        elif row.success_time < now - _STALE_SECONDS:
            yield f"{name}: not read for {(now - row.success_time) // 3600} h; {row.error}"
    bad = schema.quarantine
    counted = sa.select(bad.c.cluster, bad.c.source, sa.func.count()).group_by(
        bad.c.cluster, bad.c.source
    )
    for cluster, source, count in db.execute(counted):
        yield f"{cluster}: {source}: {count} rows in quarantine"


def _gaps(db: Connection, cluster: str) -> Iterator[str]:
    """Days on which no job ran between days on which some did."""
    daily = schema.daily_usage.c
    query = sa.select(daily.day).where(daily.cluster == cluster).distinct().order_by(daily.day)
    for day, following in pairwise(db.execute(query).scalars().all()):
        if following - day > DAY:
            days = (following - day) // DAY - 1
            yield f"{cluster}: no job ran on {days} days after the day that began at {day}"


def _differing(db: Connection, cluster: str) -> Iterator[str]:
    """Sums made from the users' days that are not theirs."""
    for sums in schema.SUMS:
        first = _total(db, sums.columns, sums.by_user, cluster)
        made = [(sums.by_account, 1), (sums.by_day, 1)]
        made += [(table, days) for _, table in sums.spans() for days in SPANS]
        for table, days in made:
            for name, total in _total(db, sums.columns, table, cluster, days).items():
                # Floats added up in another order differ in their last digits.
                if not isclose(total, first[name], rel_tol=1e-9, abs_tol=1e-6):
                    where = f"{cluster}: {table.name}" + (f" of {days} days" if days > 1 else "")
                    yield f"{where}: {name} is {total}, by user {first[name]}"


def _total(
    db: Connection, columns: Iterable[str], table: sa.Table, cluster: str, days: int = 1
) -> dict[str, float]:
    added = (sa.func.coalesce(sa.func.sum(table.c[name]), 0.0).label(name) for name in columns)
    query = sa.select(*added).where(*of_length(table, cluster, days))
    return dict(db.execute(query).mappings().one())


def _overdue(db: Connection, cluster: str, now: int) -> Iterator[str]:
    job = schema.job.c
    late = sa.select(sa.func.count()).where(
        job.cluster == cluster, job.usage_due_time < now - _OVERDUE_SECONDS
    )
    count = db.execute(late).scalar()
    if count:
        yield f"{cluster}: {count} jobs wait for their usage for more than a day"
    due = schema.rollup_due.c
    days = db.execute(sa.select(sa.func.count()).where(due.cluster == cluster)).scalar() or 0
    if days > 2:
        yield f"{cluster}: {days} days wait for their sums"

"""A user's other jobs that are like one."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.job_rows import whole

_LOOKED_AT = 5000  # of the user's jobs before this one; the rest is too long ago to compare with
_SHORT_SECONDS = 60
_REQUEST = ("account", "partition", "allocated_cpus", "allocated_nodes", "allocated_gpus")
_MOST_COUNTED = 1000


def similar(
    db: Connection, access: Access, job: Mapping[Any, Any], most: int = 20
) -> tuple[str, Sequence[RowMapping]]:
    """The latest jobs of the same user before this one that ended well, and in what they are alike.

    Those of the same name, else those of the same account, partition and size. One machine's runs
    have neither account nor partition: those of other names have nothing in common.
    """
    if job["start_time"] is None:
        return "", ()
    found: tuple[str, Sequence[RowMapping]] = ("", ())
    requested = job["account"] or job["partition"]
    for alike in (("name",) if job["name"] else (), _REQUEST if requested else ()):
        if not alike:
            continue
        rows = _ended_well(db, access, job, alike, most)
        if len(rows) > len(found[1]):
            found = ("name" if alike == ("name",) else "account, partition and size", rows)
        if len(rows) >= min(3, most):
            break
    return found


def _ended_well(
    db: Connection, access: Access, job: Mapping[Any, Any], alike: Sequence[str], most: int
) -> Sequence[RowMapping]:
    table = schema.job
    before = (
        sa.select(table.c.id)
        .where(
            table.c.cluster == job["cluster"],
            table.c.username == job["username"],
            table.c.start_time <= job["start_time"],
            table.c.id != job["id"],
            visible(access),
        )
        .order_by(table.c.start_time.desc(), table.c.id.desc())
        .limit(_LOOKED_AT)
        .subquery()
    )
    query = (
        sa.select(table.c.id)
        .select_from(before.join(table, table.c.id == before.c.id))
        .where(
            table.c.state == "COMPLETED",
            table.c.end_time.is_not(None),
            *(table.c[name].is_not_distinct_from(job[name]) for name in alike),
        )
        .order_by(table.c.start_time.desc(), table.c.id.desc())
        .limit(most)
    )  # fmt: skip
    return whole(db, query)


def same_name(
    db: Connection, access: Access, job: Mapping[Any, Any], most: int = 50
) -> Sequence[RowMapping]:
    """The latest runs of a job's name by its user on its cluster, the oldest first.

    However they ended; the job itself is among them unless there are too many later ones.
    """
    if not job["name"]:
        return ()
    table = schema.job
    latest = (
        sa.select(table.c.id, table.c.name, table.c.start_time)
        .where(
            table.c.cluster == job["cluster"], table.c.username == job["username"],
            table.c.start_time.is_not(None), visible(access),
        )
        .order_by(table.c.start_time.desc(), table.c.id.desc())
        .limit(_LOOKED_AT)
        .subquery()
    )  # fmt: skip
    query = (
        sa.select(latest.c.id)
        .where(latest.c.name == job["name"])
        .order_by(latest.c.start_time.desc(), latest.c.id.desc())
        .limit(most)
    )
    return whole(db, query)[::-1]


def short_jobs(db: Connection, access: Access, job: Mapping[Any, Any]) -> int | None:
    """How many of the user's jobs in the day before took a minute or less; counted to a thousand.

    Tasks of arrays are left out.
    """
    if job["start_time"] is None:
        return None
    table = schema.job.c
    some = (
        sa.select(table.id)
        .where(
            table.cluster == job["cluster"],
            table.username == job["username"],
            table.start_time > job["start_time"] - DAY,
            table.start_time <= job["start_time"],
            table.elapsed_seconds <= _SHORT_SECONDS,
            table.end_time.is_not(None),
            table.array_jobid == sa.literal_column("''"),
            visible(access),
        )
        .limit(_MOST_COUNTED)
        .subquery()
    )
    return db.execute(sa.select(sa.func.count()).select_from(some)).scalar() or 0

"""A user's other jobs that are like one."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.job_rows import whole

_LOOKED_AT = 5000  # of the user's jobs before this one; the rest is too long ago to compare with
_SHORT_SECONDS = 60
_REQUEST = ("account", "partition", "allocated_cpus", "allocated_nodes", "allocated_gpus")
_MOST_COUNTED = 1000
_OTHER = schema.job.alias()


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
    table = schema.job.c
    query = (
        sa.select(table.id)
        .where(
            *_latest(job, job["start_time"]), visible(access), table.id != job["id"],
            table.state == "COMPLETED", table.end_time.is_not(None),
            *(table[name].is_not_distinct_from(job[name]) for name in alike),
        )
        .order_by(table.start_time.desc(), table.id.desc())
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
    table = schema.job.c
    query = (
        sa.select(table.id)
        .where(*_latest(job), visible(access), table.name == job["name"])
        .order_by(table.start_time.desc(), table.id.desc())
        .limit(most)
    )
    return whole(db, query)[::-1]


def _latest(job: Mapping[Any, Any], until: float | None = None) -> list[ColumnElement[bool]]:
    """Conditions of the last jobs that its user started on its cluster, up to a time.

    Where they are asked for from the last one on, reading ends as soon as enough are found.
    """
    other = _OTHER.c
    earliest = (
        sa.select(other.start_time)
        .where(*_started(other, job, until))
        .order_by(other.start_time.desc(), other.id.desc())
        .limit(1)
        .offset(_LOOKED_AT - 1)
        .scalar_subquery()
    )
    table = schema.job.c
    return [*_started(table, job, until), table.start_time >= sa.func.coalesce(earliest, 0)]


def _started(table: Any, job: Mapping[Any, Any], until: float | None) -> list[ColumnElement[bool]]:
    begun = table.start_time.is_not(None) if until is None else table.start_time <= until
    return [table.cluster == job["cluster"], table.username == job["username"], begun]


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

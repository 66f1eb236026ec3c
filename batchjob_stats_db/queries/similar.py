"""A user's other jobs that resemble one."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.job_rows import NAMES, Names, numbered
from batchjob_stats_db.queries.statements import remembered

_LOOKED_AT = 5000  # of the user's jobs before this one; older ones are too old to compare with
_SHORT_SECONDS = 60
_REQUEST = ("account", "partition", "allocated_cpus", "allocated_nodes", "allocated_gpus")
_MOST_COUNTED = 1000
_OTHER = schema.job.alias()


def similar(
    db: Connection, access: Access, job: Mapping[Any, Any], most: int = 20, names: Names = NAMES
) -> tuple[str, Sequence[RowMapping]]:
    """The latest successful jobs of the same user before this one, and what they have in common.

    Those of the same name, else those of the same account, partition and size. Runs of one machine
    have neither account nor partition: those with other names have nothing in common.
    """
    if job["start_time"] is None:
        return "", ()
    found: tuple[str, Sequence[RowMapping]] = ("", ())
    requested = job["account"] or job["partition"]
    for alike in (("name",) if job["name"] else (), _REQUEST if requested else ()):
        if not alike:
            continue
        rows = _ended_well(db, access, job, alike, most, names)
        if len(rows) > len(found[1]):
            found = ("name" if alike == ("name",) else "account, partition and size", rows)
        if len(rows) >= min(3, most):
            break
    return found


def _ended_well(
    db: Connection, access: Access, job: Mapping[Any, Any], alike: tuple[str, ...], most: int,
    names: Names,
) -> Sequence[RowMapping]:  # fmt: skip
    given = {name: job[name] for name in alike}
    given |= {"cluster": job["cluster"], "user": job["username"], "id": job["id"]}
    given |= {"until": job["start_time"], "most": most}
    return numbered(db, db.scalars(_alike(access, alike), given).all(), names)


@remembered
def _alike(access: Access, alike: tuple[str, ...]) -> sa.Select[int]:
    table = schema.job.c
    return (
        sa.select(table.id)
        .where(
            *_latest(until=True), visible(access), table.id != sa.bindparam("id"),
            table.state == "COMPLETED", table.end_time.is_not(None),
            *(table[name].is_not_distinct_from(sa.bindparam(name)) for name in alike),
        )
        .order_by(table.start_time.desc(), table.id.desc())
        .limit(sa.bindparam("most"))
    )  # fmt: skip


def same_name(
    db: Connection, access: Access, job: Mapping[Any, Any], most: int = 50, names: Names = NAMES
) -> Sequence[RowMapping]:
    """The latest runs of a job's name by its user on its cluster, the oldest first.

    In any end state; the job itself is among them unless there are too many later ones.
    """
    if not job["name"]:
        return ()
    given = {"cluster": job["cluster"], "user": job["username"], "name": job["name"]}
    ids = db.scalars(_of_name(access), {**given, "most": most}).all()
    return numbered(db, ids, names)[::-1]


@remembered
def _of_name(access: Access) -> sa.Select[int]:
    table = schema.job.c
    return (
        sa.select(table.id)
        .where(*_latest(until=False), visible(access), table.name == sa.bindparam("name"))
        .order_by(table.start_time.desc(), table.id.desc())
        .limit(sa.bindparam("most"))
    )


def _latest(*, until: bool) -> list[ColumnElement[bool]]:
    """Conditions of the last jobs that a user started on a cluster, up to a time or to the last.

    Queries from the last one on stop reading when enough jobs are found.
    """
    other = _OTHER.c
    earliest = (
        sa.select(other.start_time)
        .where(*_started(other, until))
        .order_by(other.start_time.desc(), other.id.desc())
        .limit(1)
        .offset(_LOOKED_AT - 1)
        .scalar_subquery()
    )
    table = schema.job.c
    return [*_started(table, until), table.start_time >= sa.func.coalesce(earliest, 0)]


def _started(table: Any, until: bool) -> list[ColumnElement[bool]]:
    begun = table.start_time <= sa.bindparam("until") if until else table.start_time.is_not(None)
    return [
        table.cluster == sa.bindparam("cluster"), table.username == sa.bindparam("user"),
        begun,
    ]  # fmt: skip


def short_jobs(db: Connection, access: Access, job: Mapping[Any, Any]) -> int | None:
    """How many of the user's jobs of the day before took a minute or less; at most a thousand.

    Tasks of arrays do not count.
    """
    if job["start_time"] is None:
        return None
    given = {"cluster": job["cluster"], "user": job["username"]}
    start = job["start_time"]
    given |= {"since": start - DAY, "until": start}
    return db.execute(_short_jobs(access), given).scalar() or 0


@remembered
def _short_jobs(access: Access) -> sa.Select[int]:
    table = schema.job.c
    some = (
        sa.select(table.id)
        .where(
            table.cluster == sa.bindparam("cluster"),
            table.username == sa.bindparam("user"),
            table.start_time > sa.bindparam("since"),
            table.start_time <= sa.bindparam("until"),
            table.elapsed_seconds <= _SHORT_SECONDS,
            table.end_time.is_not(None),
            table.array_jobid == sa.literal_column("''"),
            visible(access),
        )
        .limit(_MOST_COUNTED)
        .subquery()
    )
    return sa.select(sa.func.count()).select_from(some)

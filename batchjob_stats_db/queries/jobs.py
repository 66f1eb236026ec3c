"""Jobs by the ids that schedulers and people write, and the parts of a job."""

import re
from collections import defaultdict
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, cached_by_access, visible
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_db.queries.job_list import MAX_PAGE_ROWS, id_condition, rows_by_ids

_JOB = schema.job.c
# A prefix of a UUID; one of digits alone needs 8 of them.
_UUID_PREFIX = re.compile(r"(?=.*[a-f-]|.{8})[0-9a-f-]{4,35}")


class AmbiguousIdError(ValueError):
    """An id prefix that several jobs have."""


_PART_NOTATIONS = (
    (re.compile(r"(\d{1,18})_(\d{1,9})"), _JOB.array_jobid, _JOB.array_index),
    (re.compile(r"(\d{1,18})\+(\d{1,9})"), _JOB.het_jobid, _JOB.het_offset),
)
"""Notations for a part of a whole, such as `123_4` for task 4 of array 123, with the columns."""


def find_jobs(
    db: Connection, access: Access, text: str, cluster: str | None = None
) -> list[RowMapping]:
    """All runs of a job, the latest first.

    `text` is the accounting's id (`123`, `2[1].pbs01`, `123[4]`, a UUID), Slurm's name of an array
    task or part of a het job (`123_4`, `123+1`), or a prefix of a UUID that no other visible job
    has; else AmbiguousIdError is raised.
    """
    if exact := _of_ids(db, access, cluster, schema.job.c.jobid == text):
        return exact
    for pattern, whole, number in _PART_NOTATIONS:
        if found := pattern.fullmatch(text):
            # This matches the partial index, which contains only array tasks and components of het
            # jobs.
            return _of_ids(
                db, access, cluster,
                whole != sa.literal_column("''"), whole == found[1], number == int(found[2]),
            )  # fmt: skip
    if not _UUID_PREFIX.fullmatch(text):
        return []
    # The range is for the index. substr() decides, since PostgreSQL's order of dashes depends on
    # the locale.
    runs = _of_ids(
        db, access, cluster,
        _JOB.jobid >= text, _JOB.jobid < f"{text}g",
        sa.func.substr(_JOB.jobid, 1, len(text)) == text, sa.func.length(_JOB.jobid) == 36,
    )  # fmt: skip
    if len({row["jobid"] for row in runs}) > 1:
        raise AmbiguousIdError(f"several jobs have ids that begin with {text}")
    return runs


def members_of(db: Connection, access: Access, text: str) -> list[RowMapping]:
    """The tasks of an array, or the parts of a het job, by the id of the whole."""
    return [
        row
        for _, whole, _ in _PART_NOTATIONS
        for row in _of_ids(db, access, None, whole != sa.literal_column("''"), whole == text)
    ]


def _of_ids(
    db: Connection, access: Access, cluster: str | None, *conditions: ColumnElement[bool]
) -> list[RowMapping]:
    """All runs that match these conditions on ids, the latest first."""
    job = schema.job.c
    # A subquery: combined with a condition on the user, SQLite without statistics would prefer the
    # index by user name.
    clusters = cluster_names(db, cluster)  # the indexes of ids start with the cluster
    found = sa.select(job.id).where(job.cluster.in_(clusters), *conditions)
    query = (
        sa.select(job.id)
        .where(job.id.in_(found), visible(access))
        .order_by(job.submit_time.desc(), job.run.desc())
        .limit(MAX_PAGE_ROWS)
    )
    return rows_by_ids(db, db.scalars(query).all())


def parts_of(db: Connection, access: Access, job_id: int) -> dict[str, list[RowMapping]] | None:
    """Nodes, steps, GPUs and emissions of a job; None if it may not be seen."""
    wanted = {"id": job_id}
    if db.scalar(_visible_id(access), wanted) is None:
        return None
    return {
        name: list(db.execute(query, wanted).mappings()) for name, query in _PART_QUERIES.items()
    }


@cached_by_access
def _visible_id(access: Access) -> sa.Select[int]:
    return sa.select(schema.job.c.id).where(schema.job.c.id == sa.bindparam("id"), visible(access))


_PART_TABLES = {
    "nodes": schema.job_node,
    "steps": schema.job_step,
    "gpus": schema.job_gpu,
    "node-usage": schema.job_node_usage,
    "emissions": schema.job_emissions,
}
_PART_QUERIES = {
    name: sa.select(table).where(table.c.job_id == sa.bindparam("id")).order_by(*table.primary_key)
    for name, table in _PART_TABLES.items()
}


def gpu_utilizations(db: Connection, ids: Sequence[int]) -> dict[int, Sequence[float | None]]:
    """Recorded mean utilisation (0..1) of each GPU of these jobs, ordered by node and GPU.

    The caller must have checked that the jobs may be seen.
    """
    condition, parameter = id_condition(db.dialect.name, _GPU.job_id)
    found: defaultdict[int, list[float | None]] = defaultdict(list)
    query, given = _UTILIZATIONS.where(condition), {"ids": parameter(ids)}
    for job_id, ratio in db.execute(query, given).all():
        found[job_id].append(ratio)
    return {**found}


_GPU = schema.job_gpu.c
_UTILIZATIONS = sa.select(_GPU.job_id, _GPU.utilization_ratio).order_by(
    _GPU.job_id, _GPU.node, _GPU.gpu, _GPU.uuid, _GPU.gpu_instance
)

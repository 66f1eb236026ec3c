"""GPUs of several jobs at once, for lists."""

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.job_rows import IdCondition, id_condition


class GpuKey(NamedTuple):
    """The key of a job's GPU, in the order in which they are shown."""

    node: str
    gpu: str
    uuid: str
    gpu_instance: str


def utilizations(db: Connection, ids: Sequence[int]) -> dict[int, Sequence[float | None]]:
    """Recorded mean utilisation (0..1) of each GPU of these jobs, ordered by GpuKey.

    The caller must have checked that the jobs may be seen.
    """
    condition = id_condition(db.dialect.name, schema.job_gpu.c.job_id)
    query = _query(condition, ("utilization_ratio",))
    found: defaultdict[int, list[float | None]] = defaultdict(list)
    for job_id, ratio in db.execute(query, {"ids": condition.value(ids)}).all():
        found[job_id].append(ratio)
    return {**found}


@functools.cache
def _query(condition: IdCondition, names: tuple[str, ...]) -> sa.Select[Any]:
    gpu = schema.job_gpu.c
    return (
        sa.select(gpu.job_id, *(gpu[name] for name in names))
        .where(condition.clause)
        .order_by(gpu.job_id, *(gpu[name] for name in GpuKey._fields))
    )

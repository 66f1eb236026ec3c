"""GPUs of several jobs at once, for lists."""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.job_rows import Among, among


def utilizations(db: Connection, ids: Sequence[int]) -> Mapping[int, Sequence[float | None]]:
    """Mean utilisation (0..1) of each GPU of the jobs of these rows, in the order of their nodes.

    The caller found that the jobs may be seen.
    """
    which = among(db.dialect.name, schema.job_gpu.c.job_id)
    found: dict[int, list[float | None]] = defaultdict(list)
    for job_id, ratio in db.execute(_utilizations(which), {"ids": which.value(ids)}).all():
        found[job_id].append(ratio)
    return found


@functools.cache
def _utilizations(which: Among) -> sa.Select[Any]:
    gpu = schema.job_gpu.c
    return (
        sa.select(gpu.job_id, gpu.utilization_ratio)
        .where(which.condition)
        .order_by(gpu.job_id, gpu.node, gpu.gpu, gpu.uuid, gpu.gpu_instance)
    )

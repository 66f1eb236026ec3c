"""The jobs and times for which measurements are queried."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import (
    JOB_COLUMNS,
    allocated_nodes,
    job_to_measure,
    runs_by_jobid,
    with_allocation,
)


def span_of(
    db: Connection, access: Access, job_id: int, policy: UsagePolicy, now: int
) -> JobToMeasure | None:
    """The time and owner of a run, by the id of its row.

    None if it has not started, or may not be seen.
    """
    return spans_of(db, access, [job_id], policy, now).get(job_id)


def spans_of(
    db: Connection, access: Access, job_ids: Sequence[int], policy: UsagePolicy, now: int
) -> dict[int, JobToMeasure]:
    """The same for several runs, by id."""
    job = schema.job.c
    query = sa.select(job.cluster, *JOB_COLUMNS).where(
        job.id.in_(job_ids), job.start_time.is_not(None), visible(access)
    )
    rows = db.execute(query).all()
    found: dict[int, JobToMeasure] = {}
    for cluster in {row.cluster for row in rows}:
        own = [row for row in rows if row.cluster == cluster]
        runs = runs_by_jobid(db, cluster, [row.jobid for row in own])
        found |= {row.id: job_to_measure(cluster, row, runs[row.jobid], policy, now) for row in own}
    nodes = allocated_nodes(db, list(found))
    return {job_id: with_allocation(job, nodes.get(job_id, {})) for job_id, job in found.items()}

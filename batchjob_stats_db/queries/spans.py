"""Where a job's measurements are to be looked for."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import WANTED, measured, runs_of_ids


def span_of(
    db: Connection, access: Access, job_id: int, policy: UsagePolicy, now: int
) -> JobToMeasure | None:
    """The time and owner of a run, by the number of its row.

    None for one that has not started, or may not be seen.
    """
    job = schema.job.c
    query = sa.select(job.cluster, *WANTED).where(
        job.id == job_id, job.start_time.is_not(None), visible(access)
    )
    row = db.execute(query).first()
    if row is None:
        return None
    runs = runs_of_ids(db, row.cluster, [row.jobid])
    return measured(row.cluster, row, runs[row.jobid], policy, now)

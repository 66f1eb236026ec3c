"""Batch scripts of jobs, separate from their records: not everyone who sees a job may see its
script.

A script is stored once, however many jobs have it: the tasks of an array share theirs.
"""

import hashlib
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob.schedulers.accounting import SubmittedJob
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.database.upsert import write_rows

_job, _job_script, _script = schema.job.c, schema.job_script.c, schema.batch_script.c


def jobs_without_script(
    db: Connection, cluster: str, source: str, since: int, unchanged_since: int, limit: int
) -> list[tuple[int, SubmittedJob]]:
    """Jobs of a source whose script has not been requested yet, newest first.

    They started after `since`, and their rows have not changed since `unchanged_since`.
    """
    query = (
        sa.select(
            _job.id, _job.jobid, _job.submit_time, _job.array_jobid, _job.array_index,
            _job.het_jobid, _job.het_offset,
        )
        .select_from(schema.job.outerjoin(schema.job_script))
        .where(
            _job.cluster == cluster, _job.start_time >= since, _job.source == source,
            _job.update_time <= unchanged_since, _job_script.job_id.is_(None),
        )
        .order_by(_job.start_time.desc(), _job.id.desc())
        .limit(limit)
    )  # fmt: skip
    return [(job_id, SubmittedJob(*rest)) for job_id, *rest in db.execute(query)]


def store(db: Connection, job_ids: Sequence[int], text: str, max_bytes: int) -> None:
    """Store the script of these jobs, cut to `max_bytes`; "" records that they have none."""
    encoded = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    digest = hashlib.sha256(encoded).hexdigest() if encoded else ""
    if digest:
        kept = encoded[:max_bytes].decode("utf-8", "ignore")
        write_rows(db, schema.batch_script, [(digest, kept, len(encoded))])
    write_rows(db, schema.job_script, [(job_id, digest) for job_id in job_ids])


def of_jobs(db: Connection, access: Access, job_ids: Sequence[int]) -> list[RowMapping]:
    """`job_id`, `username`, `script`, `whole_bytes` of jobs that have a script and may be seen.

    The caller decides whose `access` applies: it is not the one by which jobs are seen.
    """
    query = (
        sa.select(_job_script.job_id, _job.username, _script.script, _script.whole_bytes)
        .select_from(
            schema.job_script.join(schema.job).join(
                schema.batch_script, _job_script.digest == _script.digest
            )
        )
        .where(_job_script.job_id.in_(job_ids), visible(access))
        .order_by(_job_script.job_id.desc())
    )
    return list(db.execute(query).mappings())


def delete(db: Connection, which: sa.Select[tuple[int]]) -> int:
    """Delete the scripts of the selected jobs; returns the number of jobs.

    They count as requested, so that they are not requested again.
    """
    forgotten = sa.update(schema.job_script).where(
        _job_script.job_id.in_(which), _job_script.digest != ""
    )
    count = db.execute(forgotten.values(digest="")).rowcount
    delete_unused(db)
    return count


def delete_unused(db: Connection) -> None:
    used = sa.select(_job_script.job_id).where(_job_script.digest == _script.digest)
    db.execute(sa.delete(schema.batch_script).where(~used.exists()))

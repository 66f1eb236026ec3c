"""Raise the CPU time and peak memory of Slurm's jobs that lacked steps recorded for them.

The answer of a window omits the steps that ended before it, and the job's totals were those of the
answer. A job's CPU time is the sum of its steps', its peak memory that of its largest step.
"""

import logging
import time

import sqlalchemy as sa
from alembic import op

from batchjob_stats_db.days import days_of

revision = "0005"
down_revision = "0004"

log = logging.getLogger(__name__)

_CPU_TIMES = ("user_cpu_seconds", "system_cpu_seconds", "cpu_seconds")
_MEASURES = (*_CPU_TIMES, "peak_memory_bytes")
_ROUNDING = 0.01  # seconds; more than the sum of a job's steps may differ by

_job = sa.table(
    "job",
    *map(sa.column, ("id", "cluster", "source", "start_time", "end_time", "update_time")),
    *map(sa.column, _MEASURES),
)
_step = sa.table("job_step", *map(sa.column, ("job_id", *_CPU_TIMES, "memory_bytes")))
_due = sa.table("rollup_due", sa.column("cluster"), sa.column("day"))


def upgrade() -> None:
    """Raise the totals, and have the sums of the days on which the jobs ran computed again."""
    db, now = op.get_bind(), int(time.time())
    found = db.execute(_too_low()).all()
    if not found:
        return
    rows = [dict(row._mapping) for row in found]
    new: dict[str, sa.BindParameter[float]] = {
        name: sa.bindparam(f"new_{name}") for name in _MEASURES
    }
    raised = {
        name: sa.case((sa.func.coalesce(_job.c[name], 0) < value, value), else_=_job.c[name])
        for name, value in new.items()
    }
    changes = sa.update(_job).where(_job.c.id == sa.bindparam("job_id"))
    db.execute(changes.values(update_time=now, **raised), rows)
    days = {
        (row["cluster"], day) for row in rows for day in days_of(row["start_time"], row["end_time"])
    }
    marked = {(row.cluster, row.day) for row in db.execute(sa.select(_due))}
    if not_due := sorted(days - marked):
        db.execute(sa.insert(_due), [{"cluster": name, "day": day} for name, day in not_due])
    log.warning(
        "%d jobs had less CPU time or memory than their steps; %d days are summed up again",
        len(rows), len(days),
    )  # fmt: skip


def _too_low() -> sa.Select[tuple[object, ...]]:
    """Ended jobs of Slurm whose steps have used more than the jobs themselves, with the totals."""
    totals = [sa.func.sum(_step.c[name]).label(f"new_{name}") for name in _CPU_TIMES]
    peak = sa.func.max(_step.c.memory_bytes).label("new_peak_memory_bytes")
    of_steps = sa.select(_step.c.job_id, *totals, peak).group_by(_step.c.job_id).subquery()
    return (
        sa.select(of_steps, _job.c.cluster, _job.c.start_time, _job.c.end_time)
        .join(_job, _job.c.id == of_steps.c.job_id)
        .where(
            _job.c.source.in_(("sacct", "slurm_rest")),
            _job.c.end_time.is_not(None),
            sa.or_(
                *(of_steps.c[f"new_{name}"] > _job.c[name] + _ROUNDING for name in _CPU_TIMES),
                of_steps.c.new_peak_memory_bytes > sa.func.coalesce(_job.c.peak_memory_bytes, 0),
            ),
        )
    )

"""What changed before the first release, with mended values of what was stored until then.

- Tables, columns and indexes that are declared and absent are added. New columns are empty for
  earlier jobs, but those of the time of GPUs, which follow from the means.
- The CPU time and peak memory of Slurm's jobs are raised to those of their steps. The answer of a
  window omits the steps that ended before it, and the totals were those of the answer.
- A CPU time of 0 s is taken out where an accounting without a plugin gathered none, or lost it: see
  `with_steps` of Slurm's records, and the rule `lost cpu` of the gate.
- sacct up to 25.05 may print 128 less than an exit code, and 0 of a failed job that returned 128.
  What it printed moves to a column of its own, except for jobs that ended after a release was seen
  that prints the exact code (25.11 or later).
- Sums are made again: with peak memory, and without the energy of accounting, which is that of
  whole nodes and was added once for each of the jobs that shared one.
"""

import logging
import time

import sqlalchemy as sa
from alembic import op

from batchjob_stats_db.database import schema
from batchjob_stats_db.days import days_of

revision = "0016"
down_revision = "0001"

log = logging.getLogger(__name__)

_CPU_TIMES = ("user_cpu_seconds", "system_cpu_seconds", "cpu_seconds")
_MEASURES = (*_CPU_TIMES, "peak_memory_bytes")
_SOURCES = ("sacct", "slurm_rest")
_IDLE_SECONDS = 60  # in which a job may really have used next to no CPU time
_ROUNDING = 0.01  # seconds; more than the sum of a job's steps may differ by

_ENDS = ("source", "state", "exit_code", "exit_signal", "exit_code_or_128_more")
_job = sa.table(
    "job",
    *map(sa.column, ("id", "cluster", "start_time", "end_time", "update_time", *_ENDS)),
    *map(sa.column, _MEASURES),
)
_step = sa.table("job_step", *map(sa.column, ("job_id", *_CPU_TIMES, "memory_bytes", *_ENDS[1:])))
_due = sa.table("rollup_due", sa.column("cluster"), sa.column("day"))


def upgrade() -> None:
    """Add tables and columns, mend the values, and have sums made again."""
    for table in ("job", "job_usage"):
        op.alter_column(table, "doubt", new_column_name="caveats")
    _add_what_is_declared()
    _condition_indexes()
    op.execute("UPDATE quarantine SET rule = 'unreadable'")
    _compute_gpu_seconds()
    _sum_up_again()
    _tell_exit_codes_apart()
    _raise_totals()
    _take_out_zeros()


def _add_what_is_declared() -> None:
    found = sa.inspect(op.get_bind())
    earlier = {name: found.get_columns(name) for name in found.get_table_names()}
    schema.metadata.create_all(op.get_bind())
    for table in (each for each in schema.metadata.sorted_tables if each.name in earlier):
        known = {each["name"] for each in earlier[table.name]}
        for column in (each for each in table.columns if each.name not in known):
            # Sums of earlier days lack what is new, until they are made again.
            default = column.server_default or (None if column.nullable else sa.text("0"))
            added = sa.Column(
                column.name, column.type, nullable=column.nullable, server_default=default
            )
            op.add_column(table.name, added)


def _condition_indexes() -> None:
    """Make the indexes that have the rows of a condition alone."""
    op.drop_index("ix_job_end_time", "job")
    for index in schema.job.indexes:
        if index.name in ("ix_job_end_time", "ix_job_failed"):
            index.create(op.get_bind())


def _compute_gpu_seconds() -> None:
    """What was measured so far, in means, covers the measured time."""
    usage = schema.job_usage.c
    start = sa.select(_job.c.start_time).where(_job.c.id == usage.job_id).scalar_subquery()
    seconds = usage.gpus * (usage.until_time - start)
    values = {
        "gpu_busy_seconds": seconds * usage.gpu_utilization_ratio, "gpu_observed_seconds": seconds
    }  # fmt: skip
    known = usage.gpu_utilization_ratio.is_not(None)
    op.execute(sa.update(schema.job_usage).where(known).values(values))


def _sum_up_again() -> None:
    """Have the days whose jobs are all still there summed up again.

    Retention deletes jobs by their end, so that no job is missing on the days after the earliest.
    """
    op.execute(
        "INSERT INTO rollup_due (cluster, day) "
        "SELECT DISTINCT cluster, day FROM daily_cluster_usage AS sums "
        "WHERE day >= (SELECT min(end_time) FROM job WHERE job.cluster = sums.cluster) "
        "AND NOT EXISTS (SELECT 1 FROM rollup_due AS due "
        "WHERE due.cluster = sums.cluster AND due.day = sums.day)"
    )


def _raise_totals() -> None:
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
            _job.c.source.in_(_SOURCES),
            _job.c.end_time.is_not(None),
            sa.or_(
                *(of_steps.c[f"new_{name}"] > _job.c[name] + _ROUNDING for name in _CPU_TIMES),
                of_steps.c.new_peak_memory_bytes > sa.func.coalesce(_job.c.peak_memory_bytes, 0),
            ),
        )
    )


def _take_out_zeros() -> None:
    """Take out the CPU time of ended jobs, and of their steps, that was never gathered.

    A process has memory, and within a minute some CPU time. All sums are made again anyway.
    """
    without_memory = sa.func.coalesce(_job.c.peak_memory_bytes, 0) == 0
    is_zero = (
        _job.c.source.in_(_SOURCES)
        & (_job.c.cpu_seconds == 0)
        & (without_memory | (_job.c.end_time - _job.c.start_time > _IDLE_SECONDS))
        & _job.c.id.not_in(sa.select(_step.c.job_id).where(_step.c.cpu_seconds > 0))
    )
    unknown = dict.fromkeys(_CPU_TIMES)
    jobs = sa.select(_job.c.id).where(is_zero)
    op.execute(sa.update(_step).where(_step.c.job_id.in_(jobs)).values(unknown))
    changed = sa.update(_job).where(is_zero).values(update_time=int(time.time()), **unknown)
    if count := op.get_bind().execute(changed).rowcount:
        log.warning("%d jobs had 0 s of CPU time, which is not known now", count)


def _tell_exit_codes_apart() -> None:
    """Move the codes of which it is not known what they are."""
    from_sacct = (_job.c.source == "sacct") & _job.c.id.not_in(_surely_exact())
    jobs = sa.select(_job.c.id).where(from_sacct)
    for table, which in ((_job, from_sacct), (_step, _step.c.job_id.in_(jobs))):
        failed_with_0 = (table.c.exit_code == 0) & (table.c.state == "FAILED")
        ambiguous = table.c.exit_code.between(1, 127) | failed_with_0
        values = {"exit_code_or_128_more": table.c.exit_code, "exit_code": None}
        changed = which & ambiguous & (table.c.exit_signal == 0)
        op.execute(sa.update(table).where(changed).values(values))


def _surely_exact() -> sa.Select[tuple[int]]:
    """Ids of the jobs that ended after sacct had printed a code above 128, as of 25.11 it does."""
    seen = _job.alias()
    first = (
        sa.select(seen.c.cluster, sa.func.min(seen.c.update_time).label("time"))
        .where((seen.c.exit_code > 128) & (seen.c.source == "sacct"))
        .group_by(seen.c.cluster)
        .subquery()
    )
    is_later = (_job.c.cluster == first.c.cluster) & (_job.c.end_time > first.c.time)
    return sa.select(_job.c.id).join(first, is_later)

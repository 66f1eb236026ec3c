"""What follows from a job's record and its usage: efficiencies, wait, energy.

An efficiency is NULL where its parts are not known or stand for less than nearly all of the job.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db import schema

_WHOLE = 0.95  # coverage from which totals are taken for those of the whole job, as in usage.py

_job, _usage = schema.job.c, schema.job_usage.c
_ended = _job.end_time.is_not(None)
_measured = (_usage.samples > 0) & (_usage.coverage >= _WHOLE)

# A running job's usage is that of the time until it was measured.
ELAPSED = sa.case((_ended, _job.elapsed_seconds), else_=_usage.until_time - _job.start_time)
_ready = sa.func.coalesce(_job.eligible_time, _job.submit_time)


def _ratio(part: ColumnElement[Any], whole: ColumnElement[Any]) -> ColumnElement[Any]:
    return sa.case((whole > 0, sa.cast(part, sa.Float) / sa.cast(whole, sa.Float)))


def _sum(*columns: ColumnElement[Any]) -> ColumnElement[Any]:
    """Of what is known; NULL where nothing is."""
    known = sa.func.coalesce(*columns)
    added = sum((sa.func.coalesce(column, 0.0) for column in columns), sa.literal(0.0))
    return sa.case((known.is_not(None), added))


CPU_SECONDS = sa.func.coalesce(
    sa.case((_measured, _usage.user_cpu_seconds + _usage.system_cpu_seconds)),
    sa.case(
        (
            _ended,
            sa.func.coalesce(_job.cpu_seconds, _job.user_cpu_seconds + _job.system_cpu_seconds),
        )
    ),
)

ENERGY = _sum(
        _usage.energy_host_active_joules, _usage.energy_host_idle_joules,
        _usage.energy_gpu_active_joules, _usage.energy_gpu_idle_joules,
    )  # fmt: skip

DERIVED: tuple[ColumnElement[Any], ...] = (
    sa.case((_job.start_time > _ready, _job.start_time - _ready), (_job.start_time > 0, 0)).label(
        "wait_seconds"
    ),
    _ratio(_job.elapsed_seconds, _job.time_limit_seconds).label("time_efficiency"),
    # CPU time over elapsed time of all allocated CPUs; by accounting where it was not measured.
    _ratio(CPU_SECONDS, ELAPSED * _job.allocated_cpus).label("cpu_efficiency"),
    sa.case((_measured, _ratio(_usage.memory_peak_bytes, _job.allocated_memory_bytes))).label(
        "memory_efficiency"
    ),
    ENERGY.label("usage_energy_joules"),
)  # fmt: skip
"""Columns of the outer join of `job` and `job_usage`."""


def columns() -> tuple[ColumnElement[Any], ...]:
    """A job's columns under their names, its usage's with `usage_` before, and what follows."""
    usage = (column for column in schema.job_usage.columns if column.name != "job_id")
    named = (column.label(f"usage_{column.name}") for column in usage)
    return (*schema.job.columns, *named, *DERIVED)

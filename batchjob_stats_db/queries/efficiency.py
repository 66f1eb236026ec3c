"""The one definition of a job's usage in relation to its allocation.

Lists, reports, sorting and filters take their figures from these columns. The basis of each figure
is `measured` or `accounting` (of CPU time also `at least`, see AT_LEAST_MEANS), `usage_coverage` is
the part of the job's life that measurements cover, and `usage_final` says whether anything may
still change. If an ended job was last measured before its end, that measurement is not its usage:
accounting counts instead, unless it says less than was measured, and if there is none, the figure
is that of the measured time.
"""

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from batchjob.judgements import (
    AT_LEAST,
    COMPLETE_COVERAGE,
    FULL_WORKING_SET,
    LOST_STATES,
    MEMORY_WAITING,
    MORE_CPU,
    RUNNING_STATES,
)
from batchjob.schedulers.registry import SCHEDULERS
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema

MIN_MEMORY_SAMPLES = 2
"""How often accounting must have sampled a job's memory for its peak to be used."""

MEASURED, ACCOUNTING = "measured", "accounting"
ENERGY_MISSING = "energy of some nodes missing"
"""The caveat with which there is no energy of the job."""
ENDED_ON_NODES = "ended on all nodes"
"""The caveat of a job that its nodes have seen end, and its scheduler not yet."""

_job, _usage, _state = schema.job.c, schema.job_usage.c, schema.poll_state.c
_ended = _job.end_time.is_not(None)
_sampled = _usage.samples > 0
_measured_to_end = _job.end_time.is_(None) | (_usage.until_time >= _job.end_time)


class _EpochNow(FunctionElement[int]):
    """The database's time in epoch seconds."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(_EpochNow, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "CAST(strftime('%s', 'now') AS INTEGER)"


@compiles(_EpochNow)
def _postgresql_now(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch FROM now()) AS BIGINT)"


def _constant(text: str) -> ColumnElement[str]:
    return sa.literal_column(f"'{text}'", sa.Text)


_polls = [sa.select(_state.cluster, _state.source, _state.success_time, _state.error_time)]
for _scheduler in SCHEDULERS:
    # Parts of its sources, which are read with them.
    _polls += [
        sa.select(
            _state.cluster, _constant(_part).label("source"), _state.success_time,
            _state.error_time,
        ).where(
            sa.or_(
                *(_state.source == _constant(entry.name)
                  for entry in _scheduler.sources if not entry.has_associations)
            )
        )
        for _part in _scheduler.other_sources
    ]  # fmt: skip
_poll = sa.union_all(*_polls).subquery("poll").c
_last_success = sa.func.max(_poll.success_time)
_failing_since = sa.case((sa.func.max(_poll.error_time) >= _last_success, _last_success))
_failing_since_of_job = (
    sa.select(_failing_since)
    .where(_poll.cluster == _job.cluster, _poll.source == _job.source)
    .correlate(schema.job)
    .scalar_subquery()
)
SOURCE_READ_TIME = sa.case((~_ended, _failing_since_of_job))
"""When an unfinished job's source was last read, while it cannot be read: the job may have ended.

NULL for a job that has ended, and while its source answers.
"""


def ended_on_nodes(usage: Any) -> ColumnElement[bool]:
    """Whether all nodes of an unfinished job have seen its end, which was at `until_time`."""
    return ~_ended & sa.func.coalesce(usage.caveats, "").contains(ENDED_ON_NODES)


AS_OF = sa.case((ended_on_nodes(_usage), _usage.until_time), else_=SOURCE_READ_TIME)
"""When the clock of an unfinished job stopped; NULL while it runs."""

_is_suspended = (_job.state == "SUSPENDED") & _job.elapsed_seconds.is_not(None) & ~_ended


def suspended_seconds(until: ColumnElement[Any]) -> ColumnElement[Any]:
    """Seconds for which a job was suspended, up to a time."""
    return sa.case(
        (_is_suspended, until - _job.start_time - _job.elapsed_seconds),
        else_=sa.func.coalesce(_job.suspended_seconds, 0),
    )


_suspended = sa.func.coalesce(_job.suspended_seconds, 0)
_since_start = sa.func.coalesce(AS_OF, _EpochNow()) - _job.start_time - _suspended


def _run_seconds(until: ColumnElement[Any]) -> ColumnElement[Any]:
    seconds = until - _job.start_time - _suspended
    return sa.case((seconds > 0, seconds), (seconds <= 0, 0))


_total_run_seconds = sa.func.coalesce(_job.elapsed_seconds, _run_seconds(_job.end_time))
_run_seconds_so_far = sa.case(
    # A resumed job's elapsed_seconds is still the value from its suspension.
    (_job.elapsed_seconds.is_not(None) & (_job.state != "RUNNING"), _job.elapsed_seconds),
    (
        _job.state.in_(RUNNING_STATES) & (_since_start > -1),  # the time is in whole seconds
        sa.case((_since_start > 0, sa.cast(_since_start, sa.Float)), else_=0.0),
    ),
    ((_job.state == "VANISHED") & _sampled, _run_seconds(_usage.until_time)),
)
RUN_SECONDS = sa.case((_ended, _total_run_seconds), else_=_run_seconds_so_far)
"""How long a job ran; computed for a running job, whose row is not written each second.

The clock of a running job stops when its nodes have seen it end, and when its source was last read,
while that fails (`AS_OF`).
The end of a vanished job is unknown: its time up to the last measurement, if any.
"""

NumberColumn = ColumnElement[Any]


def wait_seconds(job: Any) -> NumberColumn:
    """Seconds from when a job could start to its start; NULL if it has not started."""
    ready = sa.func.coalesce(job.eligible_time, job.submit_time)
    return sa.case((job.start_time > ready, job.start_time - ready), (job.start_time > 0, 0))


def _ratio(part: NumberColumn, whole: NumberColumn) -> NumberColumn:
    return sa.case((whole > 0, sa.cast(part, sa.Float) / sa.cast(whole, sa.Float)))


def _sum(*columns: NumberColumn) -> NumberColumn:
    """The sum of the known values; NULL if there is none."""
    known = sa.func.coalesce(*columns)
    added = sum((sa.func.coalesce(column, 0.0) for column in columns), sa.literal(0.0))
    return sa.case((known.is_not(None), added))


_seconds_to_measurement = _usage.until_time - _job.start_time
_resumed_before_measurement = (_job.state == "RUNNING") & (_usage.until_time >= _job.update_time)
OBSERVED_SECONDS = sa.case(
    (_ended, _total_run_seconds),
    (_resumed_before_measurement, _seconds_to_measurement - _suspended),
    (_seconds_to_measurement > _run_seconds_so_far, _run_seconds_so_far),
    else_=_seconds_to_measurement,
)
"""Seconds that the figures cover: an ended job's run time, a running one's up to its measurement.

No source says when a job was suspended, only that it was before the row was written: the latest
possible time is assumed.
"""

# A changed allocation: the job held `cpus` more until `until_time`. Few jobs have any.
_change = schema.job_reallocation.c
_resized_cpu = sa.func.coalesce(_job.resized_cpu_seconds, 0.0)
_measured_until_change = sa.case(
    (_usage.until_time < _change.until_time, _usage.until_time), else_=_change.until_time
)
_held_so_far = sa.func.coalesce(
    sa.select(sa.func.sum(_change.cpus * (_measured_until_change - _job.start_time)))
    .where(_change.job_id == _job.id)
    .correlate(schema.job, schema.job_usage)
    .scalar_subquery(),
    _resized_cpu,
)
_life_seconds = sa.cast(_job.end_time - _job.start_time, sa.Float)
_held_in_life = _life_seconds * _job.allocated_cpus + _resized_cpu

COVERAGE = sa.case(
    (_measured_to_end | (_job.end_time <= _job.start_time), _usage.coverage),
    (
        (_job.resized_cpu_seconds != 0) & (_held_in_life > 0),
        _usage.coverage
        * (_seconds_to_measurement * _job.allocated_cpus + _held_so_far)
        / _held_in_life,
    ),
    else_=_usage.coverage * sa.cast(_seconds_to_measurement, sa.Float) / _life_seconds,
)
"""Part of the node time of the job's whole life, with all that it held, once it has ended."""

_covered_part = sa.case((COVERAGE < 1.0, COVERAGE), else_=1.0)
_complete = _sampled & _measured_to_end & (_usage.coverage >= COMPLETE_COVERAGE)

USAGE_FINAL = sa.case(
    (_ended & _sampled & _measured_to_end & _job.usage_due_time.is_(None), 1), else_=0
)
"""Whether the job has ended, was measured after its end, and is not to be measured again."""


def _basis(
    measured: NumberColumn, accounted: NumberColumn, accounting: Any = ACCOUNTING
) -> NumberColumn:
    """Which of two amounts counts; nothing counts in place of a larger one that was measured.

    `accounting` is the basis if the accounted amount counts.
    """
    return sa.case(
        (_complete & measured.is_not(None), MEASURED),
        (_sampled & (measured > accounted), MEASURED),
        (accounted.is_not(None), accounting),
        (_sampled & measured.is_not(None), MEASURED),
    )


def _select_by_basis(
    basis: NumberColumn, measured: NumberColumn, accounted: NumberColumn
) -> NumberColumn:
    amounts = {MEASURED: measured, ACCOUNTING: accounted, AT_LEAST: accounted}
    return sa.case(amounts, value=basis)


_cpu_measured = _sum(_usage.user_cpu_seconds, _usage.system_cpu_seconds)
_cpu_reported = sa.func.coalesce(_job.cpu_seconds, _job.user_cpu_seconds + _job.system_cpu_seconds)
# The scheduler adds up CPU time only when a job or one of its steps ends.
_is_at_least = _job.cpu_at_least > 0
_cpu_accounted = sa.case(
    ((_job.state.in_(LOST_STATES) | _is_at_least) & (_cpu_reported == 0), sa.null()),
    (_ended, _cpu_reported),
)
CPU_BASIS = _basis(
    _cpu_measured, _cpu_accounted, sa.case((_is_at_least, AT_LEAST), else_=ACCOUNTING)
)
CPU_SECONDS = _select_by_basis(CPU_BASIS, _cpu_measured, _cpu_accounted)

_later = schema.job_reallocation.alias("later").c
_beyond = (
    sa.select(sa.func.sum(_later.memory_bytes))
    .where(_later.job_id == _change.job_id, _later.until_time >= _change.until_time)
    .scalar_subquery()
)
_memory_beyond = sa.case(
    (
        _job.resized_memory_byte_seconds != 0,
        sa.select(sa.func.max(sa.case((_beyond > 0, _beyond), else_=0)))
        .where(_change.job_id == _job.id)
        .correlate(schema.job)
        .scalar_subquery(),
    )
)
"""How much more memory than at last a job had when it had most; NULL: its allocation is one."""
CPU_ALLOCATED = sa.cast(OBSERVED_SECONDS, sa.Float) * _job.allocated_cpus + sa.case(
    (~_ended & (_job.resized_cpu_seconds != 0), _held_so_far), else_=_resized_cpu
)
"""CPU seconds allocated in the observed seconds, over all phases of a changed allocation."""
CPU_AVAILABLE = CPU_ALLOCATED * _select_by_basis(CPU_BASIS, _covered_part, sa.literal(1))

_caveats = sa.func.coalesce(_usage.caveats, "")
_is_wrong_cpu = _select_by_basis(
    CPU_BASIS,
    _caveats.contains(MORE_CPU),
    sa.func.coalesce(_job.caveats, "").contains(MORE_CPU)
    | sa.func.coalesce(_job.cpu_at_least == 2, sa.false()),
)
CPU_IS_WHOLE = ~sa.func.coalesce(_is_wrong_cpu, sa.false())
"""Whether a job's CPU time can be all that it used; efficiency and sums leave it out otherwise."""
_cpu_efficiency = sa.case((CPU_IS_WHOLE, _ratio(CPU_SECONDS, CPU_AVAILABLE)))

# The scheduler misses peaks between two of its samples: for a short job, nearly all.
_too_short_for_memory = sa.or_(
    *(
        _job.source.in_(scheduler.record_sources)
        & (_job.elapsed_seconds < MIN_MEMORY_SAMPLES * scheduler.memory_sampling_seconds)
        for scheduler in SCHEDULERS
        if scheduler.memory_sampling_seconds
    )
)
_memory_accounted = sa.case((_too_short_for_memory, sa.null()), (_ended, _job.peak_memory_bytes))
MEMORY_BASIS = _basis(_usage.memory_peak_bytes, _memory_accounted)
MEMORY_PEAK = _select_by_basis(MEMORY_BASIS, _usage.memory_peak_bytes, _memory_accounted)
MEMORY_ALLOCATED = sa.func.coalesce(
    sa.func.nullif(_job.allocated_memory_bytes, 0), sa.func.nullif(_usage.memory_limit_bytes, 0)
)
MEMORY_OF_MEASURED_NODES = sa.case(
    (
        (_usage.nodes > 0) & (_usage.nodes < _job.allocated_nodes),
        MEMORY_ALLOCATED * _usage.nodes / _job.allocated_nodes,
    ),
    else_=MEMORY_ALLOCATED,
)
# A peak is compared with the largest of the job's allocations, since nothing says when it was.
MEMORY_AVAILABLE = _select_by_basis(
    MEMORY_BASIS, MEMORY_OF_MEASURED_NODES, MEMORY_ALLOCATED
) + sa.func.coalesce(_memory_beyond, 0)

# See SHORT_MEMORY_MEANS. Accounting's peak may contain page cache, as Slurm's does with
# jobacct_gather/cgroup. A job with CPU time "at least" was sampled by jobacct_gather/linux: its
# peak contains none, and may be too low.
_memory_short = sa.case(
    (MEMORY_BASIS.is_(None), sa.null()),
    ((_job.state == JobState.OUT_OF_MEMORY.value) | (_usage.oom_kills > 0), 1),
    (
        MEMORY_BASIS == ACCOUNTING,
        sa.case((_is_at_least & (MEMORY_PEAK >= FULL_WORKING_SET * MEMORY_AVAILABLE), 1)),
    ),
    (_usage.working_set_average_bytes >= FULL_WORKING_SET * MEMORY_AVAILABLE, 1),
    (
        (_usage.memory_limit_hits > 0)
        & (_usage.memory_waiting_seconds >= MEMORY_WAITING * OBSERVED_SECONDS * _usage.nodes),
        1,
    ),
    (
        sa.func.coalesce(
            _usage.oom_kills, _usage.working_set_average_bytes, _usage.memory_limit_hits
        ).is_(None),
        sa.null(),
    ),
    else_=0,
)

# For a job that never started, schedulers report a run time of zero.
_time_efficiency = sa.case((_job.start_time > 0, _ratio(RUN_SECONDS, _job.time_limit_seconds)))

_lacks_nodes = _caveats.contains(ENERGY_MISSING) | sa.func.coalesce(
    _usage.nodes < COMPLETE_COVERAGE * _job.allocated_nodes, sa.false()
)
_energy_of_nodes = _sum(
        _usage.energy_host_active_joules, _usage.energy_host_idle_joules,
        _usage.energy_gpu_active_joules, _usage.energy_gpu_idle_joules,
    )  # fmt: skip
GPUS_HELD = sa.func.coalesce(_job.allocated_gpus, _usage.gpus)
"""GPUs of a job: those allocated, or where accounting has none, those that it was seen to hold."""

ENERGY = sa.case((~_lacks_nodes, _energy_of_nodes))
"""Measured energy of all nodes; unknown if some have none."""
_energy_accounted = sa.cast(_job.energy_joules, sa.Float)
ENERGY_BASIS = _basis(ENERGY, _energy_accounted)
ENERGY_USED = _select_by_basis(ENERGY_BASIS, ENERGY, _energy_accounted)

_cpu_unused = sa.case((CPU_SECONDS > CPU_AVAILABLE, 0.0), else_=CPU_AVAILABLE - CPU_SECONDS)
# Of GPUs beyond the allocation, such as those that a job used without confinement, none count.
_is_beyond = (_usage.gpus > GPUS_HELD) & (sa.func.coalesce(_job.resized_gpu_seconds, 0) == 0)
_counted = sa.case((_is_beyond, sa.cast(GPUS_HELD, sa.Float) / _usage.gpus), else_=1.0)
_gpu_unused = (_usage.gpu_observed_seconds - _usage.gpu_busy_seconds) * _counted

_process_io = sa.func.coalesce(_usage.process_io_read_bytes, _usage.process_io_written_bytes)
_has_process_io = _process_io >= 0

DERIVED: tuple[ColumnElement[Any], ...] = (
    sa.type_coerce(wait_seconds(_job), schema.Count).label("wait_seconds"),
    _time_efficiency.label("time_efficiency"),
    sa.type_coerce(AS_OF, sa.BigInteger).label("as_of_time"),
    sa.type_coerce(
        sa.case((ended_on_nodes(_usage), "nodes"), (SOURCE_READ_TIME.is_not(None), "scheduler")),
        sa.Text,
    ).label("as_of_basis"),
    sa.type_coerce(OBSERVED_SECONDS, schema.Count).label("observed_seconds"),
    CPU_SECONDS.label("cpu_used_seconds"),
    CPU_AVAILABLE.label("cpu_available_seconds"),
    _cpu_efficiency.label("cpu_efficiency"),
    sa.type_coerce(CPU_BASIS, sa.Text).label("cpu_basis"),
    sa.case((CPU_IS_WHOLE, _cpu_unused)).label("cpu_unused_seconds"),
    _gpu_unused.label("gpu_unused_seconds"),
    sa.type_coerce(MEMORY_PEAK, sa.BigInteger).label("memory_used_bytes"),
    sa.type_coerce(MEMORY_AVAILABLE, sa.BigInteger).label("memory_available_bytes"),
    _ratio(MEMORY_PEAK, MEMORY_AVAILABLE).label("memory_efficiency"),
    sa.type_coerce(MEMORY_BASIS, sa.Text).label("memory_basis"),
    sa.type_coerce(_memory_short, sa.Integer).label("memory_short"),
    sa.type_coerce(GPUS_HELD, sa.BigInteger).label("gpus_held"),
    ENERGY.label("usage_energy_joules"),
    ENERGY_USED.label("energy_used_joules"),
    sa.type_coerce(ENERGY_BASIS, sa.Text).label("energy_basis"),
    # Processes that live shorter than a scan of the exporter are not seen.
    sa.type_coerce(sa.case((_has_process_io, AT_LEAST)), sa.Text).label("process_io_basis"),
    sa.type_coerce(USAGE_FINAL, sa.Integer).label("usage_final"),
)
"""Columns of the outer join of `job` and `job_usage`."""


_reading = (
    sa.select(_poll.cluster, _poll.source, _failing_since.label("failing_since"))
    .group_by(_poll.cluster, _poll.source)
    .subquery("reading")
)


def with_figures(jobs: sa.FromClause = schema.job) -> sa.FromClause:
    """The tables of `columns()`: `job`, or a join with it, and what figures are made of."""
    of_source = (_reading.c.cluster == _job.cluster) & (_reading.c.source == _job.source)
    return jobs.outerjoin(schema.job_usage, _usage.job_id == _job.id).outerjoin(_reading, of_source)


@functools.cache
def columns() -> tuple[ColumnElement[Any], ...]:
    """A job's columns, its usage's with the prefix `usage_`, and the derived ones.

    Their names and types; statements have `statement_column` of `with_figures`.
    """
    usage = (
        (COVERAGE if column.name == "coverage" else column).label(f"usage_{column.name}")
        for column in schema.job_usage.columns
        if column.name != "job_id"
    )
    own = (
        RUN_SECONDS.label(column.name) if column.name == "elapsed_seconds" else column
        for column in schema.job.columns
    )
    return (*own, *usage, *DERIVED)


@functools.cache
def statement_column(name: str) -> ColumnElement[Any]:
    """The column with literal constants: dozens of parameters cost time at each execution.

    Above all the lists in IN, which SQLAlchemy rewrites each time. The look-up of a source's last
    reading, which dozens of columns repeat, is the join in its place.
    """

    def constant(element: Any, **_: Any) -> Any:
        if element is _failing_since_of_job:
            return _reading.c.failing_since
        if not isinstance(element, sa.BindParameter):
            return None
        if type(element.value) in (int, float):
            text = repr(element.value)
        else:
            text = str(element.compile(compile_kwargs={"literal_binds": True}))
        return sa.literal_column(text, element.type)

    column = next(each for each in columns() if each.name == name)
    if isinstance(column, sa.Column):
        return column
    inlined: ColumnElement[Any] = visitors.replacement_traverse(column, {}, constant)
    return inlined

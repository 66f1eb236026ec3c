"""The sums of one day by account and user, from the runs that touch it.

A job's time and usage are divided among the days (UTC) on which it ran; all columns may be added
up. Measurements of a run apply to the time up to its `until_time`, with the allocation of that
time; a run whose allocation changed held in each part of its time what it had then. The CPU time of
an ended run that was not measured to its end is accounting's.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob.judgements import FAILED_STATES
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.efficiency import (
    ACCOUNTING,
    CPU_BASIS,
    CPU_IS_WHOLE,
    CPU_SECONDS,
    ENERGY,
    MEASURED,
    MEMORY_ALLOCATED,
    MEMORY_AVAILABLE,
    MEMORY_BASIS,
    MEMORY_OF_MEASURED_NODES,
    MEMORY_PEAK,
    OBSERVED_SECONDS,
    SOURCE_READ_TIME,
    ended_on_nodes,
    suspended_seconds,
    wait_seconds,
)

# No B-tree index answers "runs that overlap a day", which is two open ranges. But a run of up to a
# day started on that day or the day before; two partial indexes find the longer ones, which are
# few.
_WEEK = 7 * DAY

# States in which a run has no end time; listed so that the index of unfinished jobs is used.
STATES_WITHOUT_END = tuple(
    state.value for state in JobState if state.is_live or state is JobState.VANISHED
)

Number = ColumnElement[Any]


def add_runs(db: Connection, cluster: str, day: int, now: int) -> None:
    """Add up the runs of a day by account and user."""
    parts = _runs_within_day(cluster, day, now)
    wanted = {schema.daily_usage: _usage_sums(parts, cluster, day)}
    # Without a provider of emission factors, there are none.
    if db.execute(sa.select(schema.job_emissions.c.job_id).limit(1)).first():
        wanted[schema.daily_emissions] = _emission_sums(parts, cluster, day)
    for table, sums in wanted.items():
        db.execute(sa.insert(table).from_select([each.name for each in table.columns], sums))


def _runs_within_day(cluster: str, day: int, now: int) -> sa.CTE:
    """The runs that touch a day, each with its seconds and its share within the day."""
    job = schema.job
    until = min(day + DAY, max(now, day))
    vanished = job.c.state == JobState.VANISHED.value
    usage = schema.job_usage
    measured_until = sa.select(usage.c.until_time).where(usage.c.job_id == job.c.id)
    seen = sa.func.coalesce(
        measured_until.where(usage.c.samples > 0).scalar_subquery(), job.c.update_time
    )
    ended = measured_until.where(ended_on_nodes(usage.c)).correlate(job).scalar_subquery()
    end = sa.case(
        (job.c.end_time.is_not(None), _greatest(job.c.end_time, job.c.start_time)),
        (vanished, _greatest(seen, job.c.start_time)),  # its end is unknown
        else_=_greatest(
            sa.func.coalesce(ended, SOURCE_READ_TIME, _time_literal(now)), job.c.start_time
        ),
    )
    in_day = (job.c.start_time < day + DAY) & (end >= day)
    start, length = job.c.start_time, job.c.end_time - job.c.start_time
    tiers = (
        (start >= day - DAY) & in_day,
        (start < day - DAY) & (start >= day - _WEEK) & in_day & (length > _inline_literal(DAY)),
        (start < day - _WEEK) & in_day & (length > _inline_literal(_WEEK)),
        (start < day - DAY)
        & in_day
        & job.c.end_time.is_(None)
        & job.c.state.in_(STATES_WITHOUT_END),
    )
    columns = [
        job.c.id, job.c.account, job.c.username, job.c.state, job.c.submit_time,
        job.c.eligible_time, job.c.start_time, job.c.end_time,
        job.c.allocated_cpus, job.c.allocated_gpus,
        job.c.resized_cpu_seconds, job.c.resized_gpu_seconds, job.c.resized_memory_byte_seconds,
        suspended_seconds(end).label("suspended_seconds"),
        end.label("until"),
    ]  # fmt: skip
    runs = sa.union_all(
        *(sa.select(*columns).where(job.c.cluster == cluster, which) for which in tiers)
    ).cte("runs")
    begin = _greatest(runs.c.start_time, _time_literal(day))
    seconds = _least(runs.c.until, _time_literal(until)) - begin
    whole = runs.c.until - runs.c.start_time
    return sa.select(
        runs,
        begin.label("begin"),
        _greatest(seconds, _time_literal(0)).label("seconds"),
        # A run of zero length belongs entirely to the day of its start.
        sa.case(
            (whole > 0, sa.cast(_greatest(seconds, _time_literal(0)), sa.Float) / whole), else_=1.0
        ).label("share"),
        # The part of its time without suspensions, in which others use its CPUs. When it was
        # suspended is not recorded.
        sa.case(
            (
                (whole > 0) & (runs.c.suspended_seconds > 0),
                1.0 - sa.cast(_least(runs.c.suspended_seconds, whole), sa.Float) / whole,
            ),
            else_=1.0,
        ).label("active"),
    ).cte("parts")


def _measured_part(job: Any) -> tuple[Number, Number, Number]:
    """The measured part of a run: usage up to `until_time`, often not of all its time.

    Measured seconds within the day, the CPU time allocated in that part of them that was measured,
    and the share of the measured usage that falls within the day.
    """
    usage = schema.job_usage.c
    seen = usage.samples > 0
    to_end = seen & job.end_time.is_not(None) & (usage.until_time >= job.until)
    partly = _least(job.begin + job.seconds, usage.until_time) - job.begin
    partly = _greatest(partly, _time_literal(0))
    whole = usage.until_time - job.start_time
    seconds = sa.case((to_end, job.seconds), (seen, partly), else_=0)
    part = sa.case((usage.coverage < 1.0, usage.coverage), else_=1.0)
    active = sa.case(
        (seen & job.end_time.is_(None) & (whole > 0), sa.cast(OBSERVED_SECONDS, sa.Float) / whole),
        else_=job.active,
    )
    share = sa.case(
        (to_end, job.share), (seen & (whole > 0), sa.cast(partly, sa.Float) / whole), else_=0.0
    )
    return seconds, _or_zero(seconds * part * active * _cpus(job, seconds)), share


def _cpus(job: Any, seconds: Number) -> Number:
    """CPUs of a run in the first seconds of its time within the day, on average."""
    resized = _resized(job, "cpus", job.resized_cpu_seconds, seconds, job.active)
    return _or_zero(job.allocated_cpus) + resized


def _resized(
    job: Any, amount: str, resized: Number, seconds: Number, active: Number | float = 1.0
) -> Number:
    """What a run held on average beyond its allocation, in the first seconds within the day.

    `resized` is the sum over all of its time, which is spread evenly if nothing says when the
    allocation changed; `active` is the part of its time in which it ran.
    """
    change = schema.job_reallocation.c
    held = _least(job.begin + seconds, change.until_time) - job.begin
    of_phases = (
        sa.select(sa.func.sum(change[amount] * _greatest(held, sa.literal(0.0))))
        .where(change.job_id == job.id)
        .scalar_subquery()
    )
    whole = (job.until - job.start_time) * active
    average = sa.func.coalesce(of_phases / seconds, resized / sa.func.nullif(whole, 0), 0.0)
    return sa.case(((resized != 0) & (seconds > 0), average), else_=0.0)


def _usage_sums(parts: sa.CTE, cluster: str, day: int) -> sa.Select[Any]:
    usage = schema.job_usage
    job = parts.c
    started = (job.start_time >= day) & (job.start_time < day + DAY)
    ended = (job.end_time >= day) & (job.end_time < day + DAY)
    measured_seconds, cpu_seconds, share = _measured_part(job)
    gpus = _or_zero(sa.func.coalesce(job.allocated_gpus, usage.c.gpus))
    gpus += _resized(job, "gpus", job.resized_gpu_seconds, job.seconds)
    # Of GPUs beyond the allocation, such as those that a job used without confinement, none count.
    is_beyond = (usage.c.gpus > gpus) & (_or_zero(job.resized_gpu_seconds) == 0)
    gpu_share = sa.case((is_beyond, share * gpus / usage.c.gpus), else_=share)
    # Float: 1 TiB for a day is 9.5e16 byte-seconds, and a hundred such jobs overflow BIGINT.
    resized = _resized(job, "memory_bytes", job.resized_memory_byte_seconds, job.seconds)
    memory = sa.cast(sa.func.coalesce(MEMORY_ALLOCATED, 0), sa.Float) + resized
    of_seen_nodes = sa.cast(sa.func.coalesce(MEMORY_OF_MEASURED_NODES, 0), sa.Float) + resized
    peak_seconds = sa.case(
        (MEMORY_AVAILABLE.is_(None) | MEMORY_PEAK.is_(None), 0.0),
        (MEMORY_BASIS == ACCOUNTING, sa.cast(job.seconds, sa.Float)),
        else_=measured_seconds,
    )
    cpu_is_known = CPU_SECONDS.is_not(None) & CPU_IS_WHOLE
    cpu_share, known_cpu = _known_part(CPU_BASIS, job, cpu_seconds, share, cpu_is_known)
    # Accounting has the energy of whole nodes: it would count once for each job on them.
    energy_share = sa.case((ENERGY.is_not(None), share), else_=0.0)
    sums: dict[str, Number] = {
        "jobs_started": _one_if(started),
        "jobs_ended": _one_if(ended),
        "jobs_failed": _one_if(ended & job.state.in_(FAILED_STATES)),
        "wait_seconds": sa.case((started, wait_seconds(job)), else_=0),
        "wall_seconds": job.seconds * job.active,
        "cpu_allocated_seconds": job.seconds * job.active * _cpus(job, job.seconds),
        "gpu_allocated_seconds": job.seconds * gpus,
        "memory_allocated_byte_seconds": job.seconds * memory,
        "measured_cpu_allocated_seconds": known_cpu,
        "measured_gpu_allocated_seconds": gpu_share * _or_zero(usage.c.gpu_observed_seconds),
        "measured_memory_allocated_byte_seconds": sa.case(
            (usage.c.memory_average_bytes.is_not(None), measured_seconds * of_seen_nodes), else_=0
        ),
        "measured_memory_peak_allocated_byte_seconds": peak_seconds * _or_zero(MEMORY_AVAILABLE),
        "measured_energy_cpu_allocated_seconds": sa.case(
            (ENERGY.is_not(None), cpu_seconds), else_=0.0
        ),
        "cpu_seconds": cpu_share * _or_zero(CPU_SECONDS),
        "gpu_seconds": gpu_share * _or_zero(usage.c.gpu_busy_seconds),
        "memory_byte_seconds": measured_seconds * _or_zero(usage.c.memory_average_bytes),
        "memory_peak_byte_seconds": peak_seconds * _or_zero(MEMORY_PEAK),
        "energy_host_joules": energy_share * _component_joules("host"),
        "energy_gpu_joules": energy_share * _component_joules("gpu"),
    }
    added = (sa.func.sum(sa.cast(sums[name], sa.Float)) for name in schema.DAILY_SUMS)
    owner = (job.account, job.username)
    jobs = parts.join(schema.job, schema.job.c.id == job.id)
    return (
        sa.select(sa.literal(cluster), _time_literal(day), *owner, *added)
        .select_from(jobs.outerjoin(usage, usage.c.job_id == job.id))
        .group_by(*owner)
    )


def _known_part(
    basis: Number, job: Any, cpu_seconds: Number, share: Number, is_known: ColumnElement[bool]
) -> tuple[Number, Number]:
    """The part of a run's figure that falls within the day by its basis; 0 if it is not known.

    Its share of the figure, and the CPU time allocated in it. `cpu_seconds` and `share` are those
    of the measured part.
    """
    # NULL, as in runs without usage, is false.
    unknown, accounted = ~sa.func.coalesce(is_known, sa.false()), basis != MEASURED
    allocated = job.seconds * job.active * _cpus(job, job.seconds)
    return (
        sa.case((unknown, 0.0), (accounted, job.share), else_=share),
        sa.case((unknown, 0.0), (accounted, allocated), else_=cpu_seconds),
    )


def _component_joules(component: str) -> Number:
    usage = schema.job_usage.c
    return _or_zero(usage[f"energy_{component}_active_joules"]) + _or_zero(
        usage[f"energy_{component}_idle_joules"]
    )


def _emission_sums(parts: sa.CTE, cluster: str, day: int) -> sa.Select[Any]:
    emissions, usage = schema.job_emissions, schema.job_usage
    job = parts.c
    _, measured_cpu_seconds, measured_share = _measured_part(job)
    seconds = sa.func.sum(sa.cast(measured_cpu_seconds, sa.Float))
    grams = sa.func.sum(measured_share * emissions.c.grams)
    keys = (job.account, job.username, emissions.c.provider)
    jobs = parts.join(schema.job, schema.job.c.id == job.id)
    jobs = jobs.join(emissions, emissions.c.job_id == job.id)
    return (
        sa.select(sa.literal(cluster), _time_literal(day), *keys, seconds, grams)
        .select_from(jobs.join(usage, usage.c.job_id == job.id))
        .where(ENERGY.is_not(None))
        .group_by(*keys)
    )


def _time_literal(time: int) -> Number:
    return sa.literal(time, sa.BigInteger)


def _inline_literal(seconds: int) -> Number:
    """A literal, not a parameter: a partial index is used only if its condition is literal."""
    return sa.literal_column(str(seconds))


def _one_if(condition: ColumnElement[bool]) -> Number:
    return sa.case((condition, 1), else_=0)


def _or_zero(column: Number) -> Number:
    """In a sum, unmeasured values add nothing; the measured_ columns say how much was measured."""
    return sa.func.coalesce(column, 0.0)


def _greatest(a: Number, b: Number) -> Number:
    return sa.case((a > b, a), else_=b)


def _least(a: Number, b: Number) -> Number:
    return sa.case((a < b, a), else_=b)

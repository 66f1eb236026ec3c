"""The jobs that are due to be measured."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.schedulers.node_names import NodeNames, short_name
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.upsert import chunks
from batchjob_stats_db.measure.batches import Outcome, measure_isolated
from batchjob_stats_db.measure.job_usage import NOT_ANSWERED, JobToMeasure, MeasuredUsage
from batchjob_stats_db.measure.node_usage import installed_gpu_memory
from batchjob_stats_db.measure.writer import record_failures, write_or_set_aside
from batchjob_stats_db.timeseries.base import JobWindow, TimeSeriesStore
from batchjob_stats_db.timeseries.resample import CARRIED_SECONDS

JOB_COLUMNS = tuple(
    schema.job.c[name]
    for name in (
        "id", "jobid", "username", "uid", "start_time", "end_time", "allocated_nodes",
        "allocated_cpus", "allocated_gpus", "resized_cpu_seconds", "tool",
    )
)  # fmt: skip


def measure_due(
    store: Store,
    time_series: TimeSeriesStore,
    policy: UsagePolicy,
    interval: float,
    now: int,
    limit: int = 1000,
    on_progress: Callable[[], None] = lambda: None,
) -> Outcome:
    """Measure the jobs that are due, at most `limit`; all stay due after a TimeSeriesError."""
    with store.engine.connect() as db:
        jobs = due_jobs(db, store.cluster, policy, now, limit)
    usages, failed = measure_isolated(time_series, jobs, interval, on_progress)
    if any(usage.devices for usage in usages.values()):
        memory = installed_gpu_memory(time_series, store.cluster, now)
        usages = {job: with_gpu_memory(usage, memory) for job, usage in usages.items()}
    with store.transaction() as db:
        refused = write_or_set_aside(db, store.cluster, time_series.source, usages, policy, now)
        record_failures(db, time_series.source, failed, NOT_ANSWERED, policy, now)
    written = {job: usage for job, usage in usages.items() if job not in refused}
    return written, {**failed, **refused}


def with_gpu_memory(
    usage: MeasuredUsage, memory: Mapping[tuple[str, str, str], int]
) -> MeasuredUsage:
    """The same with the memory of its GPUs, by node, UUID and instance."""
    devices = [
        each._replace(memory_total_bytes=memory.get((each.node, each.uuid, each.gpu_instance)))
        for each in usage.devices
    ]
    return usage._replace(devices=devices)


def due_jobs(
    db: Connection, cluster: str, policy: UsagePolicy, now: int, limit: int
) -> list[JobToMeasure]:
    """Jobs that are due to be measured, the longest due first."""
    job = schema.job
    query = (
        sa.select(*JOB_COLUMNS)
        .where(job.c.cluster == cluster, job.c.usage_due_time <= now, job.c.start_time.is_not(None))
        .order_by(job.c.usage_due_time, job.c.id)
        .limit(limit)
    )
    rows = db.execute(query).all()
    failed = _previously_failed(db, [row.id for row in rows])
    jobs = jobs_to_measure(db, cluster, rows, policy, now)
    return [job._replace(failed_before=job.id in failed) for job in jobs]


def jobs_to_measure(
    db: Connection, cluster: str, rows: Sequence[Any], policy: UsagePolicy, now: int
) -> list[JobToMeasure]:
    """The jobs of rows with the columns JOB_COLUMNS, with the names of their nodes."""
    runs = runs_by_jobid(db, cluster, [row.jobid for row in rows])
    jobs = [job_to_measure(cluster, row, runs[row.jobid], policy, now) for row in rows]
    return _with_nodes(db, cluster, jobs)


Held = tuple[float | None, int | None]
"""When a node was given back, if it was, and the GPUs that were allocated on it, if known."""


def allocated_nodes(db: Connection, job_ids: Sequence[int]) -> dict[int, dict[str, Held]]:
    """The nodes of jobs, by id; none of jobs whose nodes are unknown."""
    share = schema.job_node.c
    nodes: dict[int, dict[str, Held]] = {}
    for part in chunks(job_ids):
        query = sa.select(share.job_id, share.node, share.until_time, share.gpus)
        for job_id, node, *held in db.execute(query.where(share.job_id.in_(part))):
            nodes.setdefault(job_id, {})[node] = (held[0], held[1])
    return nodes


def with_allocation(job: JobToMeasure, nodes: Mapping[str, Held]) -> JobToMeasure:
    """The job with its nodes, of `allocated_nodes`, and with the GPUs of each if they are known."""
    returned = tuple((node, int(until)) for node, (until, _) in nodes.items() if until is not None)
    gpus = tuple((short_name(node), number) for node, (_, number) in nodes.items() if number)
    if returned:
        gpus = ()  # it held them for different times
    elif sum(number for _, number in gpus) != sum(number for _, number in job.gpus):
        gpus = job.gpus
    return job._replace(allocated=NodeNames(nodes), returned=returned, gpus=gpus)


def _with_nodes(db: Connection, cluster: str, jobs: Sequence[JobToMeasure]) -> list[JobToMeasure]:
    seen, nodes = schema.daily_node_coverage.c, allocated_nodes(db, [job.id for job in jobs])
    of_days = db.execute(sa.select(seen.node).where(seen.cluster == cluster).distinct()).scalars()
    known = NodeNames(chain(of_days, *nodes.values()))
    return [
        with_allocation(job, nodes.get(job.id, {}))._replace(cluster_nodes=known) for job in jobs
    ]


def _previously_failed(db: Connection, ids: Sequence[int]) -> set[int]:
    usage = schema.job_usage.c
    found: set[int] = set()
    for part in chunks(ids):
        which = usage.job_id.in_(part) & usage.doubt.contains(NOT_ANSWERED)
        found.update(db.execute(sa.select(usage.job_id).where(which)).scalars())
    return found


class JobRun(NamedTuple):
    """A run with its times in epoch seconds, or a part of one that was resized."""

    start: float
    end: float | None
    is_resized: bool = False  # it ended as another part of the job began


def runs_by_jobid(db: Connection, cluster: str, jobids: Sequence[str]) -> dict[str, list[JobRun]]:
    """All runs of the job ids, of any user."""
    job = schema.job
    runs: dict[str, list[JobRun]] = {}
    for part in chunks(list(dict.fromkeys(jobids))):
        columns = (job.c.jobid, job.c.start_time, job.c.end_time, job.c.state)
        query = sa.select(*columns).where(job.c.cluster == cluster, job.c.jobid.in_(part))
        # `start` is checked here: in the query, it makes SQLite without statistics scan all started
        # jobs.
        for jobid, start, end, state in db.execute(query):
            if start is not None:
                runs.setdefault(jobid, []).append(JobRun(start, end, state == JobState.RESIZED))
    return runs


def job_to_measure(
    cluster: str,
    row: Any,
    runs: Sequence[JobRun],
    policy: UsagePolicy,
    now: int,
) -> JobToMeasure:
    """The job to measure for one run; `row` has the columns JOB_COLUMNS."""
    # Series are queried in whole seconds, from the start rounded down to the end rounded up.
    start = int(row.start_time)
    end = None if row.end_time is None else math.ceil(row.end_time)
    until = min(now, end + policy.settle_seconds) if end is not None else now
    later = min((run.start for run in runs if run.start > row.start_time), default=math.inf)
    earlier = [(run.end or run.start) for run in runs if run.start < row.start_time]
    # By then, the lingering series of the previous run are gone.
    before = max(earlier, default=-math.inf) + policy.settle_seconds
    last_seen = (end if end is not None else now) + policy.settle_seconds
    span = JobWindow(
        cluster, row.jobid, start, int(max(min(until, later - 1), start + 1)),
        near_other_run=before > start - CARRIED_SECONDS or later <= last_seen,
        end=end, nodes=row.allocated_nodes or 1, free_range=(before, later - 1),
        continues=any(run.is_resized and run.end == row.start_time for run in runs),
    )  # fmt: skip
    cpus = row.allocated_cpus  # on average, of a job whose allocation changed
    if cpus and row.resized_cpu_seconds:
        cpus += row.resized_cpu_seconds / max(1, (end or until) - start)
    return JobToMeasure(
        row.id, cluster, row.jobid, row.username, row.uid, start, end,
        row.allocated_nodes, cpus, span, tool=row.tool,
        gpus=(("", row.allocated_gpus),) if row.allocated_gpus else (),
    )  # fmt: skip


def mark_for_measurement(
    db: Connection, cluster: str, since: int, until: int | None = None, now: int = 0
) -> int:
    """Mark the jobs that ended in [since, until) to be measured again; returns how many."""
    job = schema.job
    which = (job.c.cluster == cluster) & (job.c.end_time >= since) & job.c.start_time.is_not(None)
    if until is not None:
        which &= job.c.end_time < until
    return db.execute(sa.update(job).where(which).values(usage_due_time=now)).rowcount

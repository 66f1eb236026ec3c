"""The jobs that are due to be measured, many in one query, each job's errors isolated.

An answer identifies jobs by their id alone, and is held in memory until all of it is used.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.node_names import NodeNames, short_name
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.upsert import chunks
from batchjob_stats_db.isolation import isolate_failures
from batchjob_stats_db.measure.job_usage import (
    METRICS,
    NOT_ANSWERED,
    PRESENCE_METRIC,
    JobSeries,
    JobToMeasure,
    MeasuredUsage,
    compute_usage,
    returned_at,
    samples_by_node,
    series_by_jobid,
)
from batchjob_stats_db.measure.node_usage import installed_gpu_memory
from batchjob_stats_db.measure.writer import record_failures, write_or_set_aside
from batchjob_stats_db.timeseries.base import (
    JobWindow,
    QueryFailed,
    SeriesValue,
    TimeSeriesError,
    TimeSeriesStore,
)
from batchjob_stats_db.timeseries.resample import CARRIED_SECONDS

JOB_COLUMNS = tuple(
    schema.job.c[name]
    for name in (
        "id", "jobid", "username", "uid", "start_time", "end_time", "allocated_nodes",
        "allocated_cpus", "allocated_gpus", "resized_cpu_seconds", "tool",
    )
)  # fmt: skip


_NODES_PER_QUERY = 4000  # about 40 series per node, of half a kilobyte
_MAX_FAILURES = 10  # failures without a measured job: then the store itself fails

Outcome = tuple[dict[JobToMeasure, MeasuredUsage], dict[JobToMeasure, Exception]]
"""The usages of the jobs that could be measured, and the errors of the others."""


def measure_due(
    store: Store,
    time_series: TimeSeriesStore,
    policy: UsagePolicy,
    interval: float,
    now: int,
    on_progress: Callable[[], None] = lambda: None,
    limit: int = 1000,
) -> Outcome:
    """Measure the jobs that are due, at most `limit`; all stay due after a TimeSeriesError."""
    with store.engine.connect() as db:
        jobs = due_jobs(db, store.cluster, policy, now, limit)
    usages, failed = measure_isolated(time_series, jobs, interval, on_progress)
    if any(usage.devices for usage in usages.values()):
        memory = installed_gpu_memory(time_series, store.cluster, now)
        for job, usage in usages.items():
            devices = [
                each._replace(memory_total_bytes=memory.get(each[:3])) for each in usage.devices
            ]
            usages[job] = usage._replace(devices=devices)
    with store.transaction() as db:
        refused = write_or_set_aside(db, store.cluster, time_series.source, usages, policy, now)
        record_failures(db, time_series.source, failed, NOT_ANSWERED, policy, now)
    written = {job: usage for job, usage in usages.items() if job not in refused}
    return written, {**failed, **refused}


def due_jobs(
    db: Connection, cluster: str, policy: UsagePolicy, now: int, limit: int
) -> list[JobToMeasure]:
    """Jobs that are due to be measured, the longest due first."""
    job = schema.job
    failed = sa.func.coalesce(schema.job_usage.c.caveats, "").contains(NOT_ANSWERED)
    query = (
        sa.select(*JOB_COLUMNS, failed.label("failed_before"))
        .select_from(job.outerjoin(schema.job_usage))
        .where(job.c.cluster == cluster, job.c.usage_due_time <= now, job.c.start_time.is_not(None))
        .order_by(job.c.usage_due_time, job.c.id)
        .limit(limit)
    )
    rows = db.execute(query).all()
    jobs = jobs_to_measure(db, cluster, rows, policy, now)
    return [
        job._replace(failed_before=bool(row.failed_before))
        for job, row in zip(jobs, rows, strict=True)
    ]


def jobs_to_measure(
    db: Connection, cluster: str, rows: Sequence[Any], policy: UsagePolicy, now: int
) -> list[JobToMeasure]:
    """The jobs of rows with the columns JOB_COLUMNS, with the names of their nodes."""
    runs = runs_by_jobid(db, cluster, [row.jobid for row in rows])
    seen, nodes = schema.daily_node_coverage.c, _allocated_nodes(db, [row.id for row in rows])
    of_days = db.execute(sa.select(seen.node).where(seen.cluster == cluster).distinct()).scalars()
    known = NodeNames(chain(of_days, *nodes.values()))
    return [
        _job_to_measure(cluster, row, runs[row.jobid], nodes.get(row.id, {}), policy, now, known)
        for row in rows
    ]


def visible_jobs(
    db: Connection, access: Access, job_ids: Sequence[int], policy: UsagePolicy, now: int
) -> dict[int, JobToMeasure]:
    """Runs that have started and may be seen, by the id of the row, to query their measurements."""
    job = schema.job.c
    query = sa.select(job.cluster, *JOB_COLUMNS).where(
        job.id.in_(job_ids), job.start_time.is_not(None), visible(access)
    )
    rows = db.execute(query).all()
    nodes = _allocated_nodes(db, [row.id for row in rows])
    found: dict[int, JobToMeasure] = {}
    for cluster in {row.cluster for row in rows}:
        own = [row for row in rows if row.cluster == cluster]
        runs = runs_by_jobid(db, cluster, [row.jobid for row in own])
        for row in own:
            here = nodes.get(row.id, {})
            found[row.id] = _job_to_measure(cluster, row, runs[row.jobid], here, policy, now)
    return found


_NO_NODES = NodeNames(())
Held = tuple[float | None, int | None]
"""When a node was given back, if it was, and the GPUs that were allocated on it, if known."""


def _allocated_nodes(db: Connection, job_ids: Sequence[int]) -> dict[int, dict[str, Held]]:
    """The nodes of jobs, by id; none of jobs whose nodes are unknown."""
    share = schema.job_node.c
    nodes: dict[int, dict[str, Held]] = {}
    for part in chunks(job_ids):
        query = sa.select(share.job_id, share.node, share.until_time, share.gpus)
        for job_id, node, *held in db.execute(query.where(share.job_id.in_(part))):
            nodes.setdefault(job_id, {})[node] = (held[0], held[1])
    return nodes


def _gpus_on(allocated: int | None, nodes: Mapping[str, Held]) -> tuple[tuple[str, int], ...]:
    """The GPUs allocated on each node, or ("", n) if only the number for the whole job is known."""
    by_node = tuple((short_name(node), number) for node, (_, number) in nodes.items() if number)
    if any(until is not None for until, _ in nodes.values()):
        return ()  # it held them for different times
    if sum(number for _, number in by_node) == (allocated or 0):
        return by_node
    return (("", allocated),) if allocated else ()


def runs_by_jobid(db: Connection, cluster: str, jobids: Sequence[str]) -> dict[str, list[Any]]:
    """All started runs of the job ids, of any user, and parts of those that were resized."""
    job = schema.job
    runs: dict[str, list[Any]] = {}
    for part in chunks(list(dict.fromkeys(jobids))):
        columns = (job.c.jobid, job.c.start_time, job.c.end_time, job.c.state)
        query = sa.select(*columns).where(job.c.cluster == cluster, job.c.jobid.in_(part))
        # `start` is checked here: in the query, it makes SQLite without statistics scan all started
        # jobs.
        for run in db.execute(query):
            if run.start_time is not None:
                runs.setdefault(run.jobid, []).append(run)
    return runs


def _job_to_measure(
    cluster: str,
    row: Any,
    runs: Sequence[Any],
    nodes: Mapping[str, Held],
    policy: UsagePolicy,
    now: int,
    cluster_nodes: NodeNames = _NO_NODES,
) -> JobToMeasure:
    """The job to measure for one run on these nodes; `row` has the columns JOB_COLUMNS."""
    # Series are queried in whole seconds, from the start rounded down to the end rounded up.
    start = int(row.start_time)
    end = None if row.end_time is None else math.ceil(row.end_time)
    until = min(now, end + policy.settle_seconds) if end is not None else now
    own_start = row.start_time
    later = min((run.start_time for run in runs if run.start_time > own_start), default=math.inf)
    earlier = [run.end_time or run.start_time for run in runs if run.start_time < own_start]
    # By then, the lingering series of the previous run are gone.
    before = max(earlier, default=-math.inf) + policy.settle_seconds
    last_seen = (end if end is not None else now) + policy.settle_seconds
    window = JobWindow(
        cluster, row.jobid, start, int(max(min(until, later - 1), start + 1)),
        near_other_run=before > start - CARRIED_SECONDS or later <= last_seen,
        end=end, nodes=row.allocated_nodes or 1, free_range=(before, later - 1),
        # A part of a resized job ended as this one began.
        continues=any(run.state == JobState.RESIZED and run.end_time == own_start for run in runs),
    )  # fmt: skip
    cpus = row.allocated_cpus  # on average, of a job whose allocation changed
    if cpus and row.resized_cpu_seconds:
        cpus += row.resized_cpu_seconds / max(1, (end or until) - start)
    returned = ((node, int(until)) for node, (until, _) in nodes.items() if until is not None)
    return JobToMeasure(
        row.id, cluster, row.jobid, row.username, row.uid, start, end, row.allocated_nodes, cpus,
        window, tool=row.tool, allocated=NodeNames(nodes), returned=tuple(returned),
        cluster_nodes=cluster_nodes, gpus=_gpus_on(row.allocated_gpus, nodes),
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


def measure_isolated(
    time_series: TimeSeriesStore,
    jobs: Sequence[JobToMeasure],
    interval: float,
    on_progress: Callable[[], None] = lambda: None,
    series_by_job: dict[JobToMeasure, JobSeries] | None = None,
) -> Outcome:
    """Measure jobs so that one that cannot be measured does not affect the others.

    If a query fails, its jobs are queried in halves. `on_progress` is called before each query,
    which may take long; `series_by_job` is given the statistics of each job's series. Raises
    TimeSeriesError if the store fails for every query.
    """
    usages: dict[JobToMeasure, MeasuredUsage] = {}

    def measure_part(part: Sequence[JobToMeasure]) -> None:
        on_progress()
        for job, series in read_series(time_series, part):
            usages[job] = compute_usage(job, series, interval)
            if series_by_job is not None:
                series_by_job[job] = series

    def is_the_stores(error: Exception, failed: int) -> bool:
        if isinstance(error, QueryFailed):
            return failed >= _MAX_FAILURES and not usages
        return isinstance(error, TimeSeriesError)

    others = [job for job in jobs if not job.failed_before]
    failed = isolate_failures(others, measure_part, is_the_stores)
    for job in jobs:
        if job.failed_before:
            failed |= isolate_failures([job], measure_part, is_the_stores)
    return usages, failed


def read_series(
    time_series: TimeSeriesStore, jobs: Sequence[JobToMeasure]
) -> Iterator[tuple[JobToMeasure, JobSeries]]:
    """The statistics of each job's series, in as few queries as possible.

    Raises TimeSeriesError.
    """
    for group in _group_jobs(jobs):
        series = series_by_jobid(time_series, METRICS, [job.window for job in group])
        for job in group:
            _leave_out_returned(time_series, job, series)
        _add_last_samples(time_series, group, series)
        yield from ((job, series[job.jobid]) for job in group)


def _leave_out_returned(
    time_series: TimeSeriesStore, job: JobToMeasure, series: dict[str, JobSeries]
) -> None:
    """Take the series of nodes that a job gave back from the time until then only."""
    for until in {at for _, at in job.returned}:
        window = job.window._replace(
            until=max(until, job.start + 1), end=until, near_other_run=True
        )
        for statistic, samples in time_series.measure(METRICS, [window]).items():
            for metric in METRICS[statistic]:
                values = series[job.jobid][statistic, metric]
                values[:] = [each for each in values if returned_at(job, _node(each)) != until]
                values += [
                    each
                    for each in samples
                    if each.metric == metric and returned_at(job, _node(each)) == until
                ]


def _node(sample: SeriesValue) -> str:
    return sample.labels.get("instance", "")


def _add_last_samples(
    time_series: TimeSeriesStore, group: Sequence[JobToMeasure], series: Mapping[str, JobSeries]
) -> None:
    """Add the last samples of nodes that stopped long ago without reporting the job's end."""
    silent = [
        job.window
        for job in group
        if any(
            node.latest is None and node.end is None for node in samples_by_node(series[job.jobid])
        )
    ]
    if silent:
        for sample in time_series.last_sample_times([PRESENCE_METRIC], silent):
            series[sample.labels.get("jobid", "")][Statistic.LATEST, PRESENCE_METRIC].append(sample)


def _group_jobs(jobs: Sequence[JobToMeasure]) -> Iterator[list[JobToMeasure]]:
    """Groups of jobs, none with two runs of one id, since an answer identifies jobs by id."""
    runs: dict[str, int] = defaultdict(int)  # runs seen so far of each jobid
    groups: dict[int, list[JobToMeasure]] = defaultdict(list)
    for job in jobs:
        if job.window.near_other_run:
            yield [job]
            continue
        groups[runs[job.jobid]].append(job)
        runs[job.jobid] += 1
    for group in groups.values():
        yield from _limit_nodes(group)


def _limit_nodes(jobs: Sequence[JobToMeasure]) -> Iterator[list[JobToMeasure]]:
    """Groups with a limited number of nodes, since the answer for a group is held in memory."""
    group: list[JobToMeasure] = []
    nodes = 0
    for job in jobs:
        if group and nodes + job.window.nodes > _NODES_PER_QUERY:
            yield group
            group, nodes = [], 0
        group.append(job)
        nodes += job.window.nodes
    if group:
        yield group

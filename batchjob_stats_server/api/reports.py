"""Builds reports, for the server and for commands that read the database themselves."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.engine import Connection, Engine, RowMapping

from batchjob.judgements import COMPLETE_COVERAGE, thresholds
from batchjob.quantities.curves import CPU, GPU_MEMORY_TOTAL
from batchjob.quantities.job import CPU_SECONDS, MEMORY_PEAK
from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.node_names import without_port
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import scripts
from batchjob_stats_db.database.access import NOTHING, Access
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import visible_jobs
from batchjob_stats_db.queries.jobs import parts_of
from batchjob_stats_db.queries.similar import longest_time_limit, same_name, short_jobs, similar
from batchjob_stats_db.queries.stats import usual_waits
from batchjob_stats_db.timeseries.base import TimeSeriesStore
from batchjob_stats_server.cluster_readings import ClusterReadings
from batchjob_stats_server.curves import job_series
from batchjob_stats_server.options import ServerSettings
from batchjob_stats_server.report.build import build_report
from batchjob_stats_server.report.model import (
    NAMED_RUN_COLUMNS,
    SIMILAR_JOB_COLUMNS,
    NodeUse,
    Report,
    ReportInput,
    Row,
)
from batchjob_stats_server.report.rules import AdviceRule
from batchjob_stats_server.turns import TimeSeriesPool

if TYPE_CHECKING:
    from batchjob_stats_server.services import Services

log = logging.getLogger(__name__)

_MAX_BINS = 300  # of a curve whose highest value is wanted


class ReportSources(NamedTuple):
    """What a report is built from, without a server; a server's services have the same names."""

    settings: ServerSettings
    reader: Engine
    stores: TimeSeriesPool
    rules: tuple[AdviceRule, ...]
    clock: Callable[[], float] = time.time
    readings: ClusterReadings | None = None


def report_of(sources: "Services | ReportSources", access: Access, run: RowMapping) -> Report:
    return report_from_input(sources, gather_report_input(sources, access, run))


def report_from_input(sources: "Services | ReportSources", material: ReportInput) -> Report:
    settings = sources.settings
    return build_report(material, sources.rules, settings.report.pue or None, settings.logs.url)


def gather_report_input(
    sources: "Services | ReportSources", access: Access, run: RowMapping
) -> ReportInput:
    """What is known of a run that the caller may see.

    Without an answer of the time series database, the usage by node is left out.
    """
    settings = sources.settings
    now = int(sources.clock())
    with sources.reader.connect() as db:
        material, job = _from_database(db, access, run, settings.tsdb.policy(), now)
    if run["state"] == JobState.OUT_OF_MEMORY and sources.readings:
        reading = sources.readings.of(run["cluster"], now)
        nodes = reading.nodes.values() if reading else ()
        largest = max((node.amounts.get("memory_bytes", 0.0) for node in nodes), default=0.0)
        material = material._replace(largest_node_bytes=largest or None)
    if job and sources.stores.has_store:
        try:
            with sources.stores.acquire() as store:
                material = _add_measurements(material, job, store)
        except Exception as error:  # the rest is shown, whatever a node made of its series
            log.warning("the report of job %s has no usage by node: %r", job.jobid, error)
    return material


def _from_database(
    db: Connection, access: Access, job: Row, policy: UsagePolicy, now: int
) -> tuple[ReportInput, JobToMeasure | None]:
    """Read what the database has of a job, and the window of its measurements."""
    parts = parts_of(db, access, job["id"]) or {}
    own = Access(users=access.users)  # scripts may have secrets
    own_scripts = [str(row["script"]) for row in scripts.of_jobs(db, own, [job["id"]])]
    is_waiting = job["state"] == JobState.PENDING
    waits = usual_waits(db, NOTHING, job["cluster"], now) if is_waiting else ()
    alike, jobs = similar(db, access, job, names=SIMILAR_JOB_COLUMNS)
    inputs = ReportInput(
        dict(job), now, parts.get("gpus", ()), parts.get("emissions", ()),
        similar=jobs, alike=alike, short_jobs=short_jobs(db, access, job),
        script=own_scripts[0] if own_scripts else "",
        steps=parts.get("steps", ()), shares=parts.get("nodes", ()),
        longest_limit_seconds=longest_time_limit(db, job)
        if job["state"] == JobState.TIMEOUT
        else None,
        usual_wait=next(
            (row for row in waits if row["partition"] == job["partition"]), None
        ),
        runs_of_name=[
            run for run in same_name(db, access, job, names=NAMED_RUN_COLUMNS)
            if run["id"] != job["id"]
        ],
    )  # fmt: skip
    return inputs, visible_jobs(db, access, [job["id"]], policy, now).get(job["id"])


def _add_measurements(
    inputs: ReportInput, job: JobToMeasure, store: TimeSeriesStore
) -> ReportInput:
    """Add what only the time series tell; raises TimeSeriesError."""
    row, totals = inputs.job, job_series(store, job, [GPU_MEMORY_TOTAL], 1) if inputs.gpus else ()
    ratio = row["cpu_efficiency"]
    # The whole curve is worth reading only if fewer CPUs may be advised.
    is_low = ratio is not None and ratio < thresholds().fair_use
    completed = row["state"] == JobState.COMPLETED and not row["gpus_held"]
    return inputs._replace(
        nodes=_node_uses(store, job),
        gpu_memory={
            line.device.uuid + line.device.gpu_instance: round(line.series.points[-1].high)
            for line in totals
        },
        cpu_peaks=cpu_peaks(store, job) if is_low and completed else {},
    )


def cpu_peaks(store: TimeSeriesStore, job: JobToMeasure) -> Mapping[str, float]:
    """The most CPUs in use between two samples, of each node whose curve is complete.

    Older samples may have been deleted, and nodes may have been out of sight.
    """
    peaks, elapsed = {}, (job.end or job.window.until) - job.start
    for line in job_series(store, job, [CPU], _MAX_BINS):
        points = line.series.points
        seconds = min((after.time - at.time for at, after in pairwise(points)), default=0.0)
        if len(points) * seconds >= COMPLETE_COVERAGE * elapsed:
            peaks[line.device.node] = max(point.high for point in points)
    return peaks


def _node_uses(store: TimeSeriesStore, job: JobToMeasure) -> Sequence[NodeUse]:
    """Usage by node, for jobs with several."""
    if (job.nodes or 1) < 2:
        return ()
    users = {user for user in (job.user, str(job.uid or "")) if user}

    metrics = {Statistic.TOTAL: [CPU_SECONDS.name], Statistic.PEAK: [MEMORY_PEAK.metric.name]}
    samples = store.measure(metrics, [job.window])

    def by_node(statistic: Statistic) -> Mapping[str, float]:
        sums: dict[str, float] = {}
        for sample in samples[statistic]:
            if sample.labels.get("user", "") in users:
                node = without_port(sample.labels.get("instance", ""))
                sums[node] = sums.get(node, 0.0) + sample.value
        return sums

    cpu, peak = by_node(Statistic.TOTAL), by_node(Statistic.PEAK)
    return [
        NodeUse(node, cpu.get(node), round(peak[node]) if node in peak else None)
        for node in sorted(cpu.keys() | peak.keys())
    ]

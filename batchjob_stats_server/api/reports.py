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
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import visible_jobs
from batchjob_stats_db.queries.jobs import parts_of
from batchjob_stats_db.queries.similar import same_name, short_jobs, similar
from batchjob_stats_db.queries.stats import usual_wait_seconds
from batchjob_stats_db.timeseries.base import TimeSeriesStore
from batchjob_stats_server.cluster_readings import ClusterReadings
from batchjob_stats_server.job_curves import job_series
from batchjob_stats_server.options import ServerSettings
from batchjob_stats_server.promql.histories import TimeSeriesPool
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

if TYPE_CHECKING:
    from batchjob_stats_server.services import Services

log = logging.getLogger(__name__)

_MAX_BINS = 300  # of a curve whose highest value is wanted


class ReportSources(NamedTuple):
    """What a report is built from."""

    settings: ServerSettings
    reader: Engine
    histories: TimeSeriesPool
    rules: tuple[AdviceRule, ...]
    clock: Callable[[], float] = time.time
    readings: ClusterReadings | None = None


def sources_of(services: "Services") -> ReportSources:
    return ReportSources(
        services.settings, services.reader, services.histories, services.rules, services.clock,
        services.readings,
    )  # fmt: skip


def report_of(sources: ReportSources, access: Access, run: RowMapping) -> Report:
    return report_from_input(sources, gather_report_input(sources, access, run))


def report_from_input(sources: ReportSources, material: ReportInput) -> Report:
    settings = sources.settings
    return build_report(material, sources.rules, settings.report.pue or None, settings.logs.url)


def gather_report_input(sources: ReportSources, access: Access, run: RowMapping) -> ReportInput:
    """What is known of a run that the caller may see.

    Without an answer of the time series database, the usage by node is left out.
    """
    settings = sources.settings
    now = int(sources.clock())
    with sources.reader.connect() as db:
        material, job = _from_database(db, access, run, settings.tsdb.policy(), now)
    if run["state"] == JobState.OUT_OF_MEMORY and sources.readings:
        largest = _largest_node_bytes(sources.readings, run["cluster"], now)
        material = material._replace(largest_node_bytes=largest)
    if job and sources.histories.has_store:
        try:
            with sources.histories.acquire() as history:
                material = _add_measurements(material, job, history)
        except Exception as error:  # the rest is shown, whatever a node made of its series
            log.warning("the report of job %s has no usage by node: %r", job.jobid, error)
    return material


def _largest_node_bytes(readings: ClusterReadings, cluster: str, now: int) -> float | None:
    reading = readings.of(cluster, now)
    nodes = reading.nodes.values() if reading else ()
    return max((node.amounts.get("memory_bytes", 0.0) for node in nodes), default=0.0) or None


def _from_database(
    db: Connection, access: Access, job: Row, policy: UsagePolicy, now: int
) -> tuple[ReportInput, JobToMeasure | None]:
    """Read what the database has of a job, and the window of its measurements."""
    parts = parts_of(db, access, job["id"]) or {}
    alike, jobs = similar(db, access, job, names=SIMILAR_JOB_COLUMNS)
    inputs = ReportInput(
        dict(job), now, parts.get("gpus", ()), parts.get("emissions", ()),
        similar=jobs, alike=alike, short_jobs=short_jobs(db, access, job),
        script=_own_script(db, access, job),
        steps=parts.get("steps", ()), shares=parts.get("nodes", ()),
        usual_wait=_usual_wait(db, job, now),
        runs_of_name=[
            run for run in same_name(db, access, job, names=NAMED_RUN_COLUMNS)
            if run["id"] != job["id"]
        ],
    )  # fmt: skip
    return inputs, visible_jobs(db, access, [job["id"]], policy, now).get(job["id"])


def _own_script(db: Connection, access: Access, job: Row) -> str:
    """Its batch script, which may have secrets; "" for jobs of others."""
    own = Access(users=access.users)
    return next((str(row["script"]) for row in scripts.of_jobs(db, own, [job["id"]])), "")


def _usual_wait(db: Connection, job: Row, now: int) -> float | None:
    if job["state"] != JobState.PENDING:
        return None
    return usual_wait_seconds(db, job["cluster"], job["partition"], now)


def _add_measurements(
    inputs: ReportInput, job: JobToMeasure, history: TimeSeriesStore
) -> ReportInput:
    """Add what only the time series tell; raises TimeSeriesError."""
    return inputs._replace(
        nodes=_node_uses(history, job),
        gpu_memory=_gpu_memory_totals(history, job, inputs),
        cpu_peaks=cpu_peaks(history, job) if _may_need_fewer_cpus(inputs.job) else {},
    )


def _may_need_fewer_cpus(job: Row) -> bool:
    """Whether it is worth reading the whole curve."""
    ratio = job["cpu_efficiency"]
    completed = job["state"] == JobState.COMPLETED and not job["gpus_held"]
    return completed and ratio is not None and ratio < thresholds().fair_use


def cpu_peaks(history: TimeSeriesStore, job: JobToMeasure) -> Mapping[str, float]:
    """The most CPUs in use between two samples, of each node whose curve is complete.

    Older samples may have been deleted, and nodes may have been out of sight.
    """
    peaks, elapsed = {}, (job.end or job.window.until) - job.start
    for line in job_series(history, job, [CPU], _MAX_BINS):
        points = line.series.points
        seconds = min((after.time - at.time for at, after in pairwise(points)), default=0.0)
        if len(points) * seconds >= COMPLETE_COVERAGE * elapsed:
            peaks[line.device.node] = max(point.high for point in points)
    return peaks


def _node_uses(history: TimeSeriesStore, job: JobToMeasure) -> Sequence[NodeUse]:
    """Usage by node, for jobs with several."""
    if (job.nodes or 1) < 2:
        return ()
    users = {user for user in (job.user, str(job.uid or "")) if user}

    metrics = {Statistic.TOTAL: [CPU_SECONDS.name], Statistic.PEAK: [MEMORY_PEAK.metric.name]}
    samples = history.measure(metrics, [job.window])

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


def _gpu_memory_totals(
    history: TimeSeriesStore, job: JobToMeasure, inputs: ReportInput
) -> Mapping[str, float]:
    if not inputs.gpus:
        return {}
    series = job_series(history, job, [GPU_MEMORY_TOTAL], 1)
    return {
        line.device.uuid + line.device.gpu_instance: line.series.points[-1].high for line in series
    }

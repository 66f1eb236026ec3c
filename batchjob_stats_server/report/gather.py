"""Collects what a report needs from the database and the measurements."""

from collections.abc import Mapping, Sequence

from sqlalchemy.engine import Connection

from batchjob.quantities.curves import GPU_MEMORY_TOTAL
from batchjob.quantities.job import CPU_SECONDS, MEMORY_PEAK
from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.node_names import without_port
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.queries.jobs import parts_of
from batchjob_stats_db.queries.similar import short_jobs, similar
from batchjob_stats_db.queries.spans import span_of
from batchjob_stats_db.queries.stats import usual_wait_seconds
from batchjob_stats_db.timeseries.base import TimeSeriesStore
from batchjob_stats_server.job_curves import job_series
from batchjob_stats_server.report.model import SIMILAR_JOB_COLUMNS, NodeUse, ReportInput, Row


def from_database(
    db: Connection, access: Access, job: Row, policy: UsagePolicy, now: int, max_similar: int = 20
) -> tuple[ReportInput, JobToMeasure | None]:
    """Read what the database has of a job, and the span of its measurements."""
    parts = parts_of(db, access, job["id"]) or {}
    alike, jobs = similar(db, access, job, max_similar, SIMILAR_JOB_COLUMNS)
    inputs = ReportInput(
        dict(job), now, parts.get("gpus", ()), parts.get("emissions", ()),
        similar=jobs, alike=alike, short_jobs=short_jobs(db, access, job),
        steps=parts.get("steps", ()), shares=parts.get("nodes", ()),
        usual_wait=_usual_wait(db, job, now),
    )  # fmt: skip
    return inputs, span_of(db, access, job["id"], policy, now)


def _usual_wait(db: Connection, job: Row, now: int) -> float | None:
    if job["state"] != JobState.PENDING:
        return None
    return usual_wait_seconds(db, job["cluster"], job["partition"], now)


def add_measurements(
    inputs: ReportInput, job: JobToMeasure, history: TimeSeriesStore
) -> ReportInput:
    """Add the usage by node, and the memory of the job's GPUs; raises TimeSeriesError."""
    return inputs._replace(
        nodes=_node_uses(history, job), gpu_memory=_gpu_memory_totals(history, job, inputs)
    )


def _node_uses(history: TimeSeriesStore, job: JobToMeasure) -> Sequence[NodeUse]:
    """Usage by node, for jobs with several."""
    if (job.nodes or 1) < 2:
        return ()
    users = {user for user in (job.user, str(job.uid or "")) if user}

    metrics = {Statistic.TOTAL: [CPU_SECONDS.name], Statistic.PEAK: [MEMORY_PEAK.metric.name]}
    samples = history.measure(metrics, [job.span])

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

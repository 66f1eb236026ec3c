"""Collects what a report needs from the database and the measurements."""

from collections.abc import Mapping, Sequence

from sqlalchemy.engine import Connection

from batchjob.quantities.curves import GPU_MEMORY_TOTAL
from batchjob.quantities.job import CPU_SECONDS, MEMORY_PEAK
from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.batches import measure
from batchjob_stats_db.measure.job_usage import JobToMeasure, MeasuredUsage, node_name
from batchjob_stats_db.queries.efficiency import replace_usage
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
    inputs: ReportInput, job: JobToMeasure, history: TimeSeriesStore, interval: float
) -> ReportInput:
    """Add what only the measurements contain; raises TimeSeriesError.

    That is the usage of a job that runs, or was not measured since its end, the usage by node, and
    the memory of its GPUs.
    """
    usage = current_usage(inputs.job, job, history, interval)
    if usage:
        inputs = _with_usage(inputs, usage, history)
    return inputs._replace(
        nodes=_node_uses(history, job), gpu_memory=_gpu_memory_totals(history, job, inputs)
    )


def current_usage(
    run: Row, job: JobToMeasure, history: TimeSeriesStore, interval: float
) -> MeasuredUsage | None:
    """Usage of a run that runs, or was not measured since its end; raises TimeSeriesError.

    None: there are no samples of it, or it is recorded up to its end.
    """
    recorded_until = run["usage_until_time"] if run["usage_samples"] else None
    if job.end is not None and recorded_until is not None and recorded_until >= job.end:
        return None
    usage = measure(history, [job], interval)[0]
    return usage if usage.samples else None


def usage_parts(usage: MeasuredUsage) -> dict[str, Sequence[Row]]:
    """GPUs and emissions, with the columns of `queries.jobs.parts_of`."""
    run = {"job_id": usage.job_id}
    return {
        "gpus": [{**run, **gpu._asdict()} for gpu in usage.devices],
        "emissions": [
            {**run, "provider": provider, "grams": grams}
            for provider, grams in usage.emissions.items()
        ],
    }


def _with_usage(inputs: ReportInput, usage: MeasuredUsage, history: TimeSeriesStore) -> ReportInput:
    usage_values = {
        **usage.values,
        "source": history.source,
        "samples": usage.samples,
        "nodes": usage.nodes,
        "coverage": usage.coverage,
        "doubt": usage.doubt,
        "until_time": min(usage.until_time, inputs.now),
    }
    parts = usage_parts(usage)
    return inputs._replace(
        job=replace_usage(inputs.job, usage_values),
        gpus=parts["gpus"],
        emissions=parts["emissions"],
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
                node = node_name(sample.labels.get("instance", ""))
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

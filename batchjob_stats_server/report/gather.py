"""What a report needs, from the database and the measurements."""

from collections.abc import Mapping, Sequence

from sqlalchemy.engine import Connection

from batchjob_stats_db.access import Access
from batchjob_stats_db.history.history import History, Statistic
from batchjob_stats_db.job_row import UsagePolicy
from batchjob_stats_db.queries.jobs import parts_of
from batchjob_stats_db.queries.similar import short_jobs, similar
from batchjob_stats_db.queries.spans import span_of
from batchjob_stats_db.usage import Measured, Usage, measure, node_of
from batchjob_stats_server.course import devices_of, lines
from batchjob_stats_server.curves import CURVES
from batchjob_stats_server.report.material import Material, Row
from batchjob_stats_server.report.model import NodeUse

_CPU = "batchjob_job_cpu_seconds_total"
_PEAK = "batchjob_job_memory_peak_bytes"


def known(
    db: Connection, access: Access, job: Row, policy: UsagePolicy, now: int, most_similar: int = 20
) -> tuple[Material, Measured | None]:
    """What the database knows of a job, and where its measurements are to be looked for."""
    parts = parts_of(db, access, job["id"]) or {}
    alike, jobs = similar(db, access, job, most_similar)
    material = Material(
        dict(job), now, parts.get("gpus", ()), parts.get("emissions", ()),
        similar=jobs, alike=alike, short_jobs=short_jobs(db, access, job),
    )  # fmt: skip
    return material, span_of(db, access, job["id"], policy, now)


def measured(material: Material, job: Measured, history: History, interval: float) -> Material:
    """The same with what only the measurements tell.

    That is: the use of a job that runs or was not measured yet, each node's part, and the memory
    of its GPUs. Raises HistoryError.
    """
    if job.end is None or not material.job["usage_samples"]:
        material = _with_usage(material, job, measure(history, [job], interval)[0], history)
    return material._replace(
        nodes=_nodes(history, job), gpu_memory=_gpu_memory(history, job, material)
    )


def _with_usage(material: Material, job: Measured, usage: Usage, history: History) -> Material:
    if not usage.samples:
        return material
    columns = {
        **dict.fromkeys(name for name in material.job if name.startswith("usage_")),
        **{f"usage_{name}": value for name, value in usage.values.items()},
        "usage_due_time": material.job["usage_due_time"],
        "usage_source": history.source,
        "usage_samples": usage.samples,
        "usage_nodes": usage.nodes,
        "usage_coverage": usage.coverage,
        "usage_doubt": usage.doubt,
        "usage_until_time": min(job.end or material.now, material.now),
    }
    return material._replace(
        job={**material.job, **columns},
        gpus=[gpu._asdict() for gpu in usage.devices],
        emissions=[{"provider": name, "grams": grams} for name, grams in usage.emissions.items()],
    )


def _nodes(history: History, job: Measured) -> Sequence[NodeUse]:
    """Node by node, of jobs with several."""
    if (job.nodes or 1) < 2:
        return ()
    users = {user for user in (job.user, str(job.uid or "")) if user}

    def by_node(statistic: Statistic, metric: str) -> Mapping[str, float]:
        sums: dict[str, float] = {}
        for sample in history.measure(statistic, [metric], [job.span]):
            if sample.labels.get("user", "") in users:
                node = node_of(sample.labels.get("instance", ""))
                sums[node] = sums.get(node, 0.0) + sample.value
        return sums

    cpu, peak = by_node(Statistic.TOTAL, _CPU), by_node(Statistic.PEAK, _PEAK)
    return [
        NodeUse(node, cpu.get(node), round(peak[node]) if node in peak else None)
        for node in sorted(cpu.keys() | peak.keys())
    ]


def _gpu_memory(history: History, job: Measured, material: Material) -> Mapping[str, float]:
    if not material.gpus:
        return {}
    devices = devices_of(material.gpus)
    found = lines(history, job, [CURVES["gpu_memory_total"]], 1, devices)
    return {
        line.device.uuid + line.device.gpu_instance: line.course.points[-1].high for line in found
    }

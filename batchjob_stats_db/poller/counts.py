"""Counters for alerts: of jobs that run or ended within a day.

Older jobs were read late (a backfill, a poller that was off) and are irrelevant to the present.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from batchjob.judgements import FAILED_STATES
from batchjob.schedulers.records import JobRecord
from batchjob_stats_db.measure.job_usage import (
    PEAK_SAMPLED,
    RUNNING,
    VALUES_MISSING,
    JobToMeasure,
    MeasuredUsage,
)
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.queries.efficiency import ENDED_ON_NODES, ENERGY_MISSING

_RECENT_SECONDS = 86400
_MAXIMUM_TOOLS = 100
OTHER_TOOLS = "other"
"""The tool of all beyond the first hundred: users name their tools as they like."""

# Doubts that every job has while it runs, on a kernel before 5.19, or on nodes that differ: no
# cause for concern.
_EXPECTED_DOUBTS = frozenset(
    {RUNNING, ENDED_ON_NODES, PEAK_SAMPLED, VALUES_MISSING, ENERGY_MISSING}
)


def count_ended(
    metrics: PollerMetrics, cluster: str, ended: Iterable[JobRecord], now: float
) -> None:
    """Count ended jobs, once for each node, and tracked work by its tool.

    Both results begin at 0, since `increase()` does not count what a series begins with.
    """
    nodes: Counter[tuple[str, str]] = Counter()
    tools: Counter[tuple[str, str]] = Counter()
    for job in ended:
        if job.end_time is None or now - job.end_time > _RECENT_SECONDS:
            continue
        result = "failed" if job.state in FAILED_STATES else "other"
        nodes.update([(share.node, result) for share in job.nodes])
        if job.tool:
            tools[_tool_label(metrics, job.tool), result] += 1
    for counter, counts in ((metrics.ended_jobs, nodes), (metrics.tracked_work, tools)):
        for name in {name for name, _ in counts}:
            for result in ("other", "failed"):
                counter.labels(cluster, name, result).inc(counts[name, result])


def _tool_label(metrics: PollerMetrics, name: str) -> str:
    known = metrics.tool_labels
    if name in known or len(known) < _MAXIMUM_TOOLS:
        known.add(name)
        return name
    return OTHER_TOOLS


def count_measured(
    metrics: PollerMetrics, cluster: str, usages: Mapping[JobToMeasure, MeasuredUsage], now: float
) -> None:
    """Count measured jobs, doubtful ones, and the part of their time with samples.

    Tracked work is left out, since no exporter has samples of it.
    """
    for job, usage in usages.items():
        metrics.dropped_series.labels(cluster).inc(usage.dropped_series)
        if job.tool or (job.end is not None and now - job.end > _RECENT_SECONDS):
            continue
        seconds = max(0.0, (job.end if job.end is not None else now) - job.start)
        metrics.measured_jobs.labels(cluster).inc()
        metrics.doubtful_jobs.labels(cluster).inc(_is_doubtful(usage))
        metrics.run_seconds.labels(cluster).inc(seconds)
        metrics.covered_seconds.labels(cluster).inc(seconds * min(1.0, max(0.0, usage.coverage)))


def _is_doubtful(usage: MeasuredUsage) -> bool:
    return bool(usage.doubt) and not _EXPECTED_DOUBTS.issuperset(usage.doubt.split(", "))

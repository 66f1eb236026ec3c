"""The poller's metrics about itself.

Counters for alerts are of jobs that run or ended within a day. Older jobs were read late (a
backfill, a poller that was off) and are irrelevant to the present.
"""

import collections
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from batchjob.judgements import FAILED_STATES
from batchjob.schedulers.records import JobRecord
from batchjob_stats_db.admin.backup import newest_time
from batchjob_stats_db.measure.job_usage import (
    PEAK_SAMPLED,
    RUNNING,
    THREADS_SAMPLED,
    VALUES_MISSING,
    JobToMeasure,
    MeasuredUsage,
)
from batchjob_stats_db.queries.efficiency import ENDED_ON_NODES, ENERGY_MISSING

_PREFIX = "batchjob_stats_db"
_RECENT_SECONDS = 86400
_MAXIMUM_TOOLS, _MAXIMUM_NODES = 100, 50_000
OTHERS = "other"
"""The tool, and the node, of all beyond these: users name their tools and nodes as they like."""

# Caveats that every job has while it runs, on a kernel before 6.1, or on nodes that differ: no
# cause for concern.
_EXPECTED_CAVEATS = frozenset(
    {RUNNING, ENDED_ON_NODES, PEAK_SAMPLED, THREADS_SAMPLED, VALUES_MISSING, ENERGY_MISSING}
)


class PollerMetrics:
    """The families; one object per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._of_clusters: list[Counter] = []  # those without further labels

        def counter(name: str, text: str, *labels: str) -> Counter:
            names = ("cluster", *labels)
            family = Counter(f"{_PREFIX}_{name}", text, names, registry=self.registry)
            if not labels:
                self._of_clusters.append(family)
            return family

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, ("cluster", *labels), registry=self.registry)

        # fmt: off
        self.polls = counter("polls", "Polls of a source, by result.", "source", "result")
        self.poll_duration = gauge("poll_duration_seconds",
            "Duration of the last poll of a source.", "source")
        self.last_success = gauge("last_success_timestamp_seconds",
            "Time of the last successful poll of a source.", "source")
        self.poll_interval = gauge("poll_interval_seconds", "Poll interval of a source.", "source")
        self.jobs = counter("jobs", "Job records read, by outcome.", "outcome")
        self.refused = counter("refused",
            "What the gate refused: a record once for each rule that it broke, and of measurements "
            "each series or figure.", "source", "rule")
        self.job_gpus = gauge("job_gpus",
            "GPUs that the scheduler has allocated to a running job.", "jobid", "user")
        self.usual_wait = gauge("usual_wait_seconds",
            "Quantile of the waits of the last 30 days, of a partition, a user or an account.",
            "partition", "user", "account", "quantile")
        self.ended_jobs = counter("ended_jobs",
            "Jobs whose end was recorded within a day, on each of their nodes.", "node", "result")
        self.tracked_work = counter("tracked_work",
            "Finished pieces of tracked work, by tool.", "tool", "result")
        self.measured_jobs = counter("measured_jobs",
            "Jobs whose usage was measured while they ran or within a day.")
        self.jobs_with_caveats = counter("jobs_with_caveats",
            "Measured jobs whose usage has a caveat other than `running` or a sampled peak.")
        self.run_seconds = counter("measured_job_seconds", "Run time of the measured jobs.")
        self.covered_seconds = counter("covered_job_seconds",
            "Run time of the measured jobs that is covered by samples.")
        self.job_comments = counter("job_comments",
            "Ended jobs whose comment in accounting was to be written, by outcome.", "outcome")
        self.messages = counter("messages",
            "Events that people were told of, or not, by result: sent, failed or dropped.",
            "channel", "result")
        self.messages_waiting = gauge("messages_waiting",
            "Events of which messages wait to be sent.")
        self.step_errors = counter("step_errors",
            "Steps of poll cycles that failed, by reason: tsdb, database or other.",
            "step", "reason")
        # fmt: on
        self.shown: dict[Gauge, set[tuple[str, ...]]] = {}  # labels of series that may go
        self.tool_labels: set[str] = set()  # values of the label "tool"
        self.node_labels: set[str] = set()
        self._backup = Gauge(
            f"{_PREFIX}_backup_timestamp_seconds",
            "Time of the newest backup in backup.directory; 0: none.",
            ("directory",),
            registry=self.registry,
        )

    def begin(self, cluster: str, sources: Iterable[str]) -> None:
        """Start what can be counted of a cluster at 0: `increase()` ignores a first value."""
        for family in self._of_clusters:
            family.labels(cluster)
        for source in sources:
            for result in ("ok", "error"):
                self.polls.labels(cluster, source, result)

    def look_at_backups(self, directory: str) -> None:
        """Note the time of the newest backup in this directory, which may hang."""
        self._backup.labels(directory).set(newest_time(Path(directory)))


def show_only(
    metrics: PollerMetrics, family: Gauge, cluster: str, values: Mapping[Any, float]
) -> None:
    """Show these values by their labels after the cluster, and no others of this cluster."""
    now = {(cluster, *labels) for labels in values}
    shown = metrics.shown.setdefault(family, set())
    for gone in {each for each in shown if each[0] == cluster} - now:
        family.remove(*gone)
        shown.discard(gone)
    for labels, value in values.items():
        family.labels(cluster, *labels).set(value)
    shown |= now


def count_ended(
    metrics: PollerMetrics, cluster: str, ended: Iterable[JobRecord], now: float
) -> None:
    """Count ended jobs, once for each node, and tracked work by its tool.

    Both results begin at 0, since `increase()` does not count what a series begins with.
    """
    nodes: collections.Counter[tuple[str, str]] = collections.Counter()
    tools: collections.Counter[tuple[str, str]] = collections.Counter()
    for job in ended:
        if job.end_time is None or now - job.end_time > _RECENT_SECONDS:
            continue
        result = "failed" if job.state in FAILED_STATES else "other"
        for share in job.nodes:
            nodes[_bounded(metrics.node_labels, _MAXIMUM_NODES, share.node), result] += 1
        if job.tool:
            tools[_bounded(metrics.tool_labels, _MAXIMUM_TOOLS, job.tool), result] += 1
    for counter, counts in ((metrics.ended_jobs, nodes), (metrics.tracked_work, tools)):
        for name in {name for name, _ in counts}:
            for result in ("other", "failed"):
                counter.labels(cluster, name, result).inc(counts[name, result])


def _bounded(known: set[str], maximum: int, name: str) -> str:
    """The name as a label value, or `OTHERS` where the label already has `maximum` values."""
    if name in known or len(known) < maximum:
        known.add(name)
        return name
    return OTHERS


def count_measured(
    metrics: PollerMetrics, cluster: str, usages: Mapping[JobToMeasure, MeasuredUsage], now: float
) -> None:
    """Count measured jobs, those with caveats, and the part of their time with samples.

    Tracked work is left out, since no exporter has samples of it.
    """
    for job, usage in usages.items():
        if job.tool or (job.end is not None and now - job.end > _RECENT_SECONDS):
            continue
        seconds = max(0.0, (job.end if job.end is not None else now) - job.start)
        metrics.measured_jobs.labels(cluster).inc()
        caveats = set(usage.caveats.split(", ")) if usage.caveats else set()
        metrics.jobs_with_caveats.labels(cluster).inc(bool(caveats - _EXPECTED_CAVEATS))
        metrics.run_seconds.labels(cluster).inc(seconds)
        metrics.covered_seconds.labels(cluster).inc(seconds * min(1.0, max(0.0, usage.coverage)))

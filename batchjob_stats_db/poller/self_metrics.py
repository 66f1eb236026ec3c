"""The poller's metrics about itself."""

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from batchjob_stats_db.admin.backup import newest_time

_PREFIX = "batchjob_stats_db"


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

        self.polls = counter("polls", "Polls of a source, by result.", "source", "result")
        self.poll_duration = gauge(
            "poll_duration_seconds", "Duration of the last poll of a source.", "source"
        )
        self.last_success = gauge(
            "last_success_timestamp_seconds",
            "Time of the last successful poll of a source.",
            "source",
        )
        self.poll_interval = gauge("poll_interval_seconds", "Poll interval of a source.", "source")
        self.behind_seconds = gauge("behind_seconds", "Time since a source's watermark.", "source")
        self.jobs = counter("jobs", "Job records read, by outcome.", "outcome")
        self.refused = counter(
            "refused", "Records and values that broke a rule of the gate.", "source", "rule"
        )
        self.vanished_jobs = counter(
            "vanished_jobs", "Jobs that their scheduler no longer knows, without a recorded end."
        )
        self.unfinished_jobs = gauge(
            "unfinished_jobs", "Recorded jobs that are pending or running."
        )
        self.ended_jobs = counter(
            "ended_jobs", "Jobs whose end was recorded within a day, on each of their nodes.",
            "node", "result",
        )  # fmt: skip
        self.tracked_work = counter(
            "tracked_work", "Finished pieces of tracked work, by tool.",
            "tool", "result",
        )  # fmt: skip
        self.live_duration = gauge(
            "live_duration_seconds", "Duration of the last measurement of the running jobs."
        )
        self.live_jobs = gauge(
            "live_jobs", "Jobs that the last measurement of running jobs covered."
        )
        self.measured_jobs = counter(
            "measured_jobs", "Jobs whose usage was measured while they ran or within a day."
        )
        self.doubtful_jobs = counter(
            "doubtful_jobs",
            "Measured jobs whose usage has a caveat other than `running` or `peak sampled`.",
        )
        self.run_seconds = counter("measured_job_seconds", "Run time of the measured jobs.")
        self.covered_seconds = counter(
            "covered_job_seconds", "Run time of the measured jobs that is covered by samples."
        )
        self.dropped_series = counter(
            "dropped_series",
            "Series excluded because they belong to another user or are not numbers.",
        )
        self.history_errors = counter("history_errors", "Failed queries of the TSDB.")
        self.rolled_up_days = counter("rolled_up_days", "Days whose sums were recomputed.")
        self.database_errors = counter(
            "database_errors", "Steps of poll cycles that failed because of the database."
        )
        self.step_errors = counter(
            "step_errors", "Steps of poll cycles that an unexpected error ended.", "step"
        )
        self.tool_labels: set[str] = set()  # values of the label "tool"
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

    def watch_backups(self, directory: str) -> None:
        """Check this directory at each scrape."""
        self._backup.labels(directory).set_function(lambda: newest_time(Path(directory)))

"""What the poller says of itself."""

from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from batchjob_stats_db.admin.backup import newest_time

_PREFIX = "batchjob_stats_db"


class PollerMetrics:
    """The families; one object per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, ("cluster", *labels), registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, ("cluster", *labels), registry=self.registry)

        self.polls = counter("polls", "Polls of a source, by how they ended.", "source", "result")
        self.seconds = gauge(
            "poll_duration_seconds", "Time the last poll of a source took.", "source"
        )
        self.success = gauge(
            "last_success_timestamp_seconds", "When a source was last polled well.", "source"
        )
        self.interval = gauge("poll_interval_seconds", "How often a source is polled.", "source")
        self.behind = gauge(
            "behind_seconds", "How far a source's watermark is behind the present.", "source"
        )
        self.jobs = counter("jobs", "Job records read, by what became of them.", "outcome")
        self.vanished = counter("vanished_jobs", "Jobs their scheduler no longer knew.")
        self.unfinished = gauge("unfinished_jobs", "Jobs on record that wait or run.")
        self.ended = counter(
            "ended_jobs", "Jobs whose end was recorded within a day, on each of their nodes.",
            "node", "result",
        )  # fmt: skip
        self.tracked = counter(
            "tracked_work", "Ends of work that programs follow themselves, by its tool.",
            "tool", "result",
        )  # fmt: skip
        self.measured = counter(
            "measured_jobs", "Jobs whose usage was measured while they ran or within a day."
        )
        self.doubtful = counter("doubtful_jobs", "Of these, how many bear a doubt.")
        self.run_seconds = counter("measured_job_seconds", "Run time of these jobs.")
        self.covered_seconds = counter("covered_job_seconds", "Of this time, how much has samples.")
        self.dropped = counter("dropped_series", "Series left out: another user's, or no number.")
        self.history_errors = counter("history_errors", "Failed questions to the TSDB.")
        self.days = counter("rolled_up_days", "Days whose sums were made anew.")
        self.database_errors = counter("database_errors", "Cycles ended by the database.")
        self.tools: set[str] = set()  # values of that label
        self._backup = Gauge(
            f"{_PREFIX}_backup_timestamp_seconds",
            "When the newest backup in backup.directory was made; 0: there is none.",
            ("directory",),
            registry=self.registry,
        )

    def watch_backups(self, directory: str) -> None:
        """Look there at each scrape."""
        self._backup.labels(directory).set_function(lambda: newest_time(Path(directory)))

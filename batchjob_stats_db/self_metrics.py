"""What the poller says of itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge

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
        self.behind = gauge(
            "behind_seconds", "How far a source's watermark is behind the present.", "source"
        )
        self.jobs = counter("jobs", "Job records read, by what became of them.", "outcome")
        self.vanished = counter("vanished_jobs", "Jobs their scheduler no longer knew.")
        self.unfinished = gauge("unfinished_jobs", "Jobs on record that wait or run.")
        self.measured = counter("measured_jobs", "Jobs whose usage was measured.")
        self.doubtful = counter("doubtful_jobs", "Of these, how many bear a doubt.")
        self.dropped = counter("dropped_series", "Series left out: another user's, or no number.")
        self.history_errors = counter("history_errors", "Failed questions to the TSDB.")
        self.days = counter("rolled_up_days", "Days whose sums were made anew.")
        self.database_errors = counter("database_errors", "Cycles ended by the database.")

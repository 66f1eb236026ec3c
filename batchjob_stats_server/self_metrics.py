"""What the server says of itself."""

from prometheus_client import CollectorRegistry, Counter, Histogram

_PREFIX = "batchjob_stats_server"


class ServerMetrics:
    """The families; one object per application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            f"{_PREFIX}_requests", "Requests answered.", ("method", "route", "status"),
            registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            f"{_PREFIX}_request_duration_seconds", "Time from a request to its answer's end.",
            ("route",), registry=self.registry,
        )  # fmt: skip
        self.refused = Counter(
            f"{_PREFIX}_refused", "Requests whose sender was not believed.", ("reason",),
            registry=self.registry,
        )  # fmt: skip

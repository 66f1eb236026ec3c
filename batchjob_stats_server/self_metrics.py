"""The server's metrics about itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from anyio import CapacityLimiter
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from sqlalchemy.engine import Engine
from sqlalchemy.pool import QueuePool

from batchjob import __version__
from batchjob_stats_server.promql.backend import Rejected
from batchjob_stats_server.promql.fair_queue import FairQueue

_PREFIX = "batchjob_stats_server"


class ServerMetrics:
    """The families; one object per application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

        self.requests = counter("requests", "Requests answered.", "method", "route", "status")
        self.seconds = histogram(
            "request_duration_seconds", "Duration of requests until the end of the answer.", "route"
        )
        self.refused = counter("refused", "Requests that failed authentication.", "reason")
        self.limited = counter("rate_limited", "Requests rejected by a rate limit.", "by")
        self.dropped = counter(
            "connections_dropped",
            "Connections closed or refused because of a maximum, by maximum.",
            "of",
        )
        self.tsdb_seconds = histogram(
            "tsdb_request_duration_seconds",
            "Duration of queries of the time series database, by result.",
            "question",
            "result",
        )

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

        gauge("info", "Version of the server; always 1.", "version").labels(__version__).set(1)
        self.threads = gauge("busy_threads", "Threads that answer a request.")
        self.threads_limit = gauge("threads", "Maximum number of these threads.")
        self.waiting = gauge("waiting_requests", "Requests that wait for a thread.")
        self.clients = gauge("connections", "Connections of clients.")
        self.connections = gauge("database_connections", "Connections to the database in use.")
        self.asked = gauge("tsdb_requests", "Queries in progress at the time series database.")
        self.questions = gauge(
            "tsdb_questions", "Queries in progress or waiting for the time series database."
        )

    def watch(self, reader: Engine, turns: FairQueue | None) -> None:
        """Read the present use at each scrape."""
        if isinstance(reader.pool, QueuePool):
            self.connections.set_function(reader.pool.checkedout)
        if turns:
            self.asked.set_function(turns.asked)
            self.questions.set_function(turns.questions)

    def watch_threads(self, light: CapacityLimiter, costly: FairQueue) -> None:
        """Expose the use of threads; the limiter of light requests exists once the loop runs."""
        self.threads.set_function(lambda: light.borrowed_tokens + costly.asked())
        self.threads_limit.set_function(lambda: light.total_tokens + costly.places())
        self.waiting.set_function(
            lambda: light.statistics().tasks_waiting + costly.questions() - costly.asked()
        )

    @contextmanager
    def tsdb(self, question: str) -> Iterator[None]:
        """Time a query to the time series database."""
        begun = time.monotonic()
        result = "failed"
        try:
            yield
            result = "answered"
        except Rejected:
            result = "rejected"
            raise
        finally:
            self.tsdb_seconds.labels(question, result).observe(time.monotonic() - begun)

"""The server's metrics about itself."""

import time
from collections.abc import Iterable, Iterator
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
from starlette.routing import BaseRoute

from batchjob import __version__
from batchjob_stats_server.promql.backend import Rejected
from batchjob_stats_server.turns import Turns

_PREFIX = "batchjob_stats_server"
_STATUSES = ("200", "401", "403", "404", "422", "429", "500", "503")


class ServerMetrics:
    """The metric families; one object per application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

        self.requests = counter("requests", "Requests answered.", "method", "route", "status")
        self.request_seconds = histogram(
            "request_duration_seconds", "Duration of requests until the end of the answer.", "route"
        )
        self.refused = counter("refused", "Requests that failed authentication.", "reason")
        self.rate_limited = counter("rate_limited", "Requests rejected by a rate limit.", "by")
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
        self.busy_threads = gauge("busy_threads", "Threads that answer a request.")
        self.threads_limit = gauge("threads", "Maximum number of these threads.")
        self.waiting_requests = gauge("waiting_requests", "Requests that wait for a thread.")
        self.client_connections = gauge("connections", "Connections of clients.")
        self.database_connections = gauge(
            "database_connections", "Connections to the database in use."
        )
        self.tsdb_running = gauge(
            "tsdb_requests", "Queries in progress at the time series database."
        )
        self.tsdb_pending = gauge(
            "tsdb_questions", "Queries in progress or waiting for the time series database."
        )

    def start_requests(self, routes: Iterable[BaseRoute]) -> None:
        """Start the requests of each route at 0: `rate()` ignores a first value."""
        for route in routes:
            for method in getattr(route, "methods", None) or ():
                for status in _STATUSES:
                    self.requests.labels(method, getattr(route, "path", ""), status)

    def watch(self, reader: Engine, tsdb_queue: Turns | None) -> None:
        """Read the current use at each scrape."""
        if isinstance(reader.pool, QueuePool):
            self.database_connections.set_function(reader.pool.checkedout)
        if tsdb_queue:
            self.tsdb_running.set_function(tsdb_queue.count_running)
            self.tsdb_pending.set_function(tsdb_queue.count)

    def watch_threads(self, light: CapacityLimiter, ordinary: Turns, costly: Turns) -> None:
        """Expose the use of threads; the limiter of light requests exists once the loop runs."""
        self.busy_threads.set_function(lambda: light.borrowed_tokens + costly.count_running())
        self.threads_limit.set_function(lambda: light.total_tokens + costly.capacity())
        self.waiting_requests.set_function(
            lambda: (
                light.statistics().tasks_waiting
                + ordinary.count_waiting()
                + costly.count()
                - costly.count_running()
            )
        )

    @contextmanager
    def time_tsdb_query(self, endpoint: str) -> Iterator[None]:
        start = time.monotonic()
        result = "failed"
        try:
            yield
            result = "answered"
        except Rejected:
            result = "rejected"
            raise
        finally:
            self.tsdb_seconds.labels(endpoint, result).observe(time.monotonic() - start)

"""The objects that routes work with, built once from the settings."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from anyio import CapacityLimiter
from fastapi import Depends, Request
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
from batchjob.judgements import use_thresholds
from batchjob.runtime.rate_limit import RateLimiter
from batchjob_stats_db.database.engine import DatabaseError, parse_url, reader_engine, writer_engine
from batchjob_stats_db.database.revision import require_current
from batchjob_stats_db.poller.options import read_secret_option
from batchjob_stats_db.samples.folder import samples_problem
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from batchjob_stats_server.auth.certificates import Certificates
from batchjob_stats_server.auth.rights import ProcessToken
from batchjob_stats_server.cluster_readings import ClusterReadings
from batchjob_stats_server.options import ServerSettings, gate_endpoint, proxy_secret
from batchjob_stats_server.promql.backend import PromqlBackend, Rejected
from batchjob_stats_server.report.rules import AdviceRule, load_rules
from batchjob_stats_server.turns import Threads, TimeSeriesPool, Turns, plan_threads
from collectors.emissions.site_factors import SiteFactors

if TYPE_CHECKING:
    from batchjob_stats_server.api.local_runs import RunControl
    from batchjob_stats_server.auth.oidc import OidcProvider


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
            self.tsdb_running.set_function(lambda: tsdb_queue.running)
            self.tsdb_pending.set_function(lambda: tsdb_queue.running + tsdb_queue.waiting)

    def watch_threads(self, light: CapacityLimiter, ordinary: Turns, costly: Turns) -> None:
        """Expose the use of threads; the limiter of light requests exists once the loop runs."""
        self.busy_threads.set_function(lambda: light.borrowed_tokens + costly.running)
        self.threads_limit.set_function(lambda: light.total_tokens + costly.capacity())
        self.waiting_requests.set_function(
            lambda: light.statistics().tasks_waiting + ordinary.waiting + costly.waiting
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


_BURST_SECONDS = 10  # of its rate of requests, at once


class Services(NamedTuple):
    """The collaborators of an application."""

    settings: ServerSettings
    reader: Engine
    writer: Engine  # only for tokens, sessions and subscriptions
    proxy_secret: str
    factors: SiteFactors
    metrics: ServerMetrics
    user_rate: RateLimiter
    peer_rate: RateLimiter
    threads: Threads
    streams: Turns  # of samples and output, while a run goes on
    stores: TimeSeriesPool
    readings: ClusterReadings  # of nodes
    rules: tuple[AdviceRule, ...]  # for the advice in reports
    certificates: Certificates
    tsdb: PromqlBackend | None = None  # None: no time series database is configured
    run_control: "RunControl | None" = None  # None: runs cannot be started or ended through the API
    demo_cluster: str = ""  # name of a demo's cluster
    local_data: Path | None = None  # of this machine's runs; None: this server is for clusters
    process_token: ProcessToken | None = None  # None: all tokens are in the database
    provider: "OidcProvider | None" = None  # None: users cannot log in here
    clock: Callable[[], float] = time.time

    def _samples(self) -> Path | None:
        directory = "" if self.settings.tsdb.url else self.settings.samples.directory
        return Path(directory) if directory else None

    def has_samples_directory(self) -> bool:
        """Whether the directory of samples is there, if one is used."""
        samples = self._samples()
        return samples is None or samples.is_dir()

    def samples_problem(self) -> str:
        """Why the configured directory has no samples; "" if it has some, or is not used."""
        samples = self._samples()
        return samples_problem(samples) if samples else ""

    def stop(self) -> None:
        self.factors.stop()
        self.readings.stop()
        if self.tsdb:
            self.tsdb.close()
        self.reader.dispose()
        self.writer.dispose()


def build(settings: ServerSettings) -> Services:
    """Open the database; raises DatabaseError, SettingsError."""
    use_thresholds(settings.threshold)
    rules = load_rules(settings.report.rules_file)
    url = parse_url(settings.db.url, settings.db.password_file)
    threads = plan_threads(url, settings.web.threads)
    readers = reader_engine(url, settings.web.query_timeout, threads.connections())
    try:
        require_current(readers)
    except DatabaseError:
        readers.dispose()
        raise
    emissions, auth = settings.emissions, settings.auth
    has_factors = emissions.provider or emissions.server_url
    limit, gate, streams = settings.limit, settings.gate, settings.samples.streams
    endpoint = gate_endpoint(settings.tsdb, gate)
    tsdb = PromqlBackend(endpoint, gate.concurrent) if settings.tsdb.url else None
    many, directory = range(gate.concurrent), settings.samples.directory
    if tsdb:
        stores = TimeSeriesPool([Prometheus(endpoint) for _ in many], tsdb.turns)
    else:
        of_files = [SampleHistory(Path(directory)) for _ in many] if directory else ()
        stores = TimeSeriesPool(of_files)
    provider = None
    if settings.oidc.issuer:
        # Imports OAuth and HTTP clients, which only this needs.
        from batchjob_stats_server.auth.oidc import OidcProvider

        secret = read_secret_option("oidc.client-secret-file", settings.oidc.client_secret_file)
        provider = OidcProvider(settings.oidc, secret)
    metrics = ServerMetrics()
    metrics.watch(readers, tsdb.turns if tsdb else None)
    return Services(
        settings,
        readers,
        writer_engine(url, answer_seconds=settings.web.query_timeout),
        proxy_secret(auth),
        SiteFactors.of_site(emissions, "emissions") if has_factors else SiteFactors((), ()),
        metrics,
        RateLimiter(limit.user_rate, round(_BURST_SECONDS * limit.user_rate)),
        RateLimiter(limit.peer_rate, round(_BURST_SECONDS * limit.peer_rate)),
        threads,
        Turns(streams, max(streams // 4, 1), "the sample files"),
        stores,
        ClusterReadings(stores, threads),
        rules,
        Certificates(auth.client_ca_file, auth.client_crl_file),
        tsdb,
        provider=provider,
    )


async def _current_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


CurrentServices = Annotated[Services, Depends(_current_services)]

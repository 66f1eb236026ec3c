"""What the routes work with, made once from the settings."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

from anyio import CapacityLimiter
from fastapi import Depends, Request
from sqlalchemy.engine import URL, Engine

from batchjob_stats_db.engine import parse, quick_reader, reader, writer
from batchjob_stats_db.history.prometheus import Endpoint, Prometheus
from batchjob_stats_db.history.samples import SampleHistory
from batchjob_stats_db.revision import require_current
from batchjob_stats_server.certificates import Certificates
from batchjob_stats_server.gate.tsdb import Tsdb
from batchjob_stats_server.histories import Histories
from batchjob_stats_server.options import Settings, gate_endpoint, proxy_secret
from batchjob_stats_server.quick import SECONDS, Quick
from batchjob_stats_server.rate import Rate
from batchjob_stats_server.recent import Recent
from batchjob_stats_server.report.quantities import UNITS
from batchjob_stats_server.report.rules import Rule, load
from batchjob_stats_server.self_metrics import ServerMetrics
from batchjob_stats_server.streams import Streams
from collectors.emissions.factors import SiteFactors, site_factors


class Rates(NamedTuple):
    """How often one may ask."""

    user: Rate
    peer: Rate


class Threads(NamedTuple):
    """How many answer at a time; each has a connection of its own to the database."""

    light: int
    heavy: CapacityLimiter  # for what costs something, so that all else need not wait for it

    def connections(self) -> int:
        """To the database: one for each."""
        return self.light + int(self.heavy.total_tokens)


def threads_of(url: URL, most: int) -> Threads:
    """So many, of which some are kept for either kind."""
    heavy = most // 2
    if url.get_backend_name() == "sqlite":  # which works in this process
        heavy = min(heavy, len(os.sched_getaffinity(0)) + 1)
    heavy = max(heavy, 1)
    return Threads(max(most - heavy, 1), CapacityLimiter(heavy))


class Services(NamedTuple):
    """The collaborators of an application."""

    settings: Settings
    reader: Engine
    writer: Engine  # for tokens, and nothing else
    proxy_secret: str
    factors: SiteFactors | None  # None: no provider is configured
    metrics: ServerMetrics
    rates: Rates
    threads: Threads
    recent: Recent  # answers in rows
    askers: Recent  # who asks, and what they may see
    quick: Quick | None = None  # None: the database is PostgreSQL, which is asked over a socket
    tsdb: Tsdb | None = None  # None: no time series database is configured
    certificates: Certificates | None = None  # None: clients have none
    histories: Histories | None = None  # None: nor anything else that keeps measurements
    rules: tuple[Rule, ...] = ()  # of the advice in reports
    streams: Streams | None = None  # None: no samples are kept here
    clock: Callable[[], float] = time.time

    def start(self) -> None:
        """Begin to ask the providers of emission factors."""
        if self.factors:
            self.factors.start()

    def stop(self) -> None:
        """End threads and connections."""
        if self.factors:
            self.factors.stop()
        if self.tsdb:
            self.tsdb.close()
        if self.quick:
            self.quick.stop()
        self.reader.dispose()
        self.writer.dispose()


def build(settings: Settings) -> Services:
    """Open the database; raises DatabaseError, SettingsError."""
    rules = load(UNITS, settings.report.rules_file)
    url = parse(settings.db.url, settings.db.password_file)
    threads = threads_of(url, settings.web.threads)
    readers = reader(url, settings.web.query_timeout, threads.connections())
    require_current(readers)
    emissions, auth = settings.emissions, settings.auth
    wanted = emissions.provider or emissions.server_url
    limit, gate = settings.limit, settings.gate
    endpoint = gate_endpoint(settings.tsdb, gate)
    asked = gate.concurrent if settings.tsdb.url else 0
    tsdb = Tsdb(endpoint, asked, gate.concurrent_per_user) if asked else None
    metrics = ServerMetrics()
    metrics.watch(readers, tsdb.turns if tsdb else None)
    return Services(
        settings,
        readers,
        writer(url),
        proxy_secret(auth),
        site_factors(emissions, "emissions") if wanted else None,
        metrics,
        Rates(Rate(limit.user_rate, limit.user_burst), Rate(limit.peer_rate, limit.peer_burst)),
        threads,
        Recent(size=lambda answer: len(answer.text), threads=threads.heavy),
        Recent(),
        _quick(url, metrics, threads.heavy),
        tsdb,
        Certificates(auth.client_ca_file, auth.client_crl_file) if auth.client_ca_file else None,
        _histories(settings, endpoint, tsdb),
        rules,
        Streams(settings.samples.streams) if settings.samples.directory else None,
    )


def _quick(url: URL, metrics: ServerMetrics, heavy: CapacityLimiter) -> Quick | None:
    if url.get_backend_name() != "sqlite":
        return None
    return Quick(quick_reader(url, SECONDS), metrics.quick, lambda: heavy.borrowed_tokens)


def _histories(settings: Settings, endpoint: Endpoint, tsdb: Tsdb | None) -> Histories | None:
    many, directory = range(settings.gate.concurrent), settings.samples.directory
    if tsdb:
        return Histories([Prometheus(endpoint) for _ in many], tsdb.turns)
    return Histories([SampleHistory(Path(directory)) for _ in many]) if directory else None


async def _of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Given = Annotated[Services, Depends(_of)]

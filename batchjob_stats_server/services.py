"""The objects that routes work with, built once from the settings."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from fastapi import Depends, Request
from sqlalchemy.engine import Engine

from batchjob.judgements import use_thresholds
from batchjob.runtime.rate_limit import RateLimiter
from batchjob_stats_db.database.engine import DatabaseError, parse_url, reader_engine, writer_engine
from batchjob_stats_db.database.revision import require_current
from batchjob_stats_db.poller.options import read_secret_option
from batchjob_stats_db.samples.folder import samples_problem
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from batchjob_stats_server.auth.certificates import Certificates
from batchjob_stats_server.auth.rights import ProcessToken
from batchjob_stats_server.cluster_readings import ClusterReadings
from batchjob_stats_server.mail_template import MailTemplate, load_mail_template
from batchjob_stats_server.options import (
    ServerSettings,
    gate_endpoint,
    proxy_secret,
)
from batchjob_stats_server.promql.backend import PromqlBackend
from batchjob_stats_server.promql.histories import TimeSeriesPool
from batchjob_stats_server.report.rules import AdviceRule, load_rules
from batchjob_stats_server.self_metrics import ServerMetrics
from batchjob_stats_server.threads import Threads, plan_threads
from batchjob_stats_server.turns import Turns
from collectors.emissions.site_factors import SiteFactors

if TYPE_CHECKING:
    from batchjob_stats_server.api.local_runs import RunControl
    from batchjob_stats_server.auth.oidc import OidcProvider


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
    histories: TimeSeriesPool
    readings: ClusterReadings  # of nodes
    rules: tuple[AdviceRule, ...]  # for the advice in reports
    certificates: Certificates
    tsdb: PromqlBackend | None = None  # None: no time series database is configured
    run_control: "RunControl | None" = None  # None: runs cannot be started or ended through the API
    demo_cluster: str = ""  # name of a demo's cluster
    local_data: Path | None = None  # of this machine's runs; None: this server is for clusters
    process_token: ProcessToken | None = None  # None: all tokens are in the database
    provider: "OidcProvider | None" = None  # None: users cannot log in here
    mail_template: MailTemplate | None = None  # None: users' addresses are unknown
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
    histories = _time_series_pool(settings, endpoint, tsdb)
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
        histories,
        ClusterReadings(histories, threads),
        rules,
        Certificates(auth.client_ca_file, auth.client_crl_file),
        tsdb,
        mail_template=load_mail_template(settings.report),
        provider=_provider(settings),
    )


def _provider(settings: ServerSettings) -> "OidcProvider | None":
    if not settings.oidc.issuer:
        return None
    # Imports OAuth and HTTP clients, which only this needs.
    from batchjob_stats_server.auth.oidc import OidcProvider

    name = "oidc.client-secret-file"
    return OidcProvider(settings.oidc, read_secret_option(name, settings.oidc.client_secret_file))


def _time_series_pool(
    settings: ServerSettings, endpoint: Endpoint, tsdb: PromqlBackend | None
) -> TimeSeriesPool:
    many, directory = range(settings.gate.concurrent), settings.samples.directory
    if tsdb:
        return TimeSeriesPool([Prometheus(endpoint) for _ in many], tsdb.turns)
    return TimeSeriesPool([SampleHistory(Path(directory)) for _ in many] if directory else ())


async def _current_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


CurrentServices = Annotated[Services, Depends(_current_services)]

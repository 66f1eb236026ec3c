"""Builds exporter, recorder, pollers and server from the settings."""

import contextlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine import URL, Engine

from batchjob.local_runs.directory import LOCAL, LOGS, RUNS, SAMPLES, create_directory
from batchjob.quantities.job import DEFAULT_METRIC_GROUPS, METRIC_GROUPS
from batchjob.runtime.background import Refresher
from batchjob.runtime.logins import login
from batchjob.runtime.settings import SettingsError, UnavailableError
from batchjob.schedulers import registry
from batchjob.schedulers.cluster import DetectedCluster
from batchjob_cli.client.running_up import TOKEN_FILE, keep_file
from batchjob_cli.up import demo_cluster, demo_nodes, records
from batchjob_cli.up.demo_recording import CLUSTER
from batchjob_cli.up.options import UpSettings
from batchjob_cli.up.records import ensure_schema
from batchjob_cli.up.runs import LocalRunControl, RunLog
from batchjob_exporter import options as exporter_options
from batchjob_exporter.exporter import Exporter
from batchjob_exporter.service import ExporterService, build_exporter
from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.engine import writer_engine, writer_lock
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.poller import options as poller_options
from batchjob_stats_db.poller.service import PollerService
from batchjob_stats_db.samples.recorder import Recorder
from batchjob_stats_server import main as server_main
from batchjob_stats_server import options as server_options
from batchjob_stats_server import services as server_services
from batchjob_stats_server.auth.rights import ProcessToken
from collectors.job_samples import samples_reader

log = logging.getLogger(__name__)

_GPU_INTERVAL = 10.0  # maximum
_FIRST_VALUES_SECONDS = 2.0  # maximum wait until existing jobs are identified


class Stack(NamedTuple):
    """The running parts, and what to print about them."""

    server: server_main.AnsweringServer
    scheduler: DetectedCluster | None
    token: str
    database: str
    demo_jobs: int  # jobs of the demo's cluster
    demo_runs: int  # runs that the demo started on this machine


@contextlib.contextmanager
def start_stack(settings: UpSettings, data: Path) -> Iterator[Stack]:
    """Build and start everything but the server's loop; stops it in reverse order.

    Raises SettingsError, DatabaseError, OSError.
    """
    for part in (RUNS, LOGS, SAMPLES):
        create_directory(data, part)
    url = records.database_url(data)
    with contextlib.ExitStack() as stack:
        stack.enter_context(writer_lock(url))
        ensure_schema(url)
        engine = writer_engine(url)
        stack.callback(engine.dispose)
        scheduler = registry.detect(LOCAL)
        pollers = tuple(
            PollerService(each, engine) for each in _poller_settings(settings, data, url, scheduler)
        )
        process_token = create_token(login())
        with engine.begin() as db:
            tokens.delete_of_processes(db)
        exporter = _build_exporter(settings, process_token.text)
        recorder = _build_recorder(settings, exporter, data)
        services = server_services.build(server_settings(settings, data, url))
        control = LocalRunControl(data, LOCAL) if settings.runs.remote else None
        # The demo's runs start while its cluster is loaded.
        demo_runs = demo_cluster.start_runs(data) if settings.up.demo else []
        recorded = _load_demo(settings, engine, data)
        services = services._replace(
            process_token=process_token, run_control=control, local_data=data,
            demo_cluster=CLUSTER if recorded else "",
        )  # fmt: skip
        if recorded and not settings.tsdb.url:
            services = demo_nodes.with_nodes(services, data / SAMPLES, recorded.recording)
        if recorded:
            played = demo_cluster.poller_settings(recorded, str(url), data / SAMPLES)
            pollers = (*pollers, PollerService(played, engine))
        server = server_main.create_server(services.settings, services)
        stack.enter_context(keep_file(data / TOKEN_FILE, process_token.text))
        exporter.start()
        stack.callback(exporter.stop)
        exporter.wait(_FIRST_VALUES_SECONDS)  # otherwise the first samples would lack jobs
        interval = settings.up.interval
        runs = Refresher("runs", RunLog(data).look, interval, interval)
        for each in (recorder, *pollers, runs):
            if each is not None:
                each.start()
                stack.callback(each.stop)
        shown = url.render_as_string(hide_password=True)
        yield Stack(
            server, scheduler, process_token.text, shown, recorded.job_count if recorded else 0,
            len(demo_cluster.wait_for_ids(demo_runs)),
        )  # fmt: skip


def _load_demo(settings: UpSettings, engine: Engine, data: Path) -> demo_cluster.DemoSource | None:
    """The demo's cluster; None without --demo."""
    if settings.up.demo:
        return demo_cluster.load(engine, data / SAMPLES)
    demo_cluster.remove(engine, data / SAMPLES)
    return None


def _build_exporter(settings: UpSettings, secret: str) -> ExporterService | Exporter:
    """Build the exporter that reads the samples; it listens only if configured."""
    address = settings.up.exporter_address
    address_flags = [f"--web.listen-address={address}"] if address else []
    more = settings.up.metrics
    groups = METRIC_GROUPS if "all" in more else (*DEFAULT_METRIC_GROUPS, *more)
    group_flags = [f"--collector.jobs.metrics={group}" for group in groups]
    # Runs are short, so GPUs and energy are read as often as samples are taken.
    interval = f"{min(settings.samples.interval, _GPU_INTERVAL):g}s"
    interval_flags = [f"--collector.{each}.interval={interval}" for each in ("gpu", "energy")]
    chosen = exporter_options.parse_settings(
        [*address_flags, "--collector.jobs.name", *group_flags, *interval_flags]
    )
    if not address:
        return build_exporter(chosen)
    try:
        return ExporterService(chosen, secret)
    except UnavailableError as error:  # the message names another flag
        told = str(error).removeprefix("web.listen-address: ")
        raise SettingsError(f"--exporter-address: {told}") from error


def _build_recorder(
    settings: UpSettings, exporter: ExporterService | Exporter, data: Path
) -> Recorder | None:
    read_samples = samples_reader(exporter.collectors)
    if read_samples is None or settings.tsdb.url:
        return None
    return Recorder(read_samples, data / SAMPLES, settings.samples, runs=data / RUNS)


def _poller_settings(
    settings: UpSettings, data: Path, url: URL, scheduler: DetectedCluster | None
) -> Iterator[poller_options.PollerSettings]:
    """The machine's own runs are polled often, a scheduler less often."""
    clusters: list[tuple[str, Mapping[str, Any], str]] = [
        (LOCAL, {"runs": {"path": str(data / RUNS)}}, f"{settings.up.interval:g}s")
    ]
    if scheduler:
        interval = f"{settings.up.scheduler_interval:g}s"
        clusters.append((scheduler.cluster, scheduler.sources, interval))
    for name, sources, interval in clusters:
        cluster: dict[str, Any] = {"name": name, "sources": sources}
        if settings.tsdb.url:
            cluster["tsdb"] = {"url": settings.tsdb.url}
        else:
            cluster["samples"] = str(data / SAMPLES)
        given: Mapping[str, Any] = {
            "db.url": str(url),
            "poll.interval": interval,
            "poll.rollup-interval": "60s",
            "clusters": [cluster],
        }
        yield poller_options.settings(given, "")


def server_settings(settings: UpSettings, data: Path, url: URL) -> server_options.ServerSettings:
    """The server's own settings for this machine; raises SettingsError."""
    given: dict[str, Any] = {
        "db.url": str(url),
        "web.listen-address": str(settings.up.listen_address),
        "web.metrics-from": [],  # loopback is shared with other users of this machine
    }
    if settings.tsdb.url:
        given["tsdb.url"] = settings.tsdb.url
    else:
        given["samples.directory"] = str(data / SAMPLES)
    built = server_options.settings(given, "")
    settings_of_server = built._replace(
        web=replace(built.web, **vars(settings.web)),
        auth=replace(built.auth, **vars(settings.auth)),
        threshold=settings.threshold,
    )
    if wrong := list(server_options.setting_errors(settings_of_server)):
        raise SettingsError("; ".join(wrong))
    return settings_of_server


def create_token(user: str) -> ProcessToken:
    """Create a token with which all jobs can be seen, and tokens created."""
    return ProcessToken(f"bj_{secrets.token_urlsafe(32)}", user, TokenRole.ADMIN)

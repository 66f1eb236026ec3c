"""The daemon: a thread for each cluster, and one that supervises them."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Engine

from batchjob.runtime.background import Refresher
from batchjob.runtime.settings import listen_error
from batchjob.runtime.signals import Signals, notify
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.health import HealthServer
from batchjob_stats_db.poller.messages.sender import Sender
from batchjob_stats_db.poller.options import ClusterSettings, PollerSettings
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.base import TimeSeriesStore
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_db.timeseries.sample_store import SampleHistory

log = logging.getLogger(__name__)

_STALL_SECONDS = 900.0  # seconds without a sign of life after which a thread is considered stuck
_WATCHDOG_SECONDS = 5.0
_LOOK_SECONDS = 10.0  # between two looks at the directories of samples and backups
_SAMPLES_SETTLE_SECONDS = 60  # after a job's end: its energy is attributed 30 s later
_STOP_SECONDS = 20.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 300.0  # before polling begins again


class PollerService:
    """Polls all clusters into one database."""

    def __init__(self, settings: PollerSettings, engine: Engine) -> None:
        self._metrics = PollerMetrics()
        # File systems may hang: who asks for health or metrics is told what was seen last.
        self._samples = Refresher(
            "samples", self._samples_problem, _LOOK_SECONDS, 3 * _LOOK_SECONDS
        )
        self._refreshers: list[Refresher[Any]] = [self._samples]
        if directory := settings.backup.directory:
            look = partial(self._metrics.look_at_backups, directory)
            self._refreshers.append(Refresher("backups", look, _LOOK_SECONDS, math.inf))
        self.pollers = [
            Poller(
                each, Store(engine, each.name, _usage_policy(each)), _time_series_of(each),
                settings.poll, settings.retention, self._metrics, messages=settings.messages,
            )
            for each in settings.clusters
        ]  # fmt: skip
        self.sender: Sender | None = None
        if settings.messages.offer():
            names = [each.name for each in settings.clusters]
            self.sender = Sender(engine, names, settings.messages, self._metrics)
        self._stop = threading.Event()
        loops: list[tuple[str, Callable[[threading.Event], None]]] = [
            (each.cluster.name, partial(_keep_polling, each)) for each in self.pollers
        ]
        if self.sender:
            loops.append(("messages", self.sender.run))
        self._threads = [
            threading.Thread(target=loop, args=(self._stop,), name=name, daemon=True)
            for name, loop in loops
        ]
        self._address = settings.web.listen_address
        self._health: HealthServer | None = None

    def health_problem(self) -> str:
        """The cluster whose thread has ended or is stuck; "" if there is none."""
        for thread, poller in zip(self._threads, self.pollers, strict=False):
            if thread.ident is not None and not thread.is_alive():
                return f"{thread.name}: its thread has ended"
            if poller.fault:
                return f"{thread.name}: its polling ended and begins again: {poller.fault}"
            if time.monotonic() - poller.last_progress > _STALL_SECONDS:
                return f"{thread.name}: no progress for {_STALL_SECONDS:g} s"
        return ""

    def readiness_problem(self) -> str:
        """The clusters that have not been polled yet; "" if all have been and none is stuck."""
        waiting = [poller.cluster.name for poller in self.pollers if not poller.has_polled]
        if waiting:
            return f"not polled yet: {', '.join(waiting)}"
        samples = self._samples.latest()
        if samples is None:
            return "samples: the file system does not answer"
        return samples.value or self.health_problem()

    def _samples_problem(self) -> str:
        """The cluster whose directory of samples is absent; "" if there is none."""
        for cluster in (poller.cluster for poller in self.pollers):
            if cluster.samples and not cluster.tsdb.url and not Path(cluster.samples).is_dir():
                return f"{cluster.name}: samples: {cluster.samples}: no such directory"
        return ""

    def start(self) -> None:
        """Start polling; raises SettingsError if the address is in use."""
        if self._address is not None:
            try:
                registry = self._metrics.registry
                self._health = HealthServer(
                    self._address, registry, self.health_problem, self.readiness_problem
                )
            except OSError as error:
                raise listen_error(self._address, error) from error
            self._health.start()
        for refresher in self._refreshers:
            refresher.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the current transactions, without waiting for a scheduler that hangs."""
        self._stop.set()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        for refresher in self._refreshers:
            refresher.stop()
        if self._health:
            self._health.stop()


def _keep_polling(poller: Poller, stop: threading.Event) -> None:
    """Poll until stopped; polling that ends by an error begins again, later each time."""
    pause = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        begun = time.monotonic()
        try:
            poller.run(stop)
        except Exception as error:  # a thread that ended would poll no more
            poller.fault = repr(error)
            log.exception("%s: polling ended; it begins again", poller.cluster.name)
        if time.monotonic() - begun > _LONGEST_PAUSE_SECONDS:
            pause = _FIRST_PAUSE_SECONDS
        stop.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _time_series_of(cluster: ClusterSettings) -> TimeSeriesStore | None:
    """The store of a cluster's measurements; None: there is none."""
    if cluster.tsdb.url:
        return Prometheus(cluster.tsdb.endpoint())
    return SampleHistory(Path(cluster.samples), cluster.name) if cluster.samples else None


def _usage_policy(cluster: ClusterSettings) -> UsagePolicy:
    if cluster.samples and not cluster.tsdb.url:
        return UsagePolicy(_SAMPLES_SETTLE_SECONDS)
    return cluster.tsdb.policy()


def serve(service: PollerService) -> None:
    signals = Signals(signal.SIGTERM, signal.SIGINT)
    service.start()
    notify("READY=1")
    try:
        while not (received := signals.wait(_WATCHDOG_SECONDS)):
            problem = service.health_problem()
            notify("STATUS=" + problem if problem else "WATCHDOG=1")
        log.info("stopping on %s", received[0].name)
    finally:
        notify("STOPPING=1")
        service.stop()

"""One exporter, put together: collectors, site and server. Several fit into one process."""

import logging
import os
from typing import TYPE_CHECKING

from batchjob.settings import SettingsError
from batchjob_exporter.exporter import Exporter
from batchjob_exporter.http.addresses import (
    beyond_loopback,
    listeners,
    remove_socket_files,
    shown,
    systemd_listeners,
)
from batchjob_exporter.http.server import Limits, Server
from batchjob_exporter.http.site import Site
from batchjob_exporter.http.web import Web
from batchjob_exporter.options import Settings
from batchjob_exporter.self_metrics import own_families, version_text

if TYPE_CHECKING:
    from collectors.collector import Collector

log = logging.getLogger(__name__)


def exporter_of(settings: Settings) -> Exporter:
    """The chosen collectors, not yet started.

    A collector that refuses its options ends the start (SettingsError); one that cannot be built
    for another reason is reported at every scrape, and the others go on.
    """
    for name, path in (("procfs", settings.host.procfs), ("sysfs", settings.host.sysfs)):
        if not os.path.isdir(path):  # cgroupfs may be mounted later
            raise SettingsError(f"path.{name}: expected a directory, got {path!r}")
    built: dict[str, Collector] = {}
    collectors: dict[str, Collector | None] = {}
    for entry, options in settings.collectors:
        collectors[entry.name] = None
        try:
            built[entry.name] = entry.load().build(settings.host, options, built)
        except SettingsError as error:
            section = f"collector.{entry.name}"
            told = str(error) if str(error).startswith(f"{section}.") else f"{section}: {error}"
            raise SettingsError(told) from error
        except Exception:  # a collector is isolated, whatever it raises
            log.exception("collector %s cannot be built", entry.name)
        else:
            collectors[entry.name] = built[entry.name]
    return Exporter(collectors, own_families(not settings.web.disable_exporter_metrics))


class Service:
    """An exporter that listens."""

    def __init__(self, settings: Settings) -> None:
        """Builds everything and opens the sockets; raises SettingsError."""
        web = settings.web
        self._exporter = exporter_of(settings)
        site = Site(self._exporter, web.telemetry_path, version_text())
        self.web = Web(web.config_file, site.answer)
        self.sockets = systemd_listeners() if web.systemd_socket else listeners(web.listen_address)
        self._systemd, self._addresses = web.systemd_socket, web.listen_address
        self.addresses = [shown(each) for each in self.sockets]
        if any(map(beyond_loopback, self.sockets)) and not (web.allow_from or self.web.guarded):
            log.warning(
                "whoever reaches this node can read what its jobs do: "
                "set --web.allow-from, or authentication in --web.config.file"
            )
        limits = Limits(web.max_requests, web.allow_from)
        self._server = Server(self.sockets, self.web.answer, limits, self.web.wrap)

    @property
    def collectors(self) -> list["Collector"]:
        """The collectors, for who wants readings rather than their metrics."""
        return self._exporter.collectors

    def start(self) -> None:
        """Start collectors, then listen."""
        self._exporter.start()
        self._server.start()
        for address in self.addresses:
            log.info("listening on %s", address)

    def stop(self) -> None:
        """Stop serving, then the collectors."""
        self._server.stop()
        if not self._systemd:
            remove_socket_files(self._addresses)
        self._exporter.stop()

    def responds(self, seconds: float) -> bool:
        """Whether the server still turns."""
        return self._server.responds(seconds)

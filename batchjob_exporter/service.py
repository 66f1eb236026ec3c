"""One complete exporter: collectors, site and server. A process may have several."""

import logging
import os
import socket
from typing import TYPE_CHECKING

from batchjob.runtime.settings import SettingsError
from batchjob.runtime.values import LOOPBACK
from batchjob_exporter.exporter import Exporter
from batchjob_exporter.options import ExporterSettings
from batchjob_exporter.self_metrics import self_families_reader, version_text
from batchjob_exporter.web import addresses
from batchjob_exporter.web.auth import RequestHandler, WebAccess, require_bearer
from batchjob_exporter.web.server import HttpServer
from batchjob_exporter.web.site import MetricsSite

if TYPE_CHECKING:
    from collectors.collector import Collector

log = logging.getLogger(__name__)


def build_exporter(settings: ExporterSettings) -> Exporter:
    """The chosen collectors, not yet started.

    A collector that refuses its options ends the start (SettingsError); one that cannot be built
    for another reason is reported at every scrape, and the others are run.
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
            message = str(error) if str(error).startswith(f"{section}.") else f"{section}: {error}"
            raise SettingsError(message) from error
        except Exception:  # no exception of a collector may affect the others
            log.exception("collector %s cannot be created", entry.name)
        else:
            collectors[entry.name] = built[entry.name]
    return Exporter(collectors, self_families_reader(not settings.web.disable_exporter_metrics))


class ExporterService:
    def __init__(self, settings: ExporterSettings, secret: str = "") -> None:
        """Build everything and open the sockets; raises SettingsError.

        `secret`: each request must carry it; "": none is needed.
        """
        web = settings.web
        self._exporter = build_exporter(settings)
        site = MetricsSite(self._exporter, web.telemetry_path, version_text())
        self.sockets = addresses.open_listeners(web.listen_address)
        answer: RequestHandler = site.answer
        if secret:
            answer = require_bearer(answer, secret, _accepted_host_names(self.sockets))
        self.web = WebAccess(web.config_file, answer)
        self._addresses = web.listen_address
        self.addresses = [addresses.format_address(each) for each in self.sockets]
        protected = web.allow_from or self.web.requires_authentication or secret
        if any(map(addresses.is_reachable_remotely, self.sockets)) and not protected:
            log.warning(
                "anybody who can reach this node can read what its jobs do: set "
                "--web.allow-from, or authentication in --web.config.file"
            )
        self._server = HttpServer(self.sockets, self.web, web.max_requests, web.allow_from)
        self._answered_before: set[socket.socket] = set()

    @property
    def collectors(self) -> list["Collector"]:
        return self._exporter.collectors

    def start(self) -> None:
        self._exporter.start()
        self._server.start()
        for address in self.addresses:
            log.info("listening on %s", address)

    def wait(self, seconds: float) -> None:
        self._exporter.wait(seconds)

    def stop(self) -> None:
        self._server.stop()
        addresses.remove_socket_files(self._addresses)
        self._exporter.stop()

    def is_answering(self, seconds: float) -> bool:
        """Whether each listener answers a client's request within `seconds`.

        For a listener that never did, for example behind a firewall that filters loopback, only the
        server's thread is checked: a restart would not help.
        """
        for listener in self.sockets:
            if addresses.is_answering(listener, seconds):
                self._answered_before.add(listener)
            elif listener in self._answered_before:
                return False
        return self._server.responds(seconds)


def _accepted_host_names(sockets: list[socket.socket]) -> frozenset[str] | None:
    """The host names under which loopback listeners are accessed; None: any."""
    only_local = not any(map(addresses.is_reachable_remotely, sockets))
    any_tcp = any(each.family != socket.AF_UNIX for each in sockets)
    return LOOPBACK if only_local and any_tcp else None

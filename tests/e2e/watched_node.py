"""Exporters of one node, each as a cluster of its own, and all programs that watch what they tell.

Prometheus with the shipped rules, the poller, which tells users by mail, and the server.
"""

import contextlib
import json
import os
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.tokens import TokenRole, create
from tests.e2e import prometheus
from tests.grafana import stack
from tests.helpers.mail_relay import Relay
from tests.helpers.processes import free_ports
from tests.helpers.waiting import scaled, until
from tests.prometheus import chain

ALONE, HELPED = CLUSTERS = (stack.CLUSTER, "helped")  # an exporter alone, and one beside the helper


class WatchedNode(NamedTuple):
    """The running programs; made by `watching()`."""

    name: str
    exporters: Mapping[str, str]  # addresses by cluster
    tsdb: prometheus.Server
    poller: str
    url: str  # of the server
    token: str  # the file
    relay: Relay

    def targets(self, cluster: str) -> tuple[chain.Target, chain.Target]:
        """The exporter and the poller as Prometheus has them."""
        return chain.node(self.exporters[cluster], self.name, cluster), chain.poller(self.poller)

    def get(self, path: str, user: str = stack.OPERATOR, **parameters: Any) -> str:
        """An answer of the server to a user."""
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": stack.SECRET}
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=scaled(60)) as answer:
            return str(answer.read().decode())

    def rows(self, path: str, **parameters: Any) -> Any:
        """An answer of the API to an operator."""
        return json.loads(self.get(f"/api/v1{path}", **parameters))


@contextlib.contextmanager
def watching(
    folder: Path,
    name: str,
    exporters: Mapping[str, str],
    sources: Mapping[str, Any],
    inside: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[WatchedNode]:
    """Start the programs; the poller, whose sources these are, `inside` a prefix of its command."""
    with contextlib.ExitStack() as made:
        relay = Relay()
        made.callback(relay.stop)
        poller, server = (f"127.0.0.1:{port}" for port in free_ports(2))
        scraping = _scraping(folder, name, exporters, poller, server)
        tsdb = made.enter_context(prometheus.serving(scraping))
        config = stack.write_configuration(folder, tsdb.url, sources, poller, server)
        token = _token(folder)
        _configure(config, relay.address, f"http://{server}", token)
        made.enter_context(stack.running_program("batchjob_stats_server", config / "server.yml"))
        path = os.pathsep.join(
            each["PATH"] for each in (environ or {}, os.environ) if "PATH" in each
        )
        made.enter_context(
            stack.running_program(
                "batchjob_stats_db", config / "stats_db.yml", inside=inside,
                environ={**(environ or {}), "PATH": path},
            )
        )  # fmt: skip
        for address in (poller, server):
            until(partial(_listens, address), "poller and server listen", 120)
        yield WatchedNode(name, exporters, tsdb, poller, f"http://{server}", token, relay)


def _listens(address):
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _scraping(folder, name, exporters, poller, server):
    config = stack.prometheus_configuration(folder, {}, poller, server)
    (jobs,) = (each for each in config["scrape_configs"] if each["job_name"] == "batchjob_exporter")
    for shipped in ("file_sd_configs", "relabel_configs"):
        jobs.pop(shipped)
    jobs["static_configs"] = [
        {"targets": [address], "labels": {"cluster": cluster, "instance": name}}
        for cluster, address in exporters.items()
    ]
    return config


def _token(folder):
    """A file with the token of a viewer, in a new database."""
    engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"), create=True)
    migrate(engine)
    with engine.begin() as db:
        text = create(db, "messages", TokenRole.VIEWER, "messages", 0)
    engine.dispose()
    file = folder / "messages.token"
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def _configure(config, relay, server, token):
    file = config / "stats_db.yml"
    settings = yaml.safe_load(file.read_text())
    (of_one,) = settings["clusters"]
    settings["clusters"] = [{**of_one, "name": name} for name in CLUSTERS]
    settings["messages"] = {
        "server": server, "token-file": token, "smtp": relay, "smtp-tls": "none",
        "sender": "batchjob@example.org", "address": "{user}@example.org",
        "default": ["end", "idle=1m"], "gather": "1s",
    }  # fmt: skip
    settings["tsdb"]["live"] = "5s"
    file.write_text(yaml.safe_dump(settings))

"""A Prometheus server of its own for a test: Debian's binary, on loopback, in one folder.

with prometheus.server(["127.0.0.1:10910"], scrape_interval="5s") as server:
    server.query('batchjob_jobs{manager="slurm"}')
"""

import contextlib
import json
import shutil
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.e2e.exporter import Scrape, parse
from tests.helpers.processes import daemon, free_ports
from tests.helpers.waiting import scaled, until


class Sample(NamedTuple):
    """One element of an instant vector."""

    labels: Mapping[str, str]
    time: float
    value: float


class Server(NamedTuple):
    """A running Prometheus; made by `server()`."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of the HTTP API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=scaled(10)) as answer:
            return json.load(answer)["data"]

    def query(self, promql: str) -> list[Sample]:
        """An instant vector of now."""
        return [
            Sample(each["metric"], each["value"][0], float(each["value"][1]))
            for each in self.get("query", query=promql)["result"]
        ]

    def own_metrics(self) -> Scrape:
        """What it says of itself."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=scaled(10)) as answer:
            return parse(answer.read().decode(), time.time())

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


def scrape_config(
    targets: Sequence[str], scrape_interval: str, replica: str, client: Mapping[str, Any]
) -> dict[str, Any]:
    """Configuration of one job; `replica` shifts the moment of the scrape within the interval.

    `client`: more keys of the job, such as `scheme`, `tls_config` and `basic_auth`.

    Prometheus spreads its targets over the interval by a hash in which external labels have part.
    """
    return {
        "global": {"scrape_interval": scrape_interval, "external_labels": {"replica": replica}},
        "scrape_configs": [
            {"job_name": "batchjob", "static_configs": [{"targets": list(targets)}], **client}
        ],
    }


@contextlib.contextmanager
def server(
    targets: Sequence[str], scrape_interval: str = "5s", replica: str = "a", **client: Any
) -> Iterator[Server]:
    """Start Prometheus with one scrape job."""
    with serving(scrape_config(targets, scrape_interval, replica, client)) as made:
        yield made


@contextlib.contextmanager
def serving(configuration: Mapping[str, Any]) -> Iterator[Server]:
    """Start Prometheus on a free port of loopback; at the end stop it and remove its data."""
    with (
        tempfile.TemporaryDirectory(prefix="prometheus-") as folder,
        at(free_ports(1)[0], Path(folder), configuration) as made,
    ):
        yield made


@contextlib.contextmanager
def at(port: int, folder: Path, configuration: Mapping[str, Any], *flags: str) -> Iterator[Server]:
    """Start Prometheus at a port of loopback, over the data that a folder has, if any."""
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration))
    argv = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *flags,
    ]  # fmt: skip
    made = Server(f"http://127.0.0.1:{port}")
    with daemon(argv, folder / "log"):
        until(made.ready, "Prometheus ready")
        yield made


def missing() -> str:
    """Why no Prometheus can be started on this machine, or nothing."""
    return "" if shutil.which("prometheus") else "not installed: prometheus"

"""VictoriaMetrics from Debian: a single-node store, vmagent, and vmauth as authenticating proxy."""

import contextlib
import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.helpers.processes import daemon, free_ports
from tests.helpers.waiting import scaled, until

PROGRAMS = ("victoria-metrics", "vmagent", "vmauth")


def missing() -> str:
    """The reason why this machine cannot run them; empty if it can."""
    missing_programs = [program for program in PROGRAMS if not shutil.which(program)]
    return f"not installed: {', '.join(missing_programs)}" if missing_programs else ""


class VictoriaMetrics(NamedTuple):
    """A single-node VictoriaMetrics."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of a response of the Prometheus API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=scaled(10)) as response:
            return json.load(response)["data"]

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query now, including samples of the last second."""
        urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=scaled(10)).close()
        result: list[dict[str, Any]] = self.get("query", query=promql, nocache="1")["result"]
        return result

    def series(self, match: str) -> list[dict[str, str]]:
        """Label sets of all series of the last hour."""
        urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=scaled(10)).close()
        label_sets: list[dict[str, str]] = self.get("series", **{"match[]": match, "start": "-1h"})
        return label_sets


@contextlib.contextmanager
def store(folder: Path) -> Iterator[VictoriaMetrics]:
    """Start VictoriaMetrics on a free loopback port."""
    (port,) = free_ports(1)
    argv = [
        "victoria-metrics", f"-storageDataPath={folder / 'data'}", "-retentionPeriod=30d",
        f"-httpListenAddr=127.0.0.1:{port}", "-search.latencyOffset=0s",
    ]  # fmt: skip
    folder.mkdir()
    with daemon(argv, folder / "log"):
        until(lambda: responds_with_200(f"http://127.0.0.1:{port}/health"), "victoria-metrics")
        yield VictoriaMetrics(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def auth_proxy(folder: Path, url: str, token: str, port: int = 0) -> Iterator[str]:
    """Start vmauth in front of a store; the URL, which requires the token."""
    port = port or free_ports(1)[0]
    folder.mkdir(exist_ok=True)
    config = folder / "auth.yml"
    config.write_text(yaml.safe_dump({"users": [{"bearer_token": token, "url_prefix": url}]}))
    argv = ["vmauth", f"-auth.config={config}", f"-httpListenAddr=127.0.0.1:{port}"]
    with daemon(argv, folder / "log"):
        until(lambda: responds_with_200(f"http://127.0.0.1:{port}/health"), "vmauth")
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def agent(flags: Sequence[str], log: Path) -> Iterator[Path]:
    """Start vmagent with these flags on a free port; its log file."""
    (port,) = free_ports(1)
    with daemon(["vmagent", *flags, f"-httpListenAddr=127.0.0.1:{port}"], log):
        until(lambda: responds_with_200(f"http://127.0.0.1:{port}/health"), f"vmagent: {log}")
        yield log


@contextlib.contextmanager
def scraping_agent(
    folder: Path, remote_store: VictoriaMetrics, jobs: Sequence[Mapping[str, Any]]
) -> Iterator[None]:
    """Run a vmagent that scrapes these jobs every second."""
    folder.mkdir()
    config = folder / "scrape.yml"
    config.write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": list(jobs)})
    )
    flags = [
        f"-promscrape.config={config}", f"-remoteWrite.tmpDataPath={folder / 'queue'}",
        f"-remoteWrite.url={remote_store.url}/api/v1/write",
    ]  # fmt: skip
    with agent(flags, folder / "log"):
        yield


def responds_with_200(url: str) -> bool:
    """Whether a GET has status 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False

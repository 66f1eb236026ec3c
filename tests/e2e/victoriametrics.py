"""VictoriaMetrics as Debian has it: a store, an agent that scrapes, a gate that wants a token."""

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

from tests.e2e.processes import daemon, free_ports, until

PROGRAMS = ("victoria-metrics", "vmagent", "vmauth")


def missing() -> str:
    """Why this machine cannot run them, or nothing."""
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Store(NamedTuple):
    """A single-node VictoriaMetrics."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of the Prometheus API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The elements of an instant vector of now, samples of the last second included."""
        urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=10).close()
        result: list[dict[str, Any]] = self.get("query", query=promql, nocache="1")["result"]
        return result

    def series(self, match: str) -> list[dict[str, str]]:
        """Label sets of all series there have been in the last hour."""
        urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=10).close()
        found: list[dict[str, str]] = self.get("series", **{"match[]": match, "start": "-1h"})
        return found


@contextlib.contextmanager
def store(folder: Path) -> Iterator[Store]:
    """Start one on a free port of loopback."""
    (port,) = free_ports(1)
    argv = [
        "victoria-metrics", f"-storageDataPath={folder / 'data'}", "-retentionPeriod=30d",
        f"-httpListenAddr=127.0.0.1:{port}", "-search.latencyOffset=0s",
    ]  # fmt: skip
    folder.mkdir()
    with daemon(argv, folder / "log"):
        until(lambda: answers(f"http://127.0.0.1:{port}/health"), "victoria-metrics")
        yield Store(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def gate(folder: Path, url: str, token: str, port: int = 0) -> Iterator[str]:
    """The URL under which a store answers those who have the token, and nobody else."""
    port = port or free_ports(1)[0]
    folder.mkdir(exist_ok=True)
    config = folder / "auth.yml"
    config.write_text(yaml.safe_dump({"users": [{"bearer_token": token, "url_prefix": url}]}))
    argv = ["vmauth", f"-auth.config={config}", f"-httpListenAddr=127.0.0.1:{port}"]
    with daemon(argv, folder / "log"):
        until(lambda: answers(f"http://127.0.0.1:{port}/health"), "vmauth")
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def agent(argv: Sequence[str], log: Path) -> Iterator[Path]:
    """Start vmagent with these flags, listening on a free port; its log."""
    (port,) = free_ports(1)
    with daemon(["vmagent", *argv, f"-httpListenAddr=127.0.0.1:{port}"], log):
        until(lambda: answers(f"http://127.0.0.1:{port}/health"), f"vmagent: {log}")
        yield log


@contextlib.contextmanager
def scraping(folder: Path, into: Store, jobs: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """An agent with these scrape jobs, once in a second."""
    folder.mkdir()
    config = folder / "scrape.yml"
    config.write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": list(jobs)})
    )
    flags = [
        f"-promscrape.config={config}", f"-remoteWrite.tmpDataPath={folder / 'queue'}",
        f"-remoteWrite.url={into.url}/api/v1/write",
    ]  # fmt: skip
    with agent(flags, folder / "log"):
        yield


def answers(url: str) -> bool:
    """Whether a GET has status 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False

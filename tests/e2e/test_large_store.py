"""Agents, poller and server with the addresses that docs/guide/large_site.md has for large stores.

In the stores' place is an nginx that leads their paths to a VictoriaMetrics or a Prometheus, and
refuses what has another path, or not the header that tells the tenant.
"""

import contextlib
import json
import os
import re
import sqlite3
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.e2e import exporter, nginx, prometheus, recorded_job, victoriametrics
from tests.helpers.processes import call, free_ports
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[2] / "docs/guide/large_site.md").read_text()
CLUSTER = "alpha"


class Store(NamedTuple):
    """A row of the page's table."""

    write: str
    ask: str


def documented(name: str) -> Store:
    (cells,) = re.findall(rf"^\| {name} \| `(\S+)` \| `(\S+)` \|$", PAGE, re.MULTILINE)
    return Store(*cells)


def path(url: str) -> str:
    return "/" + url.split("/", 3)[3]


class StoreFrontend(NamedTuple):
    """The store's addresses on this machine, and how it is queried beyond them."""

    store: Store
    tsdb: dict[str, str]
    agent: tuple[str, ...]
    other_tenant: str
    """An address that is led to a store without the job."""


@pytest.fixture(params=["VictoriaMetrics, cluster", "Mimir"])
def front(
    request: pytest.FixtureRequest, tmp_path: Path, long_form: bool
) -> Iterator[StoreFrontend]:
    if not long_form:
        pytest.skip("only with --long")
    if why_not := nginx.missing() or victoriametrics.missing() or prometheus.missing():
        pytest.skip(why_not)
    (port,) = free_ports(1)
    made = documented(request.param)
    here = Store(*(f"http://127.0.0.1:{port}{path(each)}" for each in made))
    (tmp_path / "nginx").mkdir()
    with contextlib.ExitStack() as stack:
        if request.param == "Mimir":
            document = yaml.safe_load(re.findall(r"```yaml\n(tsdb:.*?)```", PAGE, re.DOTALL)[0])
            assert document["tsdb"]["url"] == made.ask
            header = document["tsdb"]["header"]
            (flag,) = re.findall(r"`(-remoteWrite\.headers=\S+)`", PAGE)
            receiver = "--web.enable-remote-write-receiver"
            folder = tmp_path / "prometheus"
            folder.mkdir()
            server = prometheus.at(*free_ports(1), folder, {"global": {}}, receiver)
            url = stack.enter_context(server).url
            blocks = _of_mimir(port, made, url, header)
            front = StoreFrontend(here, {"header": header}, (flag,), "")
        else:
            urls = [
                stack.enter_context(victoriametrics.store(tmp_path / name)).url for name in "01"
            ]
            blocks = _of_a_cluster(port, made, urls)
            front = StoreFrontend(here, {}, (), here.ask.replace("/0/", "/1/"))
        stack.enter_context(nginx.running(tmp_path / "nginx", blocks))
        yield front


def _of_a_cluster(port: int, store: Store, tenants: list[str]) -> str:
    """`/insert/0/…` and `/select/0/…` lead to the first tenant's, `/…/1/…` to the second's."""
    locations = ""
    for number, url in enumerate(tenants):
        for each in (path(store.write).removesuffix("/api/v1/write"), path(store.ask)):
            here = each.replace("/0/", f"/{number}/")
            locations += f"location {here}/ {{ proxy_pass {url}/; }}\n"
    return f"server {{ listen 127.0.0.1:{port};\n{locations}location / {{ return 400; }}\n}}\n"


def _of_mimir(port: int, store: Store, url: str, header: str) -> str:
    name, _, tenant = header.partition(": ")
    variable = "$http_" + name.lower().replace("-", "_")
    return (
        f"server {{ listen 127.0.0.1:{port};\n"
        f'if ({variable} != "{tenant}") {{ return 401; }}\n'
        f"location = {path(store.write)} {{ proxy_pass {url}/api/v1/write; }}\n"
        f"location {path(store.ask)}/ {{ proxy_pass {url}/; }}\n"
        "location / { return 404; }\n}\n"
    )


@contextlib.contextmanager
def scraped(node: exporter.Target, front: StoreFrontend, folder: Path) -> Iterator[None]:
    """An agent scrapes the node each second, and sends to the store."""
    labels = {"cluster": CLUSTER, "instance": recorded_job.NODE}
    target = {"targets": [node.address], "labels": labels}
    config = folder / "scrape.yml"
    config.write_text(yaml.safe_dump({
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "batchjob_exporter", "static_configs": [target]}],
    }))  # fmt: skip
    flags = [
        f"-promscrape.config={config}", f"-remoteWrite.tmpDataPath={folder / 'queue'}",
        f"-remoteWrite.url={front.store.write}", *front.agent,
    ]  # fmt: skip
    with victoriametrics.agent(flags, folder / "agent.log"):
        yield


def query_samples(
    front: StoreFrontend, query: str, url: str = "", *, as_tenant: bool = True
) -> list[object]:
    request = urllib.request.Request(f"{url or front.store.ask}/api/v1/query?query={query}")
    if as_tenant and "header" in front.tsdb:
        request.add_header(*front.tsdb["header"].split(": "))
    with urllib.request.urlopen(request, timeout=scaled(30)) as answer:
        return list(json.load(answer)["data"]["result"])


def test_job_is_measured_and_shown(front, unpacked, as_recorded, tmp_path):
    began = int(time.time()) - 60
    config, database = tmp_path / "batchjob.yml", tmp_path / "jobs.db"
    tsdb = {"url": front.store.ask, **front.tsdb}
    source = {"jsonl": {"path": str(tmp_path / "jobs.jsonl")}}
    poller = {
        "db": {"url": f"sqlite:///{database}"},
        "tsdb": {**tsdb, "scrape-interval": "1s", "linger": "2s"},
        "clusters": [{"name": CLUSTER, "sources": source}],
    }
    config.write_text(yaml.safe_dump(poller))
    run = (sys.executable, "-m", "batchjob_stats_db.main", f"--config.file={config}")
    call(*run, "migrate")
    flags = recorded_job.exporter_flags(unpacked(recorded_job.TREE))
    with exporter.running(*flags) as node, scraped(node, front, tmp_path):
        until(lambda: query_samples(front, "count_over_time(up[1h])>5"), "scrapes", 120)
        (tmp_path / "jobs.jsonl").write_text(json.dumps(recorded_job.record(began)) + "\n")
        used = until(lambda: call(*run, "--once") or _used(database), "the job is measured", 120, 1)
        assert used == pytest.approx(recorded_job.CPU_SECONDS, rel=1e-3)
        settings = tmp_path / "server.yml"
        settings.write_text(yaml.safe_dump({"db": poller["db"], "tsdb": tsdb}))
        argv = [sys.executable, "-m", "batchjob_stats_server.main", f"--config.file={settings}"]
        token = call(*argv, "token", "root", "--role=admin").strip()
        with recorded_job.serving(argv, token, tmp_path / "log", dict(os.environ)) as api:
            assert 0 < recorded_job.cpu_seconds_in_api(api, CLUSTER) <= used
    if front.other_tenant:
        assert query_samples(front, "up", front.other_tenant) == []
    if front.tsdb:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            query_samples(front, "up", as_tenant=False)


def _used(database: Path) -> float:
    with contextlib.closing(sqlite3.connect(database)) as db:
        found = db.execute("SELECT user_cpu_seconds + system_cpu_seconds FROM job_usage").fetchall()
    return float(found[0][0] or 0) if found else 0.0

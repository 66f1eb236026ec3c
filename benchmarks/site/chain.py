"""Simulated nodes → store → poller on PostgreSQL → server → people, and what each of them takes."""

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
import yaml

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import writer_engine
from benchmarks.site.processes import answers, cpu_seconds, get, wait
from benchmarks.site.store import Store, store
from tests.batchjob_stats_db import postgresql_server
from tests.e2e import exporter
from tests.helpers.processes import daemon, free_ports

CLUSTER = "site"


class Form(NamedTuple):
    """A run; times in seconds."""

    nodes: int
    jobs: int = 10
    job_seconds: float = 600.0
    interval: float = 30.0
    clients: int = 50
    asking: float = 40.0
    store: str = "victoria-metrics"

    @property
    def watched(self) -> float:
        """Until jobs have settled, and three intervals more."""
        return 7 * self.interval


class Totals(NamedTuple):
    """What has been counted up to a moment."""

    time: float
    cpu: Mapping[str, float]
    """Seconds of each part."""
    counts: Mapping[str, float]


def scrape_configuration(form: Form, port: int, folder: Path) -> Path:
    """A file for the store with a target for each node."""
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {
            "__metrics_path__": f"/n{node:05}/metrics", "instance": f"n{node:05}",
            "cluster": CLUSTER,
        }}
        for node in range(form.nodes)
    ]  # fmt: skip
    (folder / "targets.json").write_text(json.dumps(targets))
    config = folder / "scrape.yml"
    config.write_text(yaml.safe_dump({
        "global": {"scrape_interval": f"{form.interval:g}s"},
        "scrape_configs": [{
            "job_name": "batchjob_exporter",
            "file_sd_configs": [{"files": [str(folder / "targets.json")]}],
        }],
    }))  # fmt: skip
    return config


class Chain(NamedTuple):
    """All parts as they run."""

    form: Form
    folder: Path
    pids: Mapping[str, int]
    nodes_url: str
    store: Store
    poller_url: str
    server_port: int
    engine: sa.Engine

    def totals(self) -> Totals:
        """As of now."""
        cpu = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        counts = {**self.store.counts(), **json.loads(get(f"{self.nodes_url}/counts"))}
        return Totals(time.monotonic(), cpu, {**counts, "measured": self.measured()})

    def measured(self) -> float:
        """Jobs that the poller has measured."""
        return self._of_poller("measured_jobs_total")

    def poll_seconds(self) -> float:
        """How long the last poll took, with the queries for what jobs used."""
        return self._of_poller("poll_duration_seconds")

    def failed_queries(self) -> float:
        """Steps of the poller that failed."""
        return self._of_poller("step_errors_total")

    def _of_poller(self, name: str) -> float:
        found = exporter.parse(get(f"{self.poller_url}/metrics").decode(), 0)
        return found.total(f"batchjob_stats_db_{name}")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it is so, as long as all parts run."""
        wait(condition, what, self.pids, self.folder)

    def on_record(self) -> int:
        with self.engine.connect() as db:
            return db.execute(sa.select(sa.func.count()).select_from(schema.job)).scalar_one()


@contextlib.contextmanager
def running(form: Form, text: str, folder: Path) -> Iterator[Chain]:
    """Start everything."""
    nodes_port, poller_port, server_port = free_ports(3)
    accounting = folder / "jobs.jsonl"
    accounting.touch()
    (folder / "exposition").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "MALLOC_ARENA_MAX": "1"}
    python = [sys.executable, "-m"]
    nodes_url = f"http://127.0.0.1:{nodes_port}"
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgresql_server.running(Path("/var/tmp")))
        url = database.database("batchjob")
        engine = writer_engine(url)
        migrate(engine)
        stack.callback(engine.dispose)
        nodes = stack.enter_context(daemon(
            [*python, "benchmarks.site.nodes", str(folder / "exposition"),
             f"--port={nodes_port}", f"--accounting={accounting}", f"--nodes={form.nodes}",
             f"--jobs={form.jobs}", f"--job-seconds={form.job_seconds}",
             f"--linger={form.interval}"],
            folder / "nodes.log", environment,
        ))  # fmt: skip
        pids = {"postgresql": database.pid, "nodes": nodes.pid}
        wait(lambda: answers(f"{nodes_url}/counts"), "simulated nodes", pids, folder)
        config = scrape_configuration(form, nodes_port, folder)
        series = stack.enter_context(store(form.store, config, folder))
        tsdb = {"url": series.url, "scrape-interval": f"{form.interval:g}s"}
        tsdb["linger"] = f"{form.interval:g}s"
        (folder / "poller.yml").write_text(yaml.safe_dump({
            "db": {"url": url.render_as_string()}, "tsdb": tsdb,
            "web": {"listen-address": f"127.0.0.1:{poller_port}"},
            "poll": {"interval": f"{form.interval:g}s"},
            "clusters": [{"name": CLUSTER, "sources": {"jsonl": {"path": str(accounting)}}}],
        }))  # fmt: skip
        poller = stack.enter_context(daemon(
            [*python, "batchjob_stats_db", f"--config.file={folder}/poller.yml"],
            folder / "poller.log", environment,
        ))  # fmt: skip
        (folder / "server.yml").write_text(yaml.safe_dump({
            "db": {"url": url.render_as_string()}, "tsdb": tsdb,
            "web": {"listen-address": f"127.0.0.1:{server_port}"},
            "limit": {"user-rate": 0, "peer-rate": 0},
        }))  # fmt: skip
        server = stack.enter_context(daemon(
            [*python, "batchjob_stats_server", f"--config.file={folder}/server.yml"],
            folder / "server.log", environment,
        ))  # fmt: skip
        poller_url = f"http://127.0.0.1:{poller_port}"
        pids |= {"store": series.pid, "poller": poller.pid, "server": server.pid}
        for name, port in (("poller", poller_port), ("server", server_port)):
            url_of_health = f"http://127.0.0.1:{port}/-/healthy"
            wait(functools.partial(answers, url_of_health), name, pids, folder)
        yield Chain(form, folder, pids, nodes_url, series, poller_url, server_port, engine)

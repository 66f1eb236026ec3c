"""Simulated nodes → store → poller on PostgreSQL → server → people, and what each of them takes."""

import contextlib
import functools
import http.client
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
import yaml

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.engine import writer
from batchjob_stats_db.database.tokens import TokenRole
from benchmarks import trees
from benchmarks.site.nodes import USERS
from tests.batchjob_stats_db import postgresql_server
from tests.e2e import exporter
from tests.e2e.processes import daemon, free_ports, until

CLUSTER = "site"
PAUSE_SECONDS = 2.0  # of a client between two questions
PATIENCE_SECONDS = 1800.0  # for a step of the start; a part that has ended is told at once
QUESTIONS = (
    ("user", "/api/v1/jobs"), ("user", "/jobs"), ("user", "/"), ("admin", "/api/v1/jobs"),
    ("admin", "/api/v1/jobs?state=COMPLETED"), ("admin", "/api/v1/jobs?running=true"),
    ("admin", "/api/v1/usage?by=account"), ("admin", "/clusters/site"), ("admin", "/admin"),
)  # fmt: skip


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


def exposition(jobs: int) -> str:
    """What a real exporter says of a node with so many jobs. Needs root."""
    with (
        trees.make("copy", jobs) as tree,
        contextlib.redirect_stdout(sys.stderr),
        exporter.running(f"--path.cgroupfs={tree.cgroupfs}") as target,
    ):
        until(lambda: len(target.scrape().series("batchjob_job_info")) >= jobs, "jobs", 60, 0.5)
        tree.stir()
        return target.scrape().text


def get(url: str, **headers: str) -> bytes:
    """The body of an answer."""
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def wait(condition: Callable[[], bool], what: str, pids: Mapping[str, int], folder: Path) -> None:
    """Until it is so; AssertionError with the last words of a part that has ended meanwhile."""

    def met() -> bool:
        for name, pid in pids.items():
            log = folder / f"{name}.log"
            words = log.read_text()[-2000:] if log.exists() else ""
            assert runs(pid), f"{what}: {name} has ended: {words}"
        with contextlib.suppress(OSError):  # a store that takes in its first series may not answer
            return condition()
        return False

    until(met, f"{what}: {folder}", PATIENCE_SECONDS, 0.5)


def runs(pid: int) -> bool:
    """Whether this child of ours has not ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


class Store(NamedTuple):
    """VictoriaMetrics or Prometheus, that scrapes and answers."""

    kind: str
    url: str
    pid: int
    data: Path

    def counts(self) -> dict[str, float]:
        """Samples and questions so far, series of the last hour."""
        own = exporter.parse(get(f"{self.url}/metrics").decode(), 0).samples

        def total(name: str, label: str = "", pattern: str = "") -> float:
            found = own.get(name, [])
            return sum(v for labels, v in found if re.search(pattern, labels.get(label, "")))

        if self.kind == "prometheus":
            return {
                "samples": total("prometheus_tsdb_head_samples_appended_total"),
                "queries": total(
                    "prometheus_http_request_duration_seconds_count",
                    "handler", "^/api/v1/(query|series)",
                ),
                "series": total("prometheus_tsdb_head_series"),
            }  # fmt: skip
        return {
            "samples": total("vm_rows_inserted_total", "type", "promscrape"),
            "queries": total("vm_http_requests_total", "path", "/api/v1/(query|series)"),
            "series": total("vm_cache_entries", "type", "hour_metric_ids"),
        }

    def up(self) -> float:
        """How many nodes were scraped well the last time."""
        answer = json.loads(get(f"{self.url}/api/v1/query?nocache=1&query=count(up==1)"))
        result = answer["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0


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


@contextlib.contextmanager
def store(kind: str, config: Path, folder: Path) -> Iterator[Store]:
    """Start one that scrapes as the file says, and wait for it."""
    (port,) = free_ports(1)
    data = folder / "series"
    argv = {
        "prometheus": [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ],
        "victoria-metrics": [
            "victoria-metrics", f"-promscrape.config={config}", f"-storageDataPath={data}",
            f"-httpListenAddr=127.0.0.1:{port}", "-loggerLevel=WARN",
        ],
    }[kind]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    health = {"prometheus": "/-/ready", "victoria-metrics": "/health"}[kind]
    with daemon(argv, folder / "store.log", patience=60) as process:
        wait(lambda: answers(url + health), kind, {"store": process.pid}, folder)
        yield Store(kind, url, process.pid, data)


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
        found = exporter.parse(get(f"{self.poller_url}/metrics").decode(), 0)
        return found.total("batchjob_stats_db_measured_jobs_total")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it is so, as long as all parts run."""
        wait(condition, what, self.pids, self.folder)

    def on_record(self) -> int:
        with self.engine.connect() as db:
            return db.execute(sa.select(sa.func.count()).select_from(schema.job)).scalar_one()


def cpu_seconds(pid: int) -> float:
    """Of a process, its children that run, and those that have ended."""
    ticks = 0
    for process in (pid, *children(pid)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11 : 15 if process == pid else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


def memory_bytes(pid: int) -> int:
    """Proportional, so that what processes share counts once."""
    total = 0
    for process in (pid, *children(pid)):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
            total += 1024 * int(match[1]) if match else 0
    return total


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
        engine = writer(url)
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


def client(
    chain: Chain, number: int, given: Mapping[str, str], until_time: float
) -> Iterator[tuple[str, float]]:
    """Questions in a random order with pauses: which it was, and milliseconds to the answer."""
    dice = random.Random(number)
    connection = http.client.HTTPConnection("127.0.0.1", chain.server_port, timeout=60)
    time.sleep(dice.uniform(0, PAUSE_SECONDS))
    while time.monotonic() < until_time:
        role, path = dice.choice(QUESTIONS)
        headers = {"Authorization": f"Bearer {given[role]}", "Accept-Encoding": "gzip"}
        if not path.startswith("/api/"):
            headers["Accept"] = "text/html"
        begun = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 303), f"{path}: {answer.status}"
        yield f"{role} {path}", 1000 * (time.perf_counter() - begun)
        time.sleep(dice.uniform(0, 2 * PAUSE_SECONDS))
    connection.close()


def asked(chain: Chain) -> dict[str, list[float]]:
    """Milliseconds of the answers to all clients, by question."""
    form, now = chain.form, int(time.time())
    with chain.engine.begin() as db:
        admin = tokens.create(db, "root", TokenRole.ADMIN, "benchmark", now)
        users = [
            tokens.create(db, f"user{n % USERS:04}", TokenRole.USER, "benchmark", now)
            for n in range(form.clients)
        ]
    found: dict[str, list[float]] = {}
    failures: list[BaseException] = []
    until_time = time.monotonic() + form.asking

    def work(number: int) -> None:
        try:
            given = {"user": users[number], "admin": admin}
            for question, milliseconds in client(chain, number, given, until_time):
                found.setdefault(question, []).append(milliseconds)
        except Exception as error:  # told by the one who waits for all
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(form.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return found


def measured(form: Form, text: str) -> dict[str, float]:
    """Run a site and say what it took, by the name of the figure."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="bj-site-") as folder,
        running(form, text, Path(folder)) as chain,
    ):
        first = form.nodes * form.jobs
        chain.wait(lambda: chain.on_record() >= first, "the first poll")
        chain.wait(lambda: chain.store.up() >= form.nodes, f"{form.nodes} nodes up")
        before = chain.totals()
        time.sleep(form.watched)
        chain.wait(lambda: chain.measured() > before.counts["measured"], "measured jobs")
        after = chain.totals()
        up = chain.store.up()
        answered = asked(chain)
        last = chain.totals()
        found = costs(form, before, after)
        found["nodes up"] = up
        found |= answer_times(answered)
        spent = last.cpu["server"] - after.cpu["server"]
        found["server, % of a core, asked"] = 100 * spent / (last.time - after.time)
        for name, pid in chain.pids.items():
            found[f"{name}, MB"] = memory_bytes(pid) / 1e6
        return found


def costs(form: Form, before: Totals, after: Totals) -> dict[str, float]:
    """What happened between two moments without people."""
    seconds = after.time - before.time
    delta = {name: after.counts[name] - before.counts[name] for name in after.counts}
    cpu = {name: after.cpu[name] - before.cpu[name] for name in after.cpu}
    samples = delta["samples"] / seconds
    found = {
        "series at once": samples * form.interval,
        "series in the store": after.counts["series"],
        "samples/s": samples,
        "bytes of a scrape, gzip": delta["wire_bytes"] / delta["pages"],
        "bytes of a scrape, text": delta["text_bytes"] / delta["pages"],
        "jobs ended/h": 3600 * delta["ended"] / seconds,
        "jobs measured": delta["measured"],
        "queries, a cycle": delta["queries"] * form.interval / seconds,
        "queries, 1000 jobs": 1000 * delta["queries"] / max(1.0, delta["measured"]),
        "poller CPU s, 1000 jobs": 1000 * cpu["poller"] / max(1.0, delta["measured"]),
        "store CPU ms, 1000 samples": 1e6 * cpu["store"] / max(1.0, delta["samples"]),
    }
    return found | {f"{name}, % of a core": 100 * spent / seconds for name, spent in cpu.items()}


def answer_times(answered: Mapping[str, list[float]]) -> dict[str, float]:
    """Percentiles of all answers, and the median of each question."""
    everything = [each for times in answered.values() for each in times]
    parts = statistics.quantiles(everything, n=100, method="inclusive")
    found = {"answers": float(len(everything)), "ms, median": parts[49], "ms, 99 %": parts[98]}
    return found | {f"ms, {name}": statistics.median(answered[name]) for name in sorted(answered)}

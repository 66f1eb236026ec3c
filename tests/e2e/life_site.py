"""A real site whose views are looked at: Slurm, exporters, measurements, poller and server.

Prometheus and the poller can be away for a while. What the jobs truly use is in `watched_jobs`.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from sqlalchemy.engine import Engine

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, reader_engine, writer_engine
from batchjob_stats_db.database.tokens import TokenRole, create
from tests.e2e import exporter, prometheus, slurm
from tests.e2e.life_measurements import (
    InFiles,
    InPrometheus,
    Measurements,
    Source,
    Switch,
    agent,
    prometheus_at,
    scraping,
)
from tests.e2e.watched_jobs import JobWatcher, WatchedJob
from tests.grafana import dashboard_client, stack
from tests.helpers.processes import free_ports
from tests.helpers.waiting import scaled, until
from tests.life.discrepancies import Expectation, discrepancies
from tests.life.views import Figures, View

USERS = ("alice", "bob", "carol", "dave")
SCRAPE, LINGER, REFRESH = WatchedJob.interval, 30, 60  # seconds
FRESH = 30  # seconds by which live figures may be late: they are kept for 15, and scrapes are apart
PATIENCE = 120  # seconds in which a view must come to show what is known by now
HIERARCHIES = ("cpuacct", "cpuset", "devices", "freezer", "memory")
# What the other node's slurmd keeps is out of sight of a node's exporter.
# Sample files have the machine's name.
ALONE = 'hostname {} && for each in {}; do mount -t tmpfs none "$each" || exit 125; done; exec "$@"'


class LifeSite(NamedTuple):
    """See `ObservedSite`; and what can be done to it."""

    url: str
    cluster: str
    headers: Mapping[str, str]
    tokens: Mapping[str, str]
    reader: Engine
    interval: int
    exporters: Mapping[str, exporter.Target]  # by node
    watch: JobWatcher
    slurm: slurm.Cluster
    measurements: Measurements
    tsdb: Switch | None
    poller: Switch
    gate: Switch | None  # through which an agent sends what it scraped
    recompute: Callable[[], None]

    def now(self) -> float:
        """The time."""
        return time.time()

    def scraped_samples(self) -> list[str]:
        """See ObservedSite."""
        return [
            line.replace("{", f'{{instance="{node}",', 1)
            for node, target in self.exporters.items()
            for line in target.scrape(timeout=scaled(60)).text.splitlines()
            if line.startswith("batchjob_job_")
        ]

    def state(self, run: WatchedJob) -> str:
        """Its state in the database."""
        return str(self._row(run).get("state"))

    def ended(self, run: WatchedJob) -> int:
        """When it ended, as the database has it."""
        return int(self._row(run)["end_time"])

    def is_final(self, run: WatchedJob) -> bool:
        """Whether the poller has measured it for the last time."""
        row = self._row(run)
        return bool(row and row["samples"] and row["usage_due_time"] is None)

    def stored(self, run: WatchedJob) -> int | None:
        """Until when the poller has measured it."""
        row = self._row(run)
        return int(row["until_time"]) if row.get("samples") else None

    def _row(self, run: WatchedJob) -> Mapping[str, Any]:
        query = (
            "SELECT * FROM job LEFT JOIN job_usage ON job_usage.job_id = job.id "
            f"WHERE jobid = '{run.jobid}' AND submit_time = {run.submit}"
        )
        with self.reader.connect() as db:
            row = db.exec_driver_sql(query).mappings().first()
        return dict(row or {})

    def _note_samples(self, run: WatchedJob) -> None:
        with contextlib.suppress(OSError):  # it is away
            run.sample_times = self.measurements.times(run)

    def view_discrepancies(
        self, name: str, view: View, run: WatchedJob, known: Expectation
    ) -> list[str]:
        """What a view shows that is not true; `known` lacks what depends on the time.

        It may show what was true before, as of the time that it says, or nothing, as long as it
        comes to show what is known by now.
        """
        deadline = time.monotonic() + scaled(PATIENCE)
        while True:
            begun, stored = time.time(), self.stored(run)
            try:
                shown = view(self, run)
            except (
                AssertionError, LookupError, OSError, ValueError, dashboard_client.PanelError,
            ) as error:  # fmt: skip
                return [repr(error)]
            now = int(self.watch.wait_for_readings()) + 1
            self._note_samples(run)
            fresh = int(max(run.start, min(run.end, begun) - FRESH))
            since = (
                fresh
                if known.known_until is None and known.state != "PENDING"
                else known.known_until
            )
            by_now = known._replace(
                known_until=since, stored_until=stored, node_until=fresh, read_seconds=now - begun
            )
            if run.sample_times:
                at = min(shown.get("until") or now, run.end)
                by_now = by_now._replace(min_coverage=max(0.01, min(1.0, run.coverage_at(at))))
            found = _faults(name, shown, run, by_now, now)
            if not found:
                return []
            before = None if since is None else run.start
            at_all = by_now._replace(known_until=before, stored_until=before, node_until=before)
            told = {figure: value for figure, value in shown.items() if value is not None}
            if time.monotonic() > deadline or _faults(name, told, run, at_all, now):
                return [f"{fault} ({shown})" for fault in found]
            time.sleep(1)


def _faults(name: str, shown: Figures, run: WatchedJob, known: Expectation, now: int) -> list[str]:
    """Where there is no better, a page has accounting's figures of an ended job, without a word."""
    found = list(discrepancies(name, shown, run, known, now))
    if now > run.end and not known.final and "cpu_efficiency" in shown and "basis" not in shown:
        accounted = {**shown, "basis": "accounting"}
        return found and list(discrepancies(name, accounted, run, known, now))
    return found


@contextlib.contextmanager
def running(folder: Path, source: Source) -> Iterator[LifeSite]:
    """Start everything."""
    with contextlib.ExitStack() as made:
        cluster = made.enter_context(slurm.cluster(cgroup=1, nodes=2))
        # Slurm makes a node's directories with its first job.
        cluster.wait(cluster.submit("dave", "srun true", "--nodes=2", "--ntasks=2"))
        samples = folder / "samples" if source is Source.SAMPLES else None
        program = ("tests.e2e.recording", str(samples)) if samples else exporter.PROGRAM
        exporters = {
            node: made.enter_context(
                exporter.running(
                    f"--collector.jobs.linger={LINGER}s",
                    inside=alone(cluster, node),
                    program=program,
                )
            )
            for node in cluster.nodes
        }
        ports = free_ports(3)
        poller, server, store = (f"127.0.0.1:{port}" for port in ports)
        config = configuration(folder, cluster, store, poller, server, samples)
        url = parse_url(f"sqlite:///{folder}/jobs.db")
        tokens = _tokens(url)
        measurements: Measurements = InPrometheus(prometheus.Server(f"http://{store}"))
        gate = tsdb = None
        if samples:
            measurements = InFiles(samples)
        else:
            scraped = scraping(folder, exporters, poller, server, SCRAPE)
            if source is Source.AGENT:
                gate = made.enter_context(agent(folder, scraped, f"http://{store}"))
                scraped = {}
            tsdb = prometheus_at(ports[2], folder, scraped, made)
        polling, environ = config / "stats_db.yml", environ_of(cluster)
        polls = Switch(
            lambda: stack.running_program(
                "batchjob_stats_db", polling, inside=cluster.inside(), environ=environ
            )
        )
        made.callback(polls.off)
        made.enter_context(stack.running_program("batchjob_stats_server", config / "server.yml"))
        grafana = dashboard_client.GrafanaClient(f"http://{server}", stack.data_source_headers)
        until(lambda: stack.api_rows(grafana, "/jobs") is not None, "the server", 300, 1)
        watch = made.enter_context(JobWatcher())
        engine = reader_engine(url)
        made.callback(engine.dispose)
        headers = {"X-Grafana-User": stack.OPERATOR, "X-Batchjob-Secret": stack.SECRET}
        yield LifeSite(
            f"http://{server}", stack.CLUSTER, headers, tokens, engine, SCRAPE, exporters, watch,
            cluster, measurements, tsdb, polls, gate, lambda: _recompute(polling),
        )  # fmt: skip


def alone(cluster: slurm.Cluster, node: str) -> list[str]:
    others = (
        f"/sys/fs/cgroup/{hierarchy}/slurm_{other}"
        for hierarchy in HIERARCHIES
        for other in cluster.nodes
        if other != node
    )
    alone = ALONE.format(node, " ".join(others))
    return cluster.inside("unshare", "--uts", "sh", "-c", alone, "alone")


def environ_of(cluster: slurm.Cluster) -> dict[str, str]:
    path = os.pathsep.join((cluster.environ["PATH"], os.environ["PATH"]))
    return {**cluster.environ, "PATH": path}


def configuration(
    folder: Path, cluster: slurm.Cluster, store: str, poller: str, server: str,
    samples: Path | None,
) -> Path:  # fmt: skip
    sources = {"sacct": {}, "sacctmgr": {"slurm-cluster": cluster.name}}
    config = stack.write_configuration(folder, f"http://{store}", sources, poller, server)
    times = {"scrape-interval": SCRAPE, "linger": LINGER, "refresh": REFRESH}
    for name in ("stats_db.yml", "server.yml"):
        settings = yaml.safe_load((config / name).read_text())
        if samples:
            settings.pop("tsdb")
        else:
            settings["tsdb"] |= {key: f"{seconds}s" for key, seconds in times.items()}
        if samples and name == "stats_db.yml":
            settings["clusters"][0]["samples"] = str(samples)
        elif samples:
            settings["samples"] = {"directory": str(samples)}
        (config / name).write_text(yaml.safe_dump(settings))
    return config


def _tokens(url: Any) -> dict[str, str]:
    engine = writer_engine(url, create=True)
    migrate(engine)
    with engine.begin() as db:
        made = {user: create(db, user, TokenRole.USER, "test", 0) for user in USERS}
    engine.dispose()
    return made


def _recompute(settings: Path) -> None:
    """Have ended jobs measured again; no poller may run."""
    yesterday = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400))
    argv = [sys.executable, "-m", "batchjob_stats_db.main", "--config.file", str(settings)]
    environ = {**os.environ, "PYTHONPATH": str(stack.REPOSITORY)}
    subprocess.run(
        [*argv, "recompute", f"--since={yesterday}"], env=environ, check=True, timeout=scaled(600)
    )

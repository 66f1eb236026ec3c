"""A site of 200 nodes and 5 users that works on while one citizen is hostile.

Job records come as JSON lines, from PBS accounting logs and from a shared directory of runs, and
are read by the sources of those names. Usage comes from a store of time series in this process, to
which nodes can add lies. One poller writes the database, and one server answers from it.
"""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.registry import SOURCES
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.poller.options import (
    ClusterSettings,
    DatabaseOptions,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.base import Point, SeriesValue, TimeSeries
from batchjob_stats_server import app
from batchjob_stats_server.cluster_readings import NODE, ClusterReadings
from batchjob_stats_server.options import (
    AuthOptions,
    LimitOptions,
    ServerSettings,
    ServerWebOptions,
)
from batchjob_stats_server.services import build
from batchjob_stats_server.turns import TimeSeriesPool
from tests.helpers.waiting import scaled, until

NODES = [f"n{number:03}" for number in range(200)]
USERS = ("alice", "bob", "carol", "dave")
CITIZEN = "mallory"
BEGIN = 1_775_300_000
NODES_PER_JOB, CPUS, CPU_SECONDS, RUN_SECONDS = 4, 8, 100.0, 3600
ROUND_SECONDS = 4100  # until the jobs of a round have ended and are measured
POLL_SECONDS = 10.0  # what a poll and the answers after it may take
PROXY, SECRET = "192.0.2.10", "correct horse battery staple"
MAX_ROWS = 500  # of sums and bookkeeping, and 100 for each round; honest work needs fewer
_MOST_SECONDS = 1e17  # CPUs and seconds of the largest record that is possible
_FIELDS = (
    "jobid,state,start_time,end_time,allocated_cpus,usage_user_cpu_seconds,usage_nodes,"
    "usage_memory_peak_bytes"
)


class Job(NamedTuple):
    """What is true of a job."""

    jobid: str
    user: str
    start: int
    nodes: tuple[str, ...]

    @property
    def end(self) -> int:
        return self.start + RUN_SECONDS


class NodesOfSite:
    """The store of time series: what the nodes of each job say, and the lies of one of them."""

    source = "prometheus"

    def __init__(self, jobs: dict[str, Job]) -> None:
        self._jobs = jobs
        self.lies: list[Callable[[str], list[tuple[Statistic, SeriesValue]]]] = []
        self.latest_lies: list[SeriesValue] = []
        self.error_for: dict[str, Exception] = {}
        self.wait: Callable[[], object] = bool

    def measure(self, wanted, spans):
        found: dict[Statistic, list[SeriesValue]] = {statistic: [] for statistic in wanted}
        for span in spans:
            if span.jobid in self.error_for:
                raise self.error_for[span.jobid]
            job = self._jobs.get(span.jobid)
            for node in job.nodes if job else ():
                labels = series_labels(job, node)
                cpu = "batchjob_job_cpu_seconds_total"
                values = {Statistic.TOTAL: CPU_SECONDS, Statistic.COUNT: RUN_SECONDS / 30}
                for statistic in values.keys() & wanted.keys():
                    series = SeriesValue(cpu, {**labels, "mode": "user"}, values[statistic])
                    found[statistic].append(series)
            for lie in self.lies:
                for statistic, value in lie(span.jobid):
                    if statistic in wanted:
                        found[statistic].append(value)
        return found

    def measure_cluster(self, *_):
        return None

    def last_sample_times(self, metrics, spans):
        return []

    def job_series(self, query, span, bins):
        self.wait()
        found = []
        for series in self.latest_lies:
            matches = all(series.labels.get(k) in v for k, v in query.where.items())
            if series.metric == query.metric and matches:
                point = Point(span.start + 60.0, series.value, series.value, series.value)
                found.append(TimeSeries(series.labels, [point]))
        return found

    def latest(self, cluster, metrics, now, instance=""):
        self.wait()
        compute, scheduler = {"job": "nodes"}, {"job": "scheduler", "instance": "head:10913"}
        series = []
        for node in NODES:
            exporter = {**compute, "instance": f"{node}:10910"}
            series += [
                SeriesValue("batchjob_node_cpus", exporter, CPUS),
                SeriesValue(f"{NODE}info", {**scheduler, "node": node, "state": "idle"}, 1.0),
                SeriesValue(f"{NODE}cpus", {**scheduler, "node": node}, CPUS),
            ]
        return [each for each in series + self.latest_lies if each.metric in metrics]

    def scrape_ratios(self, cluster, metric, now, seconds):
        return []

    def node_series(self, *_):
        return []


def series_labels(job: Job, node: str, **changes: str) -> dict[str, str]:
    """Labels of a series of a job, as the node's exporter and the scrape configuration set them."""
    return {"cluster": "c1", "instance": f"{node}:10910", "manager": "slurm", "jobid": job.jobid,
            "user": job.user} | changes  # fmt: skip


def source(name: str, **options: str) -> Any:
    """A source of job records of the cluster."""
    module = SOURCES[name].load()
    return module.build("c1", module.options(**options))


class Site:
    """The site; `work()` is a round of its users, and `check()` compares all with what is true."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = BEGIN
        self.jobs: dict[str, Job] = {}
        self.nodes = NodesOfSite(self.jobs)
        for name in ("pbs", "data", "data/runs", "data/logs"):
            (directory / name).mkdir()
        for name in ("data/runs", "data/logs"):
            (directory / name).chmod(0o1777)
        self.json_lines = directory / "jobs.jsonl"
        self.json_lines.touch()
        self.data = directory / "data"
        url = f"sqlite:///{directory}/jobs.db"
        self.engine = writer_engine(parse_url(url), create=True)
        migrate(self.engine)
        self.poller = self._build_poller()
        self.services = self._build_services(url)
        self.client = TestClient(app.make(self.services), client=(PROXY, 50000))
        self.client.__enter__()
        self.undo: list[Callable[[], object]] = []  # what restores the site after an act
        self._rounds = 0
        for _ in range(2):
            self.work()

    def close(self) -> None:
        self.client.__exit__(None, None, None)
        self.engine.dispose()

    def _build_poller(self) -> Poller:
        sources = (
            source("jsonl", path=str(self.json_lines)),
            source("pbs_log", path=str(self.directory / "pbs"), time_zone="UTC", qstat=""),
            source("runs", path=str(self.data / "runs")),
        )
        cluster = ClusterSettings("c1", sources, (), TsdbOptions(url="http://tsdb"))

        def clock() -> float:
            return float(self.now)

        store = Store(self.engine, "c1", cluster.tsdb.policy(), clock)
        poll = PollOptions(interval=0.0, rollup_interval=0.0)
        return Poller(cluster, store, self.nodes, poll, RetentionOptions(), PollerMetrics(), clock)

    def _build_services(self, url: str):
        secret = self.directory / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        auth = AuthOptions(
            trusted_peer=(ip_network(PROXY),),
            secret_file=str(secret),
            viewer=("vera",),
            admin=("root",),
        )
        settings = ServerSettings(
            DatabaseOptions(url), ServerWebOptions(threads=4, allowed_host=("testserver",)), auth,
            limit=LimitOptions(user_rate=0.0, peer_rate=0.0),
        )  # fmt: skip
        services = build(settings)
        pool = TimeSeriesPool([self.nodes, self.nodes])
        return services._replace(
            clock=lambda: self.now, stores=pool, local_data=self.data,
            readings=ClusterReadings(pool, services.threads),
        )  # fmt: skip

    # What users and administrators do.

    def submit(self, user: str) -> Job:
        """A job of a user, which ends before the next poll; carol's and dave's through PBS."""
        number = len(self.jobs)
        names = tuple(NODES[(NODES_PER_JOB * number + each) % 200] for each in range(NODES_PER_JOB))
        pbs = user in ("carol", "dave")
        job = Job(f"{number}.srv" if pbs else str(number), user, self.now + 10, names)
        self.jobs[job.jobid] = job
        if pbs:
            self.write_pbs_line(job, self.pbs_attributes(job))
        else:
            self.write_json_line(self.json_record(job))
        return job

    def json_record(self, job: Job, **fields: Any) -> dict[str, Any]:
        return {
            "jobid": job.jobid, "user": job.user, "account": "physics", "submit_time": self.now,
            "start_time": job.start, "end_time": job.end, "state": "COMPLETED", "name": "train",
            "elapsed_seconds": RUN_SECONDS, "allocated_cpus": CPUS * NODES_PER_JOB,
            "allocated_nodes": NODES_PER_JOB, "nodes": list(job.nodes), **fields,
        }  # fmt: skip

    def write_json_line(self, record: object) -> None:
        text = record if isinstance(record, str) else json.dumps(record)
        with self.json_lines.open("a", encoding="utf-8", errors="surrogatepass") as file:
            file.write(f"{text}\n")

    def pbs_attributes(self, job: Job, text: str = "train") -> str:
        """As the server writes them; `text` is the user's, in front of what the server adds."""
        hosts = "+".join(f"{node}/0*{CPUS}" for node in job.nodes)
        vnodes = "+".join(f"({node}:ncpus={CPUS})" for node in job.nodes)
        return (
            f'user={job.user} group=users account="physics" jobname={text} queue=cpu '
            f"ctime={job.start - 10} qtime={job.start - 10} etime={job.start - 10} "
            f"start={job.start} exec_host={hosts} exec_vnode={vnodes} "
            f"Resource_List.ncpus={CPUS * NODES_PER_JOB} Resource_List.nodect={NODES_PER_JOB} "
            f"session=1 end={job.end} Exit_status=0 run_count=1"
        )

    def write_pbs_line(self, job: Job, attributes: str, kind: str = "E") -> None:
        at = datetime.fromtimestamp(job.end, UTC)
        path = self.directory / "pbs" / at.strftime("%Y%m%d")
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{at:%m/%d/%Y %H:%M:%S};{kind};{job.jobid};{attributes}\n")

    # What people ask.

    def identity(self, user: str) -> dict[str, str]:
        """Headers of a proxy that has logged a user in."""
        return {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET}

    def get(self, user: str, path: str, **headers: str):
        return self.client.get(path, headers={**self.identity(user), **headers})

    def token(self, user: str, role: TokenRole = TokenRole.USER) -> str:
        """The text of a new token."""
        with self.services.writer.begin() as db:
            return tokens.create(db, user, role, "test", self.now - 10)

    def bearer(self, user: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(user)}"}

    def find(self, db: sa.Connection, jobid: str) -> list[dict[str, Any]]:
        """The runs of an id in the database."""
        query = sa.select(schema.job).where(schema.job.c.jobid == jobid)
        return [dict(row) for row in db.execute(query).mappings()]

    def poll(self) -> None:
        """One cycle of the poller, a little later."""
        self.now += 60
        self.poller.run_cycle()

    def work(self) -> None:
        """Each user runs a job, and one poll reads it; raises AssertionError if figures changed."""
        self._rounds += 1
        new = [self.submit(user) for user in USERS]
        self.now += ROUND_SECONDS
        started = time.monotonic()
        self.poll()
        self.check(new)
        assert time.monotonic() - started < scaled(POLL_SECONDS), "a part stopped for too long"
        self.nodes.lies, self.nodes.latest_lies, self.nodes.error_for = [], [], {}
        while self.undo:
            self.undo.pop()()

    def check(self, new: list[Job]) -> None:
        """Compare what everybody sees with what is true."""
        for user in USERS:
            answer = self.get(user, f"/api/v1/jobs?limit=1&fields={_FIELDS}")
            assert answer.status_code == 200, answer.text
            (row,) = answer.json()
            assert row == self._row_of(next(job for job in new if job.user == user))
        answer = self.get(
            "vera", "/api/v1/usage?by=user&since=1775260800&until=2099-01-01T00:00:00Z"
        )
        assert answer.status_code == 200, answer.text
        sums = {row["user"]: row for row in answer.json() if row["user"] in USERS}
        assert sums.keys() == set(USERS)
        for user, row in sums.items():
            found = [row[name] for name in ("jobs_ended", "wall_seconds", "cpu_seconds")]
            each = (1, RUN_SECONDS, NODES_PER_JOB * CPU_SECONDS)
            assert found == pytest.approx([self._rounds * value for value in each]), user
        answer = self.get("vera", "/api/v1/usage?by=account&since=1775260800")
        assert answer.status_code == 200, answer.text
        for account in answer.json():
            seconds = {name: account[name] for name in account if name.endswith("seconds")}
            assert max(seconds.values()) < _MOST_SECONDS, seconds
        reading = until(lambda: self.services.readings.of("c1", self.now), "the cluster's nodes")
        assert reading.totals() == {"cpus": 200 * CPUS}
        assert {each.state for each in reading.nodes.values()} == {"idle"}
        assert self.client.get("/-/healthy").status_code == 200
        assert self.get("vera", "/clusters/c1", Accept="text/html").status_code == 200
        with self.engine.connect() as db:
            for table in (schema.rollup_due, schema.daily_usage):
                rows = db.scalar(sa.select(sa.func.count()).select_from(table))
                assert rows < MAX_ROWS + 100 * self._rounds, f"{table.name} has {rows} rows"

    def _row_of(self, job: Job) -> dict[str, Any]:
        return {
            "jobid": job.jobid, "state": "COMPLETED", "start_time": job.start * 1000,
            "end_time": job.end * 1000, "allocated_cpus": CPUS * NODES_PER_JOB,
            "usage_user_cpu_seconds": NODES_PER_JOB * CPU_SECONDS, "usage_nodes": NODES_PER_JOB,
            "usage_memory_peak_bytes": None,
        }  # fmt: skip

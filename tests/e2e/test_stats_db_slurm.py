"""A real Slurm with accounting, the exporter, a real Prometheus, and the poller that reads both."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
import yaml

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, reader_engine
from tests.e2e import exporter, prometheus, slurm
from tests.e2e.workload import command

pytestmark = pytest.mark.e2e

SCRAPE_INTERVAL = 5
LINGER = 10
LONG_SECONDS = 34
SHORT_JOBS = 6
REPOSITORY = Path(__file__).parents[2]

Row = Mapping[str, Any]


class Run(NamedTuple):
    """What the database has when all is over."""

    jobs: Mapping[str, Row]  # by raw id, with usage_… beside
    ids: Mapping[str, list[str]]  # kind of job → raw ids
    tables: Mapping[str, list[Row]]
    user_cpu: Mapping[str, float]  # by raw id, as sacct has it


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run jobs, poll, measure; the tests look at the rows."""
    why_not = slurm.missing(cgroup=1) or prometheus.missing()
    if why_not:
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("stats_db")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(slurm.cluster(cgroup=1))
        target = stack.enter_context(
            exporter.running(
                "--collector.disable-defaults", "--collector.jobs", inside=cluster.inside()
            )
        )
        label = [{"target_label": "cluster", "replacement": "alpha"}]
        tsdb = stack.enter_context(
            prometheus.server([target.address], f"{SCRAPE_INTERVAL}s", relabel_configs=label)
        )
        submitted = {
            "long": cluster.submit("alice", command(cpu=LONG_SECONDS)),
            "failed": cluster.submit("bob", f"{command(cpu=1)}; exit 3"),
            "short": cluster.submit("carol", command(cpu=0.3), f"--array=1-{SHORT_JOBS}"),
        }
        poll = Poll(folder, cluster, tsdb.url)
        poll("migrate")
        poll("--once")  # while they run
        cluster.wait(*submitted.values(), timeout=240)
        ids = {kind: cluster.raw_ids(job) for kind, job in submitted.items()}
        everything = [job for jobs in ids.values() for job in jobs]
        cluster.wait(*everything, timeout=120)
        accounting = {job: cluster.sacct(job, ("UserCPU", "TotalCPU")) for job in everything}
        time.sleep(LINGER + 3 * SCRAPE_INTERVAL + 1)
        poll("--once")
        poll("--once")
        yield _rows(poll.url, ids, accounting)


class Poll:
    """Runs the poller's command where Slurm's users exist."""

    def __init__(
        self,
        folder: Path,
        cluster: slurm.Cluster,
        tsdb: str = "",
        sacct: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = f"sqlite:///{folder}/jobs.db"
        self._config = folder / "stats_db.yml"
        self._cluster = cluster
        config: dict[str, Any] = {
            "db": {"url": self.url},
            "clusters": [{"name": "alpha", "sources": {"sacct": dict(sacct or {})}}],
        }
        if tsdb:
            times = {"scrape-interval": f"{SCRAPE_INTERVAL}s", "linger": f"{LINGER}s"}
            config["tsdb"] = {"url": tsdb, **times}
        self._config.write_text(yaml.safe_dump(config))

    def rows(self, table: str) -> list[Row]:
        """All rows of a table."""
        return _tables(self.url)[table]

    def __call__(self, *arguments: str) -> None:
        argv = [sys.executable, "-m", "batchjob_stats_db.main"]
        argv += ["--config.file", str(self._config), *arguments]
        environ = {**self._cluster.environ, "PYTHONPATH": str(REPOSITORY)}
        environ["PATH"] = os.pathsep.join((environ["PATH"], os.environ["PATH"]))
        done = subprocess.run(
            self._cluster.inside(*argv), env=environ, capture_output=True, text=True, check=False
        )
        print(done.stdout, done.stderr)
        assert done.returncode == 0, done.stderr


def _tables(url: str) -> dict[str, list[Row]]:
    engine = reader_engine(parse_url(url))
    with engine.connect() as db:
        tables: dict[str, list[Row]] = {
            table.name: [dict(row) for row in db.execute(sa.select(table)).mappings()]
            for table in schema.metadata.sorted_tables
        }
    engine.dispose()
    return tables


def _rows(url: str, ids: Mapping[str, list[str]], accounting: Mapping[str, Any]) -> Run:
    tables = _tables(url)
    usage = {row["job_id"]: row for row in tables["job_usage"]}
    jobs = {row["jobid"]: {**row, "usage": usage.get(row["id"])} for row in tables["job"]}
    seconds = {job: _seconds(rows[0]["TotalCPU"]) for job, rows in accounting.items()}
    return Run(jobs, ids, tables, seconds)


def _seconds(text: str) -> float:
    total = 0.0
    for part in text.replace("-", ":").split(":"):
        total = total * 60 + float(part)
    return total


def test_every_job_is_there_once(run: Run) -> None:
    everything = sorted(job for jobs in run.ids.values() for job in jobs)
    assert sorted(row["jobid"] for row in run.tables["job"]) == everything
    assert len(everything) == 2 + SHORT_JOBS


def test_who_ran_what(run: Run) -> None:
    (long,) = run.ids["long"]
    (failed,) = run.ids["failed"]
    assert run.jobs[long]["username"] == "alice"
    assert run.jobs[long]["state"] == "COMPLETED"
    assert (run.jobs[failed]["state"], run.jobs[failed]["exit_code"]) == ("FAILED", 3)
    assert {run.jobs[job]["username"] for job in run.ids["short"]} == {"carol"}
    assert {run.jobs[job]["array_index"] for job in run.ids["short"]} == {1, 2, 3, 4, 5, 6}
    assert all(row["end_time"] for row in run.jobs.values())


def test_cpu_time_agrees_with_sacct(run: Run) -> None:
    (long,) = run.ids["long"]
    usage = run.jobs[long]["usage"]
    measured = usage["user_cpu_seconds"] + usage["system_cpu_seconds"]
    assert run.user_cpu[long] > 30
    assert measured == pytest.approx(run.user_cpu[long], rel=0.02)
    assert measured == pytest.approx(run.jobs[long]["cpu_seconds"], rel=0.02)
    assert (usage["coverage"], usage["doubt"]) == (1.0, "")


def test_short_jobs_have_their_usage(run: Run) -> None:
    for job in run.ids["short"]:
        usage = run.jobs[job]["usage"]
        assert usage["samples"] >= 1
        assert 0.25 < usage["user_cpu_seconds"] + usage["system_cpu_seconds"] < 3
        assert usage["memory_peak_bytes"] > 0


def test_days_add_up(run: Run) -> None:
    cpu = sum(row["cpu_seconds"] for row in run.tables["daily_usage"])
    usages = run.tables["job_usage"]
    assert cpu == pytest.approx(
        sum(row["user_cpu_seconds"] + row["system_cpu_seconds"] for row in usages)
    )
    assert sum(row["jobs_started"] for row in run.tables["daily_usage"]) == 2 + SHORT_JOBS

"""Slurm with accounting, the exporter and Prometheus, and the poller that reads from them."""

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


class StoredResults(NamedTuple):
    """Contents of the database when all jobs are measured."""

    jobs: Mapping[str, Row]  # by raw id; the row of job_usage under "usage"
    ids: Mapping[str, list[str]]  # kind of job → raw ids
    tables: Mapping[str, list[Row]]
    sacct_cpu_seconds: Mapping[str, float]  # by raw id, from TotalCPU


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredResults]:
    """Run jobs, poll while they run and after their end; the tests check the rows."""
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
        relabel_configs = [{"target_label": "cluster", "replacement": "alpha"}]
        tsdb = stack.enter_context(
            prometheus.server(
                [target.address], f"{SCRAPE_INTERVAL}s", relabel_configs=relabel_configs
            )
        )
        submitted = {
            "long": cluster.submit("alice", command(cpu=LONG_SECONDS)),
            "failed": cluster.submit("bob", f"{command(cpu=1)}; exit 3"),
            "short": cluster.submit("carol", command(cpu=0.3), f"--array=1-{SHORT_JOBS}"),
        }
        stats_db = StatsDbCommand(folder, cluster, tsdb.url)
        stats_db("migrate")
        stats_db("--once")  # while they run
        cluster.wait(*submitted.values(), timeout=240)
        ids = {kind: cluster.raw_ids(job) for kind, job in submitted.items()}
        all_job_ids = [job for jobs in ids.values() for job in jobs]
        cluster.wait(*all_job_ids, timeout=120)
        accounting = {job: cluster.sacct(job, ("UserCPU", "TotalCPU")) for job in all_job_ids}
        time.sleep(LINGER + 3 * SCRAPE_INTERVAL + 1)
        stats_db("--once")
        stats_db("--once")
        yield _stored_results(stats_db.url, ids, accounting)


class StatsDbCommand:
    """Runs batchjob_stats_db where the cluster's users exist."""

    def __init__(
        self,
        folder: Path,
        cluster: slurm.Cluster,
        tsdb: str = "",
        sacct: Mapping[str, Any] | None = None,
        name: str = "alpha",
    ) -> None:
        self.url = f"sqlite:///{folder}/jobs.db"
        self._config = folder / "stats_db.yml"
        self._cluster = cluster
        config: dict[str, Any] = {
            "db": {"url": self.url},
            "clusters": [{"name": name, "sources": {"sacct": dict(sacct or {})}}],
        }
        if tsdb:
            times = {"scrape-interval": f"{SCRAPE_INTERVAL}s", "linger": f"{LINGER}s"}
            config["tsdb"] = {"url": tsdb, **times}
        self._config.write_text(yaml.safe_dump(config))

    def rows(self, table: str) -> list[Row]:
        """All rows of a table."""
        return _tables(self.url)[table]

    def output(self, *arguments: str, status: int = 0) -> str:
        """Run the command, which ends with `status`; what it logs."""
        argv = [sys.executable, "-m", "batchjob_stats_db.main"]
        argv += ["--config.file", str(self._config), *arguments]
        environ = {**self._cluster.environ, "PYTHONPATH": str(REPOSITORY)}
        environ["PATH"] = os.pathsep.join((environ["PATH"], os.environ["PATH"]))
        process = subprocess.run(
            self._cluster.inside(*argv), env=environ, capture_output=True, text=True, check=False
        )
        print(process.stdout, process.stderr)
        assert process.returncode == status, process.stderr
        return process.stderr

    def __call__(self, *arguments: str) -> None:
        """Run the command."""
        self.output(*arguments)


def _tables(url: str) -> dict[str, list[Row]]:
    engine = reader_engine(parse_url(url))
    with engine.connect() as db:
        tables: dict[str, list[Row]] = {
            table.name: [dict(row) for row in db.execute(sa.select(table)).mappings()]
            for table in schema.metadata.sorted_tables
        }
    engine.dispose()
    return tables


def _stored_results(
    url: str, ids: Mapping[str, list[str]], accounting: Mapping[str, Any]
) -> StoredResults:
    tables = _tables(url)
    usage = {row["job_id"]: row for row in tables["job_usage"]}
    jobs = {row["jobid"]: {**row, "usage": usage.get(row["id"])} for row in tables["job"]}
    cpu_seconds = {job: _parse_cpu_time(rows[0]["TotalCPU"]) for job, rows in accounting.items()}
    return StoredResults(jobs, ids, tables, cpu_seconds)


def _parse_cpu_time(text: str) -> float:
    total = 0.0
    for part in text.replace("-", ":").split(":"):
        total = total * 60 + float(part)
    return total


def test_every_job_is_stored_once(results: StoredResults) -> None:
    all_job_ids = sorted(job for jobs in results.ids.values() for job in jobs)
    assert sorted(row["jobid"] for row in results.tables["job"]) == all_job_ids
    assert len(all_job_ids) == 2 + SHORT_JOBS


def test_users_states_and_exit_codes(results: StoredResults) -> None:
    (long,) = results.ids["long"]
    (failed,) = results.ids["failed"]
    assert results.jobs[long]["username"] == "alice"
    assert results.jobs[long]["state"] == "COMPLETED"
    assert (results.jobs[failed]["state"], results.jobs[failed]["exit_code"]) == ("FAILED", 3)
    assert {results.jobs[job]["username"] for job in results.ids["short"]} == {"carol"}
    assert {results.jobs[job]["array_index"] for job in results.ids["short"]} == {1, 2, 3, 4, 5, 6}
    assert all(row["end_time"] for row in results.jobs.values())


def test_cpu_time_agrees_with_sacct(results: StoredResults) -> None:
    (long,) = results.ids["long"]
    usage = results.jobs[long]["usage"]
    measured = usage["user_cpu_seconds"] + usage["system_cpu_seconds"]
    assert results.sacct_cpu_seconds[long] > 30
    assert measured == pytest.approx(results.sacct_cpu_seconds[long], rel=0.02)
    assert measured == pytest.approx(results.jobs[long]["cpu_seconds"], rel=0.02)
    # On cgroup v1 Slurm does not use the controller `pids`, which counts threads.
    assert (usage["coverage"], usage["caveats"]) == (1.0, "threads sampled")


def test_short_jobs_have_usage(results: StoredResults) -> None:
    for job in results.ids["short"]:
        usage = results.jobs[job]["usage"]
        assert usage["samples"] >= 1
        assert 0.25 < usage["user_cpu_seconds"] + usage["system_cpu_seconds"] < 3
        assert usage["memory_peak_bytes"] > 0


def test_daily_usage_adds_up_to_job_usage(results: StoredResults) -> None:
    daily_cpu_seconds = sum(row["cpu_seconds"] for row in results.tables["daily_usage"])
    job_usages = results.tables["job_usage"]
    assert daily_cpu_seconds == pytest.approx(
        sum(row["user_cpu_seconds"] + row["system_cpu_seconds"] for row in job_usages)
    )
    assert sum(row["jobs_started"] for row in results.tables["daily_usage"]) == 2 + SHORT_JOBS

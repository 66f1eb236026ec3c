"""Exporters, pollers and servers of different versions, as during the upgrade of a cluster.

The older versions are commits of this repository. Two exporters, of this version and of an older
one, read the same recorded machine as two clusters; poller and server of each version measure and
show the job of both. Both must measure the same usage from what the older exporter exposes.
"""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from collectors.host import Host
from tests.e2e import exporter, prometheus, recorded_job
from tests.helpers.processes import call
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
# Before and after the modules were moved to their current packages.
OLDER_COMMITS = ("c4ff9fa", "96b7763")
# Their server needs a package that is not a dependency any more.
COMMITS_WITHOUT_SERVER = ("c4ff9fa",)
# Columns that depend on when the job was measured, and from how many samples.
TIME_DEPENDENT_COLUMNS = {"measured_time", "until_time", "samples", "coverage", "job_id"}


class CheckedOutVersion(NamedTuple):
    """A checkout, run with the interpreter and the packages of the tests."""

    name: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder)}

    def argv(self, module: str, config: Path) -> list[str]:
        return [sys.executable, "-m", module, f"--config.file={config}"]

    def run(self, module: str, config: Path, *arguments: str) -> str:
        argv = (*self.argv(module, config), *arguments)
        return call(*argv, cwd=self.folder, env=self.environment)


CURRENT = CheckedOutVersion("now", REPOSITORY)


class MixedVersionSite(NamedTuple):
    """The older version, and the Prometheus that scrapes an exporter of each version."""

    older: CheckedOutVersion
    tsdb_url: str
    folder: Path

    @property
    def cluster_names(self) -> tuple[str, str]:
        """Each cluster is named after the version of its exporter."""
        return CURRENT.name, self.older.name


def checkout(commit: str, folder: Path) -> CheckedOutVersion:
    """The repository at a commit."""
    git = ("git", "-C", str(REPOSITORY))
    lookup = subprocess.run([*git, "cat-file", "-e", commit], capture_output=True, check=False)
    if lookup.returncode:
        pytest.skip(f"not in this checkout: commit {commit}")
    folder.mkdir()
    archive = subprocess.run([*git, "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    version = CheckedOutVersion(commit, folder)
    program = "import batchjob; print(batchjob.__file__)"
    module_path = call(sys.executable, "-c", program, cwd="/", env=version.environment)
    assert module_path.startswith(str(folder))
    return version


@pytest.fixture(scope="module", params=OLDER_COMMITS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, long_form: bool,
    unpacked: Callable[[str], Host],
) -> Iterator[MixedVersionSite]:  # fmt: skip
    if not long_form:
        pytest.skip("only with --long")
    if os.geteuid() != 0:
        pytest.skip("owners of recorded files can be restored by root only")
    if why_not := prometheus.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("versions")
    older = checkout(request.param, folder / "older")
    flags = recorded_job.exporter_flags(unpacked(recorded_job.TREE))
    start_time = int(time.time()) - 60
    with contextlib.ExitStack() as stack:
        exporters = {
            version.name: stack.enter_context(
                exporter.running(*flags, inside=("env", f"PYTHONPATH={version.folder}"))
            )
            for version in (CURRENT, older)
        }
        prometheus_server = stack.enter_context(prometheus.serving(_scrape_config(exporters)))
        enough_samples = f"count_over_time({recorded_job.COUNTER}[1h]) > 5"
        until(lambda: len(prometheus_server.query(enough_samples)) == 2, "scrapes of both", 120)
        (folder / "jobs.jsonl").write_text(json.dumps(recorded_job.record(start_time)) + "\n")
        yield MixedVersionSite(older, prometheus_server.url, folder)


def _scrape_config(exporters: dict[str, exporter.Target]) -> dict[str, Any]:
    targets = [
        {
            "targets": [exporter_target.address],
            "labels": {"cluster": name, "instance": recorded_job.NODE},
        }
        for name, exporter_target in exporters.items()
    ]
    scrape_configs = [{"job_name": "batchjob_exporter", "static_configs": targets}]
    return {"global": {"scrape_interval": "1s"}, "scrape_configs": scrape_configs}


class VersionMeasurement(NamedTuple):
    """The job's usage by cluster name, as stored by a version's poller."""

    version: CheckedOutVersion
    config: Path
    usage: dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=["now", "older"])
def measurement(request: pytest.FixtureRequest, site: MixedVersionSite) -> VersionMeasurement:
    version = CURRENT if request.param == "now" else site.older
    config = site.folder / f"{request.param}.yml"
    database = site.folder / f"{request.param}.db"
    sources = {"jsonl": {"path": str(site.folder / "jobs.jsonl")}}
    settings = {
        "db": {"url": f"sqlite:///{database}"},
        "tsdb": {"url": site.tsdb_url, "scrape-interval": "1s", "linger": "2s"},
        "clusters": [{"name": name, "sources": sources} for name in site.cluster_names],
    }
    config.write_text(yaml.safe_dump(settings))
    version.run("batchjob_stats_db.main", config, "migrate")

    def poll_usage() -> dict[str, dict[str, Any]] | None:
        version.run("batchjob_stats_db.main", config, "--once")
        usage = _usage(database)
        return usage if len(usage) == len(site.cluster_names) else None

    return VersionMeasurement(version, config, until(poll_usage, "both jobs are measured", 120, 1))


def _usage(database: Path) -> dict[str, dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.row_factory = sqlite3.Row
        rows = db.execute(
            "SELECT job.cluster, job_usage.* FROM job JOIN job_usage ON job_usage.job_id = job.id"
        ).fetchall()
    return {row["cluster"]: dict(row) for row in rows}


def test_measured_usage_does_not_depend_on_exporter_version(site, measurement):
    current, older = (measurement.usage[name] for name in site.cluster_names)
    cpu_seconds = older["user_cpu_seconds"] + older["system_cpu_seconds"]
    assert cpu_seconds == pytest.approx(recorded_job.CPU_SECONDS, rel=1e-3)
    assert older["samples"] > 0
    older_columns = {name for name, value in older.items() if value is not None}
    for name in older_columns - TIME_DEPENDENT_COLUMNS - {"cluster"}:
        assert older[name] == pytest.approx(current[name]), name
    assert older_columns <= {name for name, value in current.items() if value is not None}


def test_server_shows_jobs_of_both_exporter_versions(site, measurement, tmp_path):
    if measurement.version.name in COMMITS_WITHOUT_SERVER:
        pytest.skip("its server needs a package that is not installed")
    config = tmp_path / "server.yml"
    settings = yaml.safe_load(measurement.config.read_text())
    config.write_text(yaml.safe_dump({"db": settings["db"], "tsdb": {"url": site.tsdb_url}}))
    version, module = measurement.version, "batchjob_stats_server.main"
    token = version.run(module, config, "token", "root", "--role=admin").strip()
    argv = version.argv(module, config)
    with recorded_job.serving(argv, token, tmp_path / "log", version.environment) as api:
        for cluster in site.cluster_names:
            expected = measurement.usage[cluster]["user_cpu_seconds"]
            assert recorded_job.cpu_seconds_in_api(api, cluster) == pytest.approx(expected)

"""Exporters beside pollers and servers of another version, as while a cluster is upgraded.

The older versions are commits of this repository. Two exporters, of this version and of an older
one, read the same recorded machine as two clusters; poller and server of each version measure and
show the job of both. What the older exporter tells must be measured alike by both.
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
from tests.e2e.processes import call, until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
# Before and after the modules got the places that they have now.
OLDER = ("c4ff9fa", "96b7763")
# Need a package that this version does without.
WITHOUT_SERVER = ("c4ff9fa",)
# When the job was measured, and by how many samples.
OF_THE_MOMENT = {"measured_time", "until_time", "samples", "coverage", "job_id"}


class Version(NamedTuple):
    """A checkout, run by the interpreter of the tests with the packages they have."""

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


NOW = Version("now", REPOSITORY)


class Site(NamedTuple):
    """The older version, and where the Prometheus is that scrapes an exporter of each."""

    older: Version
    tsdb: str
    folder: Path

    @property
    def clusters(self) -> tuple[str, str]:
        """Each is named by the version of its exporter."""
        return NOW.name, self.older.name


def checkout(commit: str, folder: Path) -> Version:
    """The repository as it was."""
    git = ("git", "-C", str(REPOSITORY))
    known = subprocess.run([*git, "cat-file", "-e", commit], capture_output=True, check=False)
    if known.returncode:
        pytest.skip(f"not in this checkout: commit {commit}")
    folder.mkdir()
    archive = subprocess.run([*git, "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    made = Version(commit, folder)
    program = "import batchjob; print(batchjob.__file__)"
    found = call(sys.executable, "-c", program, cwd="/", env=made.environment)
    assert found.startswith(str(folder))
    return made


@pytest.fixture(scope="module", params=OLDER)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, long_form: bool,
    unpacked: Callable[[str], Host],
) -> Iterator[Site]:  # fmt: skip
    if not long_form:
        pytest.skip("only with --long")
    if os.geteuid() != 0:
        pytest.skip("owners of recorded files can be restored by root only")
    if why_not := prometheus.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("versions")
    older = checkout(request.param, folder / "older")
    flags = recorded_job.exporter_flags(unpacked(recorded_job.TREE))
    began = int(time.time()) - 60
    with contextlib.ExitStack() as stack:
        nodes = {
            version.name: stack.enter_context(
                exporter.running(*flags, inside=("env", f"PYTHONPATH={version.folder}"))
            )
            for version in (NOW, older)
        }
        tsdb = stack.enter_context(prometheus.serving(_scrapes(nodes)))
        seen = f"count_over_time({recorded_job.COUNTER}[1h]) > 5"
        until(lambda: len(tsdb.query(seen)) == 2, "scrapes of both", 120)
        (folder / "jobs.jsonl").write_text(json.dumps(recorded_job.record(began)) + "\n")
        yield Site(older, tsdb.url, folder)


def _scrapes(nodes: dict[str, exporter.Target]) -> dict[str, Any]:
    targets = [
        {"targets": [node.address], "labels": {"cluster": name, "instance": recorded_job.NODE}}
        for name, node in nodes.items()
    ]
    jobs = [{"job_name": "batchjob_exporter", "static_configs": targets}]
    return {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}


class Measured(NamedTuple):
    """What a version has in its database: the job's usage by the cluster's name."""

    version: Version
    config: Path
    usage: dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=["now", "older"])
def measured(request: pytest.FixtureRequest, site: Site) -> Measured:
    version = NOW if request.param == "now" else site.older
    config = site.folder / f"{request.param}.yml"
    database = site.folder / f"{request.param}.db"
    source = {"jsonl": {"path": str(site.folder / "jobs.jsonl")}}
    settings = {
        "db": {"url": f"sqlite:///{database}"},
        "tsdb": {"url": site.tsdb, "scrape-interval": "1s", "linger": "2s"},
        "clusters": [{"name": name, "sources": source} for name in site.clusters],
    }
    config.write_text(yaml.safe_dump(settings))
    version.run("batchjob_stats_db.main", config, "migrate")

    def polled() -> dict[str, dict[str, Any]] | None:
        version.run("batchjob_stats_db.main", config, "--once")
        usage = _usage(database)
        return usage if len(usage) == len(site.clusters) else None

    return Measured(version, config, until(polled, "both jobs are measured", 120, 1))


def _usage(database: Path) -> dict[str, dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.row_factory = sqlite3.Row
        rows = db.execute(
            "SELECT job.cluster, job_usage.* FROM job JOIN job_usage ON job_usage.job_id = job.id"
        ).fetchall()
    return {row["cluster"]: dict(row) for row in rows}


def test_a_job_is_measured_alike_whichever_version_its_exporter_has(site, measured):
    now, older = (measured.usage[name] for name in site.clusters)
    used = older["user_cpu_seconds"] + older["system_cpu_seconds"]
    assert used == pytest.approx(recorded_job.CPU_SECONDS, rel=1e-3)
    assert older["samples"] > 0
    told = {name for name, value in older.items() if value is not None}
    for name in told - OF_THE_MOMENT - {"cluster"}:
        assert older[name] == pytest.approx(now[name]), name
    assert told <= {name for name, value in now.items() if value is not None}


def test_a_server_shows_the_job_of_both(site, measured, tmp_path):
    if measured.version.name in WITHOUT_SERVER:
        pytest.skip("its server needs a package that is not installed")
    config = tmp_path / "server.yml"
    settings = yaml.safe_load(measured.config.read_text())
    config.write_text(yaml.safe_dump({"db": settings["db"], "tsdb": {"url": site.tsdb}}))
    version, module = measured.version, "batchjob_stats_server.main"
    token = version.run(module, config, "token", "root", "--role=admin").strip()
    argv = version.argv(module, config)
    with recorded_job.serving(argv, token, tmp_path / "log", version.environment) as api:
        for cluster in site.clusters:
            expected = measured.usage[cluster]["user_cpu_seconds"]
            assert recorded_job.shown(api, cluster) == pytest.approx(expected)

"""What doctor says of the cluster collector."""

import pytest

from batchjob.schedulers.cluster import ClusterOptions
from batchjob_cli.doctor.finding import ExaminedNode, run_checks
from batchjob_cli.doctor.schedulers import CHECKS
from tests.helpers.waiting import scaled


@pytest.fixture
def install_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def install(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return install


def finding(**options):
    checks = {"cluster": CHECKS["cluster"]}
    return run_checks(ExaminedNode(options=options), checks).get("cluster")


def test_disabled_collector_is_not_checked():
    assert finding() is None


def test_partly_failing_scheduler_is_a_warning(install_command):
    install_command("pbsnodes", """echo '{"nodes": {"n1": {"state": "free"}}}'""")
    install_command("qstat", "echo 'cannot connect to server' >&2; exit 1")
    seen = finding(cluster=ClusterOptions(scheduler="pbs", timeout=scaled(5)))
    assert seen.result == "warning"
    assert "pbs reports nodes in 0." in seen.seen
    assert "jobs: qstat: exit status 1: cannot connect to server" in seen.seen
    without = ("jobs", "partitions", "licenses")
    seen = finding(cluster=ClusterOptions(scheduler="pbs", timeout=scaled(5), without=without))
    assert seen.result == "ok"


def test_missing_scheduler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = finding(cluster=ClusterOptions())
    assert (seen.result, "none of the commands" in seen.seen) == ("missing", True)

"""From a real Slurm to a dashboard: exporter, Prometheus, poller and server between them."""

import contextlib
import json
import os
import time
from typing import NamedTuple

import pytest

from grafana.generate.__main__ import FOLDER
from tests.e2e import exporter, prometheus, slurm
from tests.e2e.workload import command
from tests.grafana import dashboard_client, stack
from tests.helpers.processes import free_ports
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

CPU_SECONDS = 25
MEMORY_MB = 60
API = ("infinity", "json-api")


class Run(NamedTuple):
    """A job of alice's that has ended and was measured, with one of bob's beside it."""

    grafana: dashboard_client.GrafanaClient
    job: str
    bobs: str
    nodes: int
    span: tuple[float, float]

    def view(self, name, login, **given):
        """A viewer of a dashboard, and the dashboard."""
        dashboard = json.loads((FOLDER / f"{name}.json").read_text())
        given = {"cluster": stack.CLUSTER, **given}
        return dashboard_client.open_dashboard(
            self.grafana, dashboard, login, self.span, **given
        ), dashboard

    def panel(self, name, title, login="alice", **given):
        """All frames of a panel."""
        seen, dashboard = self.view(name, login, **given)
        (panel,) = (each for each in dashboard["panels"] if each["title"] == title)
        return [frame for target in panel["targets"] for frame in self.grafana.frames(target, seen)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    if why_not := slurm.missing(cgroup=1) or prometheus.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("grafana")
    began = time.time()
    with contextlib.ExitStack() as made:
        cluster = made.enter_context(slurm.cluster(cgroup=1))
        inside = cluster.inside()
        target = made.enter_context(exporter.running("--collector.cluster", inside=_with(cluster)))
        poller, server = (f"127.0.0.1:{port}" for port in free_ports(2))
        scraping = stack.prometheus_configuration(
            folder, {stack.CLUSTER: [target.address]}, poller, server
        )
        tsdb = made.enter_context(prometheus.serving(scraping))
        sources = {"sacct": {}, "sacctmgr": {"slurm-cluster": cluster.name}}
        config = stack.write_configuration(folder, tsdb.url, sources, poller, server)
        path = os.pathsep.join((cluster.environ["PATH"], os.environ["PATH"]))
        environ = {**cluster.environ, "PATH": path}
        poll = stack.running_program(
            "batchjob_stats_db", config / "stats_db.yml", True, inside, environ
        )  # fmt: skip
        made.enter_context(poll)
        made.enter_context(stack.running_program("batchjob_stats_server", config / "server.yml"))
        grafana = dashboard_client.GrafanaClient(f"http://{server}", stack.data_source_headers)
        job = cluster.submit("alice", command(CPU_SECONDS, MEMORY_MB, sleep=2))
        bobs = cluster.submit("bob", command(1))
        cluster.wait(job, bobs, timeout=240)
        until(lambda: _is_measured(grafana, job, bobs), "usage of both jobs", 120, 1)
        yield Run(grafana, job, bobs, len(cluster.nodes), (began, time.time()))


def _with(cluster):
    """Where Slurm's commands find their cluster."""
    found = (f"{name}={value}" for name, value in cluster.environ.items())
    return [*cluster.inside(), "env", *found]


def _is_measured(grafana, *jobs):
    """They were measured for the last time, so that every place has one value of each figure."""
    rows = [row for job in jobs for row in stack.api_rows(grafana, f"/jobs/{job}") or []]
    days = stack.api_rows(grafana, "/usage?by=day") or []
    return (
        len(rows) == len(jobs)
        and all(row["usage_final"] for row in rows)
        and sum(row["cpu_seconds"] for row in days) >= CPU_SECONDS
    )


@pytest.mark.parametrize("folder", API)
def test_my_jobs_lists_job_with_usage(run, folder):
    (frame,) = run.panel(f"{folder}/my-jobs", "Started in this period")
    assert (frame["jobid"], frame["state"]) == ([run.job], ["COMPLETED"])
    held = frame["elapsed_seconds"][0] * frame["allocated_cpus"][0]
    assert CPU_SECONDS <= frame["cpu_efficiency"][0] * held < CPU_SECONDS + 5
    assert frame["usage_memory_peak_bytes"][0] > MEMORY_MB << 20


@pytest.mark.parametrize("folder", API)
def test_job_dashboard_plots_usage_in_its_time_range(run, folder):
    seen, _ = run.view(f"{folder}/job", "alice", job=run.job)
    start, end = (int(seen.choices[name].value) for name in ("window_from", "window_to"))
    assert run.span[0] * 1000 - 61_000 < start < end < run.span[1] * 1000 + 61_000
    frames = run.panel(f"{folder}/job", "CPUs in use", job=run.job)
    (frame,) = frames
    cpu = [
        (at, value)
        for at, value, metric in zip(frame["time"], frame["mean"], frame["metric"], strict=True)
        if metric == "cpu"
    ]
    assert all(start <= at <= end for at, _ in cpu)
    assert 0.1 < max(value for _, value in cpu) < 1.5  # others may keep the machine busy
    (runs,) = run.panel(f"{folder}/job", "Runs", job=run.job)
    assert runs["jobid"] == [run.job]


@pytest.mark.parametrize("folder", API)
def test_job_dashboard_has_report(run, folder):
    (frame,) = run.panel(f"{folder}/job", "Efficiency", job=run.job)
    ratio = dict(zip(frame["what"], frame["ratio"], strict=True))
    (mine,) = run.panel(f"{folder}/my-jobs", "Started in this period")
    assert ratio["cpu"] == pytest.approx(mine["cpu_efficiency"][0], abs=0.01)
    assert 0 < ratio["time"] < 1
    assert 0 < ratio["memory"] < 1


def test_gate_returns_series_of_the_job(run):
    frames = run.panel("prometheus/job-live", "CPUs in use", job=run.job)
    assert 0.1 < max(value for frame in frames for value in frame["Value"]) < 3
    held = run.panel("prometheus/job-live", "Memory by kind", job=run.job)
    assert max(value for frame in held for value in frame["Value"]) > MEMORY_MB << 20


@pytest.mark.parametrize("folder", API)
def test_my_usage_sums_own_jobs(run, folder):
    (frame,) = run.panel(f"{folder}/my-usage", "By account")
    assert frame["account"] == ["physics"]
    assert CPU_SECONDS <= frame["cpu_seconds"][0] < CPU_SECONDS + 5


@pytest.mark.parametrize("folder", API)
def test_user_sees_only_own_jobs(run, folder):
    (frame,) = run.panel(f"{folder}/jobs", "Started in this period", "bob")
    assert frame["jobid"] == [run.bobs]
    (nothing,) = run.panel(f"{folder}/job", "CPUs in use", "bob", job=run.job)
    assert nothing["time"] == []


@pytest.mark.parametrize("folder", API)
def test_cluster_dashboard_lists_nodes(run, folder):
    (frame,) = run.panel(f"{folder}/cluster", "Nodes", stack.OPERATOR)
    assert frame["Value"] == [run.nodes]
    (sources,) = run.panel(f"{folder}/cluster", "Sources of job records", stack.OPERATOR)
    assert set(sources["source"]) == {"sacct", "sacctmgr"}

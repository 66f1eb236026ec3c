"""The cluster collector beside a real Slurm: a drain and a queue are seen within one interval."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import exporter, slurm
from tests.e2e.reader import text
from tests.helpers.processes import call
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

INTERVAL = 3.0
PREFIX = "batchjob_cluster_"


class Site(NamedTuple):
    """A cluster and the exporter that asks it."""

    slurm: slurm.Cluster
    target: exporter.Target

    def seen(self, name: str, **labels: str) -> float | None:
        """The value now."""
        return self.target.scrape().value(PREFIX + name, **labels)

    def wait_for_value(self, name: str, value: float, **labels: str) -> None:
        """Wait for one interval, and as long for the scheduler's answer."""
        until(lambda: self.seen(name, **labels) == value, f"{name} {labels} {value}", 2 * INTERVAL)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Slurm's controller with its nodes, asked by its commands."""
    if why_not := slurm.missing(cgroup=1):
        pytest.skip(why_not)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(slurm.cluster(cgroup=1))
        target = stack.enter_context(
            exporter.running(
                "--collector.disable-defaults",
                "--collector.cluster",
                f"--collector.cluster.interval={INTERVAL:g}s",
                "--collector.cluster.users",
                inside=cluster.inside("env", f"SLURM_CONF={cluster.environ['SLURM_CONF']}"),
            )
        )
        made = Site(cluster, target)
        until(lambda: made.seen("nodes", state="idle"), "the nodes are seen", 30)
        yield made


def test_all_components_respond(site: Site) -> None:
    parts = ("nodes", "jobs", "controller", "fairshare", "licenses")
    until(
        lambda: all(site.seen("age_seconds", part=part) is not None for part in parts), "parts", 30
    )
    assert site.target.scrape().total(PREFIX + "errors_total") == 0
    assert site.seen("controller_threads") is not None
    assert site.target.scrape().total(PREFIX + "account_shares_ratio") > 0


def test_states_of_drained_and_resumed_node(site: Site) -> None:
    node = site.slurm.command("sinfo", "-h", "-N", "-o", "%N").split()[0]
    idle = site.seen("node_cpus_idle", node=node)
    site.slurm.command("scontrol", "update", f"nodename={node}", "state=drain", "reason=bad DIMM")
    site.wait_for_value("node_flag", 1, node=node, flag="drain")
    scrape = site.target.scrape()
    assert scrape.value(PREFIX + "node_unavailable_info", node=node, reason="bad DIMM") == 1
    since = scrape.value(PREFIX + "node_unavailable_since_seconds", node=node)
    assert since is not None
    assert abs(since - time.time()) < 60
    assert scrape.value(PREFIX + "node_cpus_idle", node=node) == 0
    site.slurm.command("scontrol", "update", f"nodename={node}", "state=resume")
    site.wait_for_value("node_unavailable_seconds_count", 1)
    assert site.seen("node_cpus_idle", node=node) == idle


def test_pending_jobs_by_reason(site: Site) -> None:
    def total(name: str, **labels: str) -> float:
        return site.target.scrape().total(PREFIX + name, **labels)

    cpus = int(total("node_cpus"))
    fills = site.slurm.submit("alice", "sleep 600", f"--ntasks={cpus}", "--mem-per-cpu=1M")
    waits = site.slurm.submit("bob", "sleep 600", "--ntasks=1", "--array=0-2", "--mem=10M")
    held = site.slurm.submit("bob", "sleep 600", "--hold", "--mem=10M")
    try:
        until(lambda: total("jobs", state="RUNNING") == 1, "the first job runs", 30)
        site.slurm.wait(fills, state="RUNNING")
        until(lambda: total("jobs", state="PENDING") == 4, "four wait", 2 * INTERVAL)
        scrape = site.target.scrape()
        assert scrape.total(PREFIX + "jobs_pending", reason="JobHeldUser") == 1
        assert scrape.total(PREFIX + "pending_cpus") == 4
        assert scrape.value(PREFIX + "user_jobs", user="bob", state="PENDING") == 4
        assert scrape.value(PREFIX + "user_cpus", user="alice") == cpus
        # Nodes are read by another thread than jobs.
        until(lambda: total("node_cpus_allocated") == cpus, "all CPUs are held", 2 * INTERVAL)
    finally:
        site.slurm.command("scancel", fills, waits, held)
    site.wait_for_value("node_info", 1, node=_first_node(site), state="idle")
    until(lambda: total("job_wait_seconds_count") >= 1, "the wait is counted", 2 * INTERVAL)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")
def test_prometheus_discovers_nodes_as_documented(site: Site, tmp_path: Path) -> None:
    changes = {"slurmctl:10913": site.target.address}
    config = tmp_path / "prometheus.yml"
    config.write_text(text("docs/prometheus.md", "scrape_configs:", changes))
    check = ("promtool", "check", "service-discovery", "--timeout=5s")
    found = json.loads(call(*check, str(config), "batchjob_exporter"))
    assert {each["labels"]["node"] for each in found} == set(site.slurm.nodes)
    for each in found:
        node = each["labels"]["node"]
        assert each["discoveredLabels"]["__address__"] == node
        assert each["labels"]["__address__"] == f"{node}:10910"
        assert (each["labels"]["cluster"], each["labels"]["instance"]) == ("alpha", node)


def _first_node(site: Site) -> str:
    return site.slurm.command("sinfo", "-h", "-N", "-o", "%N").split()[0]

"""Records what the alerts go by, from a real Slurm with all of batchjob beside it.

    python -m tests.prometheus.record tests/fixtures/alerts/slurm.json

Exporter without CAP_SYS_PTRACE (as its unit has it), collector `cluster`, poller, server and
Prometheus run for some minutes while users submit jobs; then the controller is stopped for as long.
Needs root, Slurm and Prometheus; takes ten minutes. test_recorded_day.py replays the file.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import exporter, prometheus, slurm
from tests.e2e.processes import daemon, free_ports, succeeds, until
from tests.e2e.workload import command
from tests.prometheus import families

INTERVAL = 30
HEALTHY_SAMPLES = 8
FAULT_SAMPLES = 8
REPOSITORY = Path(__file__).parents[2]
RULES = REPOSITORY / "prometheus/rules/service_alerts.yml"
# As the unit runs it: some user, with the one capability that reads RAPL.
AS_INSTALLED = (
    "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--no-new-privs",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
)  # fmt: skip


def names() -> list[str]:
    """Of the series that alerts ask for."""
    found = {"up"}
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            found |= families.used(rule["expr"])
    return sorted(found)


def record() -> dict[str, Any]:
    """Start all of it, and return the series with one value for each interval, null for none."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="record-")))
        folder.chmod(0o755)
        after_cluster = stack.enter_context(contextlib.ExitStack())
        cluster = stack.enter_context(slurm.cluster(cgroup=1))
        environ = {**cluster.environ, "PYTHONPATH": str(REPOSITORY)}
        environ["PATH"] = os.pathsep.join((environ["PATH"], os.environ["PATH"]))
        node = stack.enter_context(exporter.running(inside=cluster.inside(*AS_INSTALLED)))
        whole = stack.enter_context(
            exporter.running(
                "--collector.disable-defaults", "--collector.cluster",
                inside=cluster.inside("env", f"SLURM_CONF={environ['SLURM_CONF']}"),
            )
        )  # fmt: skip
        poller, server = (f"127.0.0.1:{port}" for port in free_ports(2))
        tsdb = stack.enter_context(
            prometheus.serving(_scrapes(node.address, whole.address, poller, server))
        )
        config = folder / "stats_db.yml"
        config.write_text(_poller(folder, tsdb.url, poller, cluster.name))
        run = (sys.executable, "-m", "batchjob_stats_db.main", f"--config.file={config}")
        stack.enter_context(daemon(cluster.inside(*run, "migrate"), folder / "log", environ)).wait()
        stack.enter_context(daemon(cluster.inside(*run, "backup"), folder / "log", environ)).wait()
        stack.enter_context(daemon(cluster.inside(*run), folder / "log", environ))
        serve = (
            sys.executable, "-m", "batchjob_stats_server.main", f"--db.url=sqlite:///{folder}/jobs.db",
            f"--tsdb.url={tsdb.url}", f"--web.listen-address={server}",
        )  # fmt: skip
        stack.enter_context(daemon(serve, folder / "log", environ))
        until(lambda: len(tsdb.query("up == 1")) == 4, f"{folder}/log", 120, 1.0)
        _work(cluster, HEALTHY_SAMPLES * INTERVAL)
        middle = time.time()
        cluster.command("scontrol", "shutdown", "slurmctld")
        time.sleep(FAULT_SAMPLES * INTERVAL)
        made = {
            "interval": INTERVAL,
            "healthy": _series(tsdb, middle - HEALTHY_SAMPLES * INTERVAL, HEALTHY_SAMPLES),
            "controller_down": _series(tsdb, middle, FAULT_SAMPLES),
        }
        # The cluster's end cancels what runs.
        again = daemon(cluster.inside("slurmctld", "-D"), folder / "log", environ)
        after_cluster.enter_context(again)
        until(
            lambda: succeeds(cluster.inside("scontrol", "ping"), environ), "the controller is back"
        )
        return made


def _scrapes(node: str, whole: str, poller: str, server: str) -> dict[str, Any]:
    def job(name: str, target: str, **labels: str) -> dict[str, Any]:
        return {"job_name": name, "static_configs": [{"targets": [target], "labels": labels}]}

    return {
        "global": {"scrape_interval": f"{INTERVAL}s"},
        "scrape_configs": [
            job("batchjob_exporter", node, cluster="alpha"),
            job("batchjob_cluster", whole, cluster="alpha"),
            job("batchjob_stats_db", poller),
            job("batchjob_stats_server", server),
        ],
    }


def _poller(folder: Path, tsdb: str, address: str, slurms_name: str) -> str:
    named = {"slurm-cluster": slurms_name}
    return yaml.safe_dump(
        {
            "db": {"url": f"sqlite:///{folder}/jobs.db"},
            "web": {"listen-address": address},
            "backup": {"directory": f"{folder}/backups"},
            "tsdb": {"url": tsdb, "scrape-interval": f"{INTERVAL}s", "linger": "5s"},
            "clusters": [{"name": "alpha", "sources": {"sacct": named, "sacctmgr": named}}],
        }
    )


def _work(cluster: slurm.Cluster, seconds: int) -> None:
    """Jobs of three users, some of which fail, until the time is over."""
    until_time = time.monotonic() + seconds
    while time.monotonic() < until_time:
        cluster.submit("alice", command(cpu=5, memory_mb=50, sleep=10), "--nodes=2")
        cluster.submit("bob", f"{command(cpu=2)}; exit 3")
        cluster.submit("carol", command(cpu=1, sleep=5), "--array=1-3")
        time.sleep(30)


def _series(tsdb: prometheus.Server, begin: float, samples: int) -> list[dict[str, Any]]:
    found = []
    times = [begin + INTERVAL * number for number in range(samples)]
    for name in names():
        answer = tsdb.get(
            "query_range", query=name, start=str(times[0]), end=str(times[-1]), step=str(INTERVAL)
        )
        for each in answer["result"]:
            at = {round(moment - begin): float(value) for moment, value in each["values"]}
            values = [at.get(INTERVAL * number) for number in range(samples)]
            if name.endswith("_timestamp_seconds"):  # the recording begins at 0
                values = [None if value is None else round(value - begin) for value in values]
            found.append({"labels": each["metric"], "values": values})
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    made = record()
    lines = json.dumps(made, sort_keys=True).replace('{"labels"', '\n{"labels"')
    Path(sys.argv[1]).write_text(lines + "\n")

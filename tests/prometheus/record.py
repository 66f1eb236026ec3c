"""Records the series that alerts use, from a real Slurm with all of batchjob.

    python -m tests.prometheus.record tests/fixtures/alerts/slurm.json

Exporters without CAP_SYS_PTRACE (as their unit has it), collector `cluster`, poller, server and
Prometheus run for some minutes while users submit short jobs beside three that run all the time:
one that uses a quarter of four CPUs, one that holds 60 % of its memory, one with a busy GPU. Then
the controller is stopped for as long. Needs root, Slurm, Prometheus and a C compiler; takes ten
minutes. test_recorded_day.py replays the file.
"""

import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import exporter, prometheus, slurm, slurm_prolog
from tests.e2e.workload import command
from tests.helpers.processes import daemon, free_ports, succeeds
from tests.helpers.waiting import until
from tests.prometheus import families, node_view

INTERVAL = 30
HEALTHY_SAMPLES = 8
FAULT_SAMPLES = 8
REPOSITORY = Path(__file__).parents[2]
RULES = REPOSITORY / "prometheus/rules"
NODES = 5  # two for the job of four CPUs, one for those with memory and GPU, two for the others
TIMES = ("_timestamp_seconds", "_start_time_seconds")
# As the unit runs it: some user, with the one capability that reads RAPL.
AS_INSTALLED = (
    "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--no-new-privs",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
)  # fmt: skip


def alert_series_names(*files: str) -> list[str]:
    """Names of the series that the alerts of these files use, also through recording rules."""
    recording_rules = {
        rule["record"]: families.names_in(rule["expr"])
        for path in RULES.glob("*.yml")
        for rule in _rules(path)
        if "record" in rule
    }
    wanted = {name for file in files for rule in _rules(RULES / file)
              for name in families.names_in(rule["expr"])}  # fmt: skip
    while recorded_names := wanted & recording_rules.keys():
        wanted = (wanted - recorded_names).union(
            *(recording_rules[name] for name in recorded_names)
        )
    return sorted(wanted)


def _rules(path: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(path.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def record() -> dict[str, Any]:
    """Start everything, and return the series with a value for each interval, null for none."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="record-")))
        folder.chmod(0o755)
        after_cluster = stack.enter_context(contextlib.ExitStack())
        cluster = stack.enter_context(
            slurm.cluster(cgroup=1, nodes=NODES, gpus=1, conf=slurm_prolog.CONF)
        )
        slurm_prolog.install(cluster)
        job_on_all_nodes = cluster.submit(
            "carol", "srun true", f"--nodes={NODES}", f"--ntasks={NODES}"
        )
        cluster.wait(job_on_all_nodes)  # the first job of a node makes the cgroups that views hide
        environ = {**cluster.environ, "PYTHONPATH": str(REPOSITORY)}
        environ["PATH"] = os.pathsep.join((environ["PATH"], os.environ["PATH"]))
        nodes = _start_exporters(cluster, folder, stack)
        cluster_exporter = stack.enter_context(
            exporter.running(
                "--collector.disable-defaults", "--collector.cluster",
                inside=cluster.inside("env", f"SLURM_CONF={environ['SLURM_CONF']}"),
            )
        )  # fmt: skip
        poller, server = (f"127.0.0.1:{port}" for port in free_ports(2))
        tsdb = stack.enter_context(
            prometheus.serving(_scrape_config(nodes, cluster_exporter.address, poller, server))
        )
        config = folder / "stats_db.yml"
        config.write_text(_poller_config(folder, tsdb.url, poller, cluster.name))
        poller_command = (sys.executable, "-m", "batchjob_stats_db.main", f"--config.file={config}")
        stack.enter_context(
            daemon(cluster.inside(*poller_command, "migrate"), folder / "log", environ)
        ).wait()
        stack.enter_context(
            daemon(cluster.inside(*poller_command, "backup"), folder / "log", environ)
        ).wait()
        stack.enter_context(daemon(cluster.inside(*poller_command), folder / "log", environ))
        server_command = (
            sys.executable, "-m", "batchjob_stats_server.main", f"--db.url=sqlite:///{folder}/jobs.db",
            f"--tsdb.url={tsdb.url}", f"--web.listen-address={server}",
        )  # fmt: skip
        stack.enter_context(daemon(server_command, folder / "log", environ))
        until(lambda: len(tsdb.query("up == 1")) == NODES + 3, f"{folder}/log", 120, 1.0)
        _start_long_jobs(cluster, tsdb)
        _submit_short_jobs(cluster, HEALTHY_SAMPLES * INTERVAL)
        fault_time = time.time()
        cluster.command("scontrol", "shutdown", "slurmctld")
        time.sleep(FAULT_SAMPLES * INTERVAL)
        service_series = ["up", *alert_series_names("service_alerts.yml")]
        all_series = sorted({*service_series, *alert_series_names("job_alerts.yml")})
        recording = {
            "interval": INTERVAL,
            "healthy": recorded_series(
                tsdb, all_series, fault_time - HEALTHY_SAMPLES * INTERVAL, HEALTHY_SAMPLES
            ),
            "controller_down": recorded_series(tsdb, service_series, fault_time, FAULT_SAMPLES),
        }
        # Closing the cluster cancels running jobs, for which it needs the controller.
        controller = daemon(cluster.inside("slurmctld", "-D"), folder / "log", environ)
        after_cluster.enter_context(controller)
        until(
            lambda: succeeds(cluster.inside("scontrol", "ping"), environ), "the controller is back"
        )
        return recording


def _start_exporters(
    cluster: slurm.Cluster, folder: Path, stack: contextlib.ExitStack
) -> dict[str, str]:
    """Start an exporter for each node, and return their addresses. The third node has a GPU."""
    addresses = {}
    for node in cluster.nodes:
        gpu = node_view.Gpu(folder) if node == cluster.nodes[2] else None
        view = node_view.exporter_prefix(cluster, node, folder, gpu.mounts if gpu else "")
        environ = gpu.environ if gpu else ()
        files = f"--collector.gpu.job-files={slurm_prolog.gpu_directory(cluster, node)}"
        inside = (*view, *cluster.inside(*AS_INSTALLED, "env", *environ))
        addresses[node] = stack.enter_context(exporter.running(files, inside=inside)).address
    return addresses


def _scrape_config(
    nodes: dict[str, str], cluster_exporter: str, poller: str, server: str
) -> dict[str, Any]:
    def target(address: str, **labels: str) -> dict[str, Any]:
        return {"targets": [address], "labels": labels}

    targets = {
        "batchjob_exporter": [
            target(address, cluster="alpha", instance=node) for node, address in nodes.items()
        ],
        "batchjob_cluster": [target(cluster_exporter, cluster="alpha")],
        "batchjob_stats_db": [target(poller)],
        "batchjob_stats_server": [target(server)],
    }
    return {
        "global": {"scrape_interval": f"{INTERVAL}s"},
        "scrape_configs": [
            {"job_name": name, "static_configs": each} for name, each in targets.items()
        ],
    }


def _poller_config(folder: Path, tsdb: str, address: str, slurm_name: str) -> str:
    options = {"slurm-cluster": slurm_name}
    return yaml.safe_dump(
        {
            "db": {"url": f"sqlite:///{folder}/jobs.db"},
            "web": {"listen-address": address},
            "backup": {"directory": f"{folder}/backups"},
            "tsdb": {"url": tsdb, "scrape-interval": f"{INTERVAL}s", "linger": "5s"},
            "clusters": [{"name": "alpha", "sources": {"sacct": options, "sacctmgr": options}}],
        }
    )


def _start_long_jobs(cluster: slurm.Cluster, tsdb: prometheus.Server) -> None:
    """Start healthy jobs that are close to each alert, and wait until Prometheus has them."""
    nodes = cluster.nodes
    half_busy = shlex.quote(f"while true; do {command(cpu=0.5, sleep=0.5)}; done")
    four_cpus = cluster.submit(
        "alice", f"srun bash -c {half_busy}", "--time=60", f"--nodelist={nodes[0]},{nodes[1]}",
        "--nodes=2", "--ntasks=2", "--cpus-per-task=2",
    )  # fmt: skip
    memory = cluster.submit(
        "bob", command(memory_mb=115, sleep=3600), "--time=60", "--mem=200M",
        f"--nodelist={nodes[2]}",
    )  # fmt: skip
    gpu = cluster.submit(
        "carol", command(sleep=3600), "--time=60", "--gres=gpu:1", f"--nodelist={nodes[2]}"
    )
    for promql in (
        f'sum(batchjob_job_cpus{{jobid="{four_cpus}"}}) >= 4',
        f'batchjob_job_memory_anon_bytes{{jobid="{memory}"}} > 1e8',
        f'batchjob_job_gpu_utilization_ratio{{jobid="{gpu}"}} > 0',
    ):
        until(lambda promql=promql: tsdb.query(promql), promql, 120, 1.0)


def _submit_short_jobs(cluster: slurm.Cluster, seconds: int) -> None:
    """Submit jobs of three users, some of which fail, for some seconds."""
    until_time = time.monotonic() + seconds
    while time.monotonic() < until_time:
        cluster.submit("alice", command(cpu=5, memory_mb=50, sleep=10), "--nodes=2")
        cluster.submit("bob", f"{command(cpu=2)}; exit 3")
        cluster.submit("carol", command(cpu=1, sleep=5), "--array=1-3")
        time.sleep(30)


def recorded_series(
    tsdb: prometheus.Server, names: Sequence[str], begin: float, samples: int
) -> list[dict[str, Any]]:
    """The series with these names in Prometheus: labels, and a value for each interval."""
    result = []
    times = [begin + INTERVAL * number for number in range(samples)]
    for name in names:
        answer = tsdb.get(
            "query_range", query=name, start=str(times[0]), end=str(times[-1]), step=str(INTERVAL)
        )
        for each in answer["result"]:
            values_by_second = {
                round(moment - begin): round(float(value), 6) for moment, value in each["values"]
            }
            values = [values_by_second.get(INTERVAL * number) for number in range(samples)]
            if name.endswith(TIMES):  # the recording begins at 0
                values = [None if value is None else round(value - begin, 3) for value in values]
            result.append({"labels": each["metric"], "values": values})
    return result


def write(recording: dict[str, Any], path: Path) -> None:
    """Write a recording, with a line for each series."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(recording, sort_keys=True).replace('{"labels"', '\n{"labels"')
    path.write_text(lines + "\n")


if __name__ == "__main__":
    write(record(), Path(sys.argv[1]))

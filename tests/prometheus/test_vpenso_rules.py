"""The rules that rename the metrics of the cluster for the dashboards of vpenso."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from batchjob.schedulers.cluster import ClusterNode
from batchjob.schedulers.slurm import cluster_text
from collectors.cluster.job_metrics import JobsReading
from collectors.cluster.metrics import METRICS, families
from collectors.cluster.node_metrics import NodesReading
from tests.helpers.processes import run

PROMETHEUS = Path(__file__).parents[2] / "prometheus"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_rule_values():
    result = run(["promtool", "test", "rules", "tests/vpenso.yml"], timeout=120, cwd=PROMETHEUS)
    assert result.returncode == 0, result.stdout + result.stderr


def test_rules_use_existing_cluster_metrics():
    rules = yaml.safe_load((PROMETHEUS / "rules" / "vpenso.yml").read_text())
    used_names = {
        name
        for group in rules["groups"]
        for rule in group["rules"]
        for name in re.findall(r"batchjob_cluster_\w+", rule["expr"])
    }
    assert used_names <= {metric.name for metric in METRICS}


# Facts of vpenso's own test data (github.com/vpenso/prometheus-slurm-exporter, test_data): how
# often squeue.txt and sinfo.txt have each state, and numbers of sdiag.txt; what its queue.go,
# nodes.go and scheduler.go make of them.
SQUEUE = {
    "RUNNING": 28, "PENDING": 4, "COMPLETING": 2, "CONFIGURING": 1, "SUSPENDED": 1, "CANCELLED": 1,
    "COMPLETED": 1, "FAILED": 1, "NODE_FAIL": 1, "PREEMPTED": 1, "TIMEOUT": 1,
}  # fmt: skip
SINFO = {
    "idle": 319, "allocated": 250, "mixed": 44, "down": 67, "idle+drain": 18, "mixed+drain": 10,
    "idle+fail": 1,
}  # fmt: skip
SDIAG = b"""
Server thread count:  3
Agent queue size:     0
DBD Agent queue size: 0

Main schedule statistics (microseconds):
\tLast cycle:   97209
\tMean cycle:   74593

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 111544
\tTotal backfilled jobs (since last stats cycle start): 793
\tTotal backfilled heterogeneous job components: 10
\tLast cycle: 1942890
\tMean cycle: 1960820
\tDepth Mean: 29324
"""
VPENSO = {
    "slurm_queue_running": 28, "slurm_queue_pending": 4, "slurm_queue_pending_dependency": 0,
    "slurm_queue_suspended": 1, "slurm_queue_completing": 2, "slurm_queue_configuring": 1,
    "slurm_nodes_alloc": 250, "slurm_nodes_comp": 0, "slurm_nodes_down": 67,
    "slurm_nodes_drain": 28, "slurm_nodes_err": 0, "slurm_nodes_fail": 1, "slurm_nodes_idle": 319,
    "slurm_nodes_maint": 0, "slurm_nodes_mix": 44, "slurm_nodes_resv": 0,
    "slurm_scheduler_threads": 3, "slurm_scheduler_queue_size": 0,
    "slurm_scheduler_dbd_queue_size": 0, "slurm_scheduler_last_cycle": 97209,
    "slurm_scheduler_mean_cycle": 74593, "slurm_scheduler_backfill_last_cycle": 1942890,
    "slurm_scheduler_backfill_mean_cycle": 1960820, "slurm_scheduler_backfill_depth_mean": 29324,
    "slurm_scheduler_backfilled_jobs_since_start_total": 111544,
    "slurm_scheduler_backfilled_jobs_since_cycle_total": 793,
    "slurm_scheduler_backfilled_heterogeneous_total": 10,
}  # fmt: skip


def repeated(counts):
    return enumerate(state for state, count in counts.items() for _ in range(count))


def exposed_series():
    squeue = "JOBID|PARTITION|STATE\n"
    squeue += "".join(f"{number}|cpu|{state}\n" for number, state in repeated(SQUEUE))
    nodes = []
    for number, state in repeated(SINFO):
        base, *flags = state.split("+")
        nodes.append(ClusterNode(f"lxfoo{number}", base, frozenset(flags), ()))
    readings = {
        "jobs": JobsReading(cluster_text.jobs(squeue.encode()), {}, 0),
        "nodes": NodesReading(nodes),
        "controller": cluster_text.controller(SDIAG),
    }
    for part, reading in readings.items():
        yield f'batchjob_cluster_age_seconds{{cluster="a",part="{part}"}}', 1.0
        for family in families(part, reading):
            for labels, value in family.samples:
                yield f'{family.metric.name}{{cluster="a",{labels}}}'.replace(",}", "}"), value


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_rules_give_what_vpensos_exporter_gives_for_its_own_test_data(tmp_path):
    test = {
        "rule_files": [str(PROMETHEUS / "rules" / "vpenso.yml")],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": series, "values": f"{value:.9g}x1"}
                    for series, value in exposed_series()
                ],
                "promql_expr_test": [
                    {
                        "expr": f"round({name})",
                        "eval_time": "0m",
                        "exp_samples": [{"labels": '{cluster="a"}', "value": value}],
                    }
                    for name, value in VPENSO.items()
                ],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(test))
    result = run(["promtool", "test", "rules", str(path)], timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr

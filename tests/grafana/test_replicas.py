"""Series that two Prometheus servers write into one store are counted once."""

import shutil

import pytest
import yaml

from grafana.generate.promql import folded
from tests.helpers.processes import run

SERIES = {
    'batchjob_cluster_nodes{cluster="c",state="IDLE",instance="head"}': "3+0x10",
    'batchjob_cluster_nodes{cluster="c",state="ALLOCATED",instance="head"}': "5+0x10",
    'batchjob_node_energy_joules_total{cluster="c",instance="n1",consumer="jobs"}': (
        "0+3000x10"
    ),
    'batchjob_job_cpus{cluster="c",instance="n1",manager="slurm",jobid="1",user="alice"}': "4+0x10",
    'batchjob_job_cpus{cluster="c",instance="n2",manager="slurm",jobid="1",user="alice"}': "4+0x10",
}  # fmt: skip
EXPECTED_VALUES = {
    "sum(batchjob_cluster_nodes)": 8,
    "sum(rate(batchjob_node_energy_joules_total[5m]))": 50,
    "sum(batchjob_job_cpus)": 8,
    "count(batchjob_job_cpus)": 2,
}


@pytest.mark.skipif(not shutil.which("promtool"), reason="not installed: promtool")
def test_replicated_series_count_once(tmp_path):
    replicas = [
        {"series": f'{series[:-1]},replica="{replica}"}}', "values": values}
        for series, values in SERIES.items()
        for replica in "ab"
    ]
    expectations = [
        {"expr": query, "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, number in EXPECTED_VALUES.items()
        for query, value in ((expr, 2 * number), (folded(expr), number))
    ]
    test = {"interval": "1m", "input_series": replicas, "promql_expr_test": expectations}
    path = tmp_path / "copies.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    argv = ["promtool", "test", "rules", str(path)]
    done = run(argv)
    assert done.returncode == 0, done.stderr + done.stdout


def test_expression_with_max_is_unchanged():
    expr = "max by (node) (batchjob_cluster_node_unavailable_info)"
    assert folded(expr) == expr

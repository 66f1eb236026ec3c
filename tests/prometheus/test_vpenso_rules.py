"""The rules that rename the metrics of the cluster for the dashboards of vpenso."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from collectors.cluster.metrics import METRICS
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

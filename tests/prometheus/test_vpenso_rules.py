"""The rules that give the cluster's numbers the names of vpenso's dashboards."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from collectors.cluster.metrics import METRICS

PROMETHEUS = Path(__file__).parents[2] / "prometheus"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_values():
    done = subprocess.run(
        ["promtool", "test", "rules", "tests/vpenso.yml"],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_they_ask_for_what_the_collector_shows():
    rules = yaml.safe_load((PROMETHEUS / "rules" / "vpenso.yml").read_text())
    asked = {
        name
        for group in rules["groups"]
        for rule in group["rules"]
        for name in re.findall(r"batchjob_cluster_\w+", rule["expr"])
    }
    assert asked <= {metric.name for metric in METRICS}

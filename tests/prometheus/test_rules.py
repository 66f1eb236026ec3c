"""Recording rules, alerts and scrape configuration, checked by promtool."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.processes import run
from tests.prometheus import families

PROMETHEUS = Path(__file__).parents[2] / "prometheus"
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


def run_promtool(*arguments):
    result = run(["promtool", *arguments], timeout=120, cwd=PROMETHEUS)
    assert result.returncode == 0, result.stdout + result.stderr


def rules():
    for path in (PROMETHEUS / "rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules_and_alerts(path):
    run_promtool("test", "rules", f"tests/{path.name}")


def test_every_rule_has_a_test():
    tested = "".join(path.read_text() for path in TESTS)
    names = {rule.get("record") or rule["alert"] for rule in rules()}
    # The rules of all DCGM fields are alike.
    untested = {name for name in names if name not in tested and ":dcgm_" not in name}
    assert untested == {"batchjob:job_gpu:info", "batchjob:node:power_watts"}  # used by other rules


def test_messages_fit_singular_and_plural():
    """A number is not followed by a word: "2 jobs are" would become "1 jobs are"."""
    for rule in rules():
        for message in rule.get("annotations", {}).values():
            assert not re.search(r"{{ \$value }} \w", message), message


def test_rules_use_existing_series():
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert families.names_in(rule["expr"]) <= families.exposed_names() | recorded, rule["expr"]


def test_no_dashboard_uses_sums_that_any_node_can_change():
    """Prometheus does not know the nodes of a job, so a rule adds what any node says of it."""
    for path in (PROMETHEUS.parent / "grafana/dashboards").rglob("*.json"):
        assert "batchjob:job:" not in path.read_text(), path


def test_scrape_configuration_is_valid(tmp_path):
    copy = shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    config = copy / "prometheus.yml"
    targets = '[{"targets": ["n001:10910"], "labels": {"cluster": "alpha"}}]'
    (tmp_path / "alpha.json").write_text(targets)
    text = config.read_text().replace("/etc/prometheus/batchjob", str(tmp_path))
    config.write_text(text)
    run_promtool("check", "config", str(config))

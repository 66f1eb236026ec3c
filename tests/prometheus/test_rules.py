"""Recording rules, alerts and scrape configuration, checked by Prometheus' own promtool."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.prometheus import families

PROMETHEUS = Path(__file__).parents[2] / "prometheus"
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


def promtool(*arguments):
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def rules():
    for path in (PROMETHEUS / "rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules_and_alerts(path):
    promtool("test", "rules", f"tests/{path.name}")


def test_every_rule_has_a_test():
    tested = "".join(path.read_text() for path in TESTS)
    names = {rule.get("record") or rule["alert"] for rule in rules()}
    # DCGM's fields are all joined by the same words.
    untested = {name for name in names if name not in tested and ":dcgm_" not in name}
    assert untested == {"batchjob:job_gpu:info", "batchjob:node:power_watts"}  # steps to others


def test_messages_suit_one_and_many():
    """A plain number stands after a colon: "2 jobs are" would become "1 jobs are"."""
    for rule in rules():
        for message in rule.get("annotations", {}).values():
            assert not re.search(r"{{ \$value }} \w", message), message


def test_rules_ask_for_what_there_is():
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert families.used(rule["expr"]) <= families.known() | recorded, rule["expr"]


def test_the_scrape_configuration(tmp_path):
    copy = shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    config = copy / "prometheus.yml"
    targets = '[{"targets": ["n001:10910"], "labels": {"cluster": "alpha"}}]'
    (tmp_path / "alpha.json").write_text(targets)
    text = config.read_text().replace("/etc/prometheus/batchjob", str(tmp_path))
    config.write_text(text)
    promtool("check", "config", str(config))

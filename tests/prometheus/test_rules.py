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
    for path in (
        *(PROMETHEUS / "rules").glob("*.yml"),
        *(PROMETHEUS / "other_names").glob("*.yml"),
    ):
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


def test_nothing_but_rules_reads_what_rules_record():
    """Prometheus does not know the nodes of a job, so a rule adds what any node says of it.

    No page, answer, report, advice, column of the database and no dashboard may rest on that.
    """
    root, recorded = PROMETHEUS.parent, {rule["record"] for rule in rules() if "record" in rule}
    parts = ["batchjob", "batchjob_cli", "batchjob_exporter", "batchjob_stats_db",
             "batchjob_stats_server", "collectors", "grafana", "deploy"]  # fmt: skip
    paths = [path for part in parts for path in (root / part).rglob("*") if path.is_file()]
    assert len(paths) > 500
    for path in paths:
        text = path.read_text(errors="replace")
        # Names with a colon end at the next character that is none of a name's.
        used = set(re.findall(r"[a-z_]+(?::[a-z0-9_]+)+", text)) & recorded
        assert not used, (path, used)


def test_node_speaks_for_nobody_else():
    """What an exporter of a node may expose under names of others is dropped at the scrape."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    rules_of = {
        job["job_name"]: job.get("metric_relabel_configs", []) for job in config["scrape_configs"]
    }
    foreign = ["up", "batchjob_stats_db_polls_total", "batchjob_cluster_node_info",
               "batchjob:job:cpus", "kube_pod_info", "slurm_nodes_idle", "ALERTS"]  # fmt: skip
    own = {
        "batchjob_exporter": "batchjob_job_cpus",
        "node_exporter": "node_cpu_seconds_total",
        "dcgm_exporter": "DCGM_FI_DEV_GPU_UTIL",
    }
    for job, name in own.items():
        others = [*foreign, *(each for each in own.values() if each != name)]
        if job != "batchjob_exporter":
            others.append("batchjob_job_cpus")
        assert is_kept(rules_of[job], name)
        assert [other for other in others if is_kept(rules_of[job], other)] == [], job


def is_kept(relabel_configs, name):
    """Whether a series of this name passes the rules that look at names only."""
    for rule in relabel_configs:
        if rule.get("source_labels") == ["__name__"]:
            matches = re.fullmatch(rule["regex"], name) is not None
            if matches == (rule["action"] == "drop"):
                return False
    return True


def test_scrape_configuration_is_valid(tmp_path):
    copy = shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    config = copy / "prometheus.yml"
    targets = '[{"targets": ["n001:10910"], "labels": {"cluster": "alpha"}}]'
    (tmp_path / "alpha.json").write_text(targets)
    text = config.read_text().replace("/etc/prometheus/batchjob", str(tmp_path))
    config.write_text(text)
    run_promtool("check", "config", str(config))

"""VictoriaMetrics' own programs and kubectl read what deploy/victoriametrics has."""

import base64
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
import yaml

from tests.deploy import crds

REPOSITORY = Path(__file__).parents[2]
OPERATOR = REPOSITORY / "deploy/victoriametrics/operator"


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"not installed: {program}")


def succeed(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs("vmagent")
def test_the_agent_reads_the_scrape_configuration():
    config = REPOSITORY / "prometheus/prometheus.yml"
    flags = ["-promscrape.config.strictParse=false", "-remoteWrite.url=http://127.0.0.1"]
    succeed("vmagent", "-dryRun", f"-promscrape.config={config}", *flags)


@needs("vmagent")
def test_the_agent_knows_every_key_of_the_operators_scrape_jobs(tmp_path):
    account = tmp_path / "serviceaccount"  # what Kubernetes mounts into the agent's pod
    account.mkdir()
    (account / "token").touch()
    trustme.CA().cert_pem.write_to_path(str(account / "ca.crt"))
    text = (OPERATOR / "scrape.yml").read_text()
    text = text.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(account))
    config = tmp_path / "scrape.yml"
    config.write_text(yaml.safe_dump({"scrape_configs": yaml.safe_load(text)}))
    flags = [f"-promscrape.config={config}", "-remoteWrite.url=http://127.0.0.1"]
    succeed("vmagent", "-dryRun", *flags)


def scrape_jobs():
    return {
        each["job_name"]: each for each in yaml.safe_load((OPERATOR / "scrape.yml").read_text())
    }


def kept(job, name):
    """Whether the relabelling of a job keeps a metric of this name."""
    rules = [r for r in job["metric_relabel_configs"] if r.get("source_labels") == ["__name__"]]
    return all(
        bool(re.fullmatch(rule["regex"], name)) == (rule["action"] == "keep") for rule in rules
    )


def test_the_kubelets_times_to_start_pods_are_kept():
    """Names are those of Kubernetes' reference of metrics."""
    kubelet = scrape_jobs()["kubelet"]
    for name in ("pod_start_duration_seconds_bucket", "running_pods", "runtime_operations_total"):
        assert kept(kubelet, f"kubelet_{name}")
    assert not kept(kubelet, "kubelet_http_requests_total")
    assert not kept(kubelet, "go_goroutines")


def test_every_page_of_the_kubelet_is_scraped_and_no_container_counts_twice():
    jobs = scrape_jobs()
    paths = {each.get("metrics_path", "/metrics") for each in jobs.values() if "scheme" in each}
    assert paths == {"/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource"}
    resource = jobs["kubelet_resource"]
    assert kept(resource, "node_cpu_usage_seconds_total")
    assert kept(resource, "pod_memory_working_set_bytes")
    assert not kept(resource, "container_cpu_usage_seconds_total")
    assert {name for name, each in jobs.items() if each.get("stream_parse")} == {
        "kubelet", "cadvisor", "kube-state-metrics",
    }  # fmt: skip


def test_the_store_keeps_the_samples_of_the_shortest_interval():
    jobs = scrape_jobs()
    store = manifests()["VMSingle"]
    assert jobs["dcgm_exporter"]["scrape_interval"] == "15s"
    assert store["extraArgs"]["dedup.minScrapeInterval"] == "15s"


def test_agent_and_store_are_scraped_themselves():
    assert all(spec["disableSelfServiceScrape"] is False for spec in manifests().values())


@needs("vmalert")
def test_vmalert_reads_the_rules():
    succeed("vmalert", "-dryRun", f"-rule={REPOSITORY}/prometheus/rules/*.yml")


def manifests():
    names = yaml.safe_load((OPERATOR / "kustomization.yml").read_text())["resources"]
    return {
        each["kind"]: each["spec"]
        for each in (yaml.safe_load((OPERATOR / name).read_text()) for name in names)
    }


def test_the_operator_knows_every_field():
    for kind, spec in manifests().items():
        crds.check({"kind": kind, "spec": spec})


def test_thirty_days_on_thirty_gibibytes():
    store = manifests()["VMSingle"]
    assert store["retentionPeriod"] == "30d"
    assert store["storage"]["resources"]["requests"]["storage"] == "30Gi"


def test_the_agent_writes_to_the_stores_port():
    both = manifests()
    (near,) = both["VMAgent"]["remoteWrite"]
    assert urlsplit(near["url"]).port == int(both["VMSingle"]["port"])


def test_the_agent_writes_to_the_store_and_can_write_elsewhere():
    text = (OPERATOR / "vmagent.yml").read_text()
    lines = [
        line.replace("# -", "-").replace("#  ", " ")
        if "metrics.example.org" in line or "bearerTokenSecret" in line
        else line
        for line in text.splitlines()
    ]
    near, far = yaml.safe_load("\n".join(lines))["spec"]["remoteWrite"]
    assert near == {"url": "http://vmsingle-batchjob.monitoring.svc:8429/api/v1/write"}
    assert far["bearerTokenSecret"] == {"name": "metrics-elsewhere", "key": "token"}


@needs("kubectl")
def test_kustomize_puts_the_scrape_jobs_into_the_agents_secret():
    made = list(yaml.safe_load_all(succeed("kubectl", "kustomize", str(OPERATOR))))
    secret = next(each for each in made if each["kind"] == "Secret")
    agent = next(each for each in made if each["kind"] == "VMAgent")
    chosen = agent["spec"]["additionalScrapeConfigs"]
    assert secret["metadata"]["name"] == chosen["name"]
    text = base64.b64decode(secret["data"][chosen["key"]]).decode()
    assert text == (OPERATOR / "scrape.yml").read_text()
    assert {each["metadata"]["namespace"] for each in made} == {"monitoring"}

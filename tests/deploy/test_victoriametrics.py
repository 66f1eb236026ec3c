"""VictoriaMetrics' programs and kubectl accept the files of deploy/victoriametrics."""

import base64
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
import yaml

from tests.deploy import crds
from tests.helpers.processes import run

REPOSITORY = Path(__file__).parents[2]
OPERATOR = REPOSITORY / "deploy/victoriametrics/operator"


def requires_program(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"not installed: {program}")


def run_successfully(*argv):
    done = run(argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


@requires_program("vmagent")
def test_vmagent_accepts_prometheus_configuration():
    config = REPOSITORY / "prometheus/prometheus.yml"
    flags = ["-promscrape.config.strictParse=false", "-remoteWrite.url=http://127.0.0.1"]
    run_successfully("vmagent", "-dryRun", f"-promscrape.config={config}", *flags)


@requires_program("vmagent")
def test_vmagent_accepts_scrape_jobs_of_the_operator(tmp_path):
    account = tmp_path / "serviceaccount"  # what Kubernetes mounts into the agent's pod
    account.mkdir()
    (account / "token").touch()
    trustme.CA().cert_pem.write_to_path(str(account / "ca.crt"))
    text = (OPERATOR / "scrape.yml").read_text()
    text = text.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(account))
    config = tmp_path / "scrape.yml"
    config.write_text(yaml.safe_dump({"scrape_configs": yaml.safe_load(text)}))
    flags = [f"-promscrape.config={config}", "-remoteWrite.url=http://127.0.0.1"]
    run_successfully("vmagent", "-dryRun", *flags)


def scrape_jobs():
    return {
        each["job_name"]: each for each in yaml.safe_load((OPERATOR / "scrape.yml").read_text())
    }


def keeps_metric(job, name):
    """Whether the relabelling of a job keeps a metric of this name."""
    rules = [r for r in job["metric_relabel_configs"] if r.get("source_labels") == ["__name__"]]
    return all(
        bool(re.fullmatch(rule["regex"], name)) == (rule["action"] == "keep") for rule in rules
    )


def test_kubelet_pod_start_times_are_kept():
    """The names are from Kubernetes' metrics reference."""
    kubelet = scrape_jobs()["kubelet"]
    for name in ("pod_start_duration_seconds_bucket", "running_pods", "runtime_operations_total"):
        assert keeps_metric(kubelet, f"kubelet_{name}")
    assert not keeps_metric(kubelet, "kubelet_http_requests_total")
    assert not keeps_metric(kubelet, "go_goroutines")


def test_kubelet_endpoints_are_scraped_without_duplicate_containers():
    jobs = scrape_jobs()
    paths = {each.get("metrics_path", "/metrics") for each in jobs.values() if "scheme" in each}
    assert paths == {"/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource"}
    resource = jobs["kubelet_resource"]
    assert keeps_metric(resource, "node_cpu_usage_seconds_total")
    assert keeps_metric(resource, "pod_memory_working_set_bytes")
    assert not keeps_metric(resource, "container_cpu_usage_seconds_total")
    assert {name for name, each in jobs.items() if each.get("stream_parse")} == {
        "kubelet", "cadvisor", "kube-state-metrics",
    }  # fmt: skip


def test_deduplication_interval_is_the_shortest_scrape_interval():
    jobs = scrape_jobs()
    store = specs_by_kind()["VMSingle"]
    assert jobs["dcgm_exporter"]["scrape_interval"] == "15s"
    assert store["extraArgs"]["dedup.minScrapeInterval"] == "15s"


def test_vmagent_and_vmsingle_are_scraped():
    assert all(spec["disableSelfServiceScrape"] is False for spec in specs_by_kind().values())


@requires_program("vmalert")
def test_vmalert_accepts_rules():
    rules = [f"-rule={REPOSITORY}/prometheus/{folder}/*.yml" for folder in ("rules", "other_names")]
    run_successfully("vmalert", "-dryRun", *rules)


def specs_by_kind():
    names = yaml.safe_load((OPERATOR / "kustomization.yml").read_text())["resources"]
    return {
        each["kind"]: each["spec"]
        for each in (yaml.safe_load((OPERATOR / name).read_text()) for name in names)
    }


def test_operator_knows_every_field():
    for kind, spec in specs_by_kind().items():
        crds.validate({"kind": kind, "spec": spec})


def test_retention_of_30_days_on_30_gib():
    store = specs_by_kind()["VMSingle"]
    assert store["retentionPeriod"] == "30d"
    assert store["storage"]["resources"]["requests"]["storage"] == "30Gi"


def test_vmagent_writes_to_port_of_vmsingle():
    specs = specs_by_kind()
    (local,) = specs["VMAgent"]["remoteWrite"]
    assert urlsplit(local["url"]).port == int(specs["VMSingle"]["port"])


def test_vmagent_writes_to_vmsingle_and_optionally_elsewhere():
    text = (OPERATOR / "vmagent.yml").read_text()
    lines = [
        line.replace("# -", "-").replace("#  ", " ")
        if "metrics.example.org" in line or "bearerTokenSecret" in line
        else line
        for line in text.splitlines()
    ]
    local, remote = yaml.safe_load("\n".join(lines))["spec"]["remoteWrite"]
    assert local == {"url": "http://vmsingle-batchjob.monitoring.svc:8429/api/v1/write"}
    assert remote["bearerTokenSecret"] == {"name": "metrics-elsewhere", "key": "token"}


@requires_program("kubectl")
def test_kustomize_puts_scrape_jobs_into_secret_of_vmagent():
    manifests = list(yaml.safe_load_all(run_successfully("kubectl", "kustomize", str(OPERATOR))))
    secret = next(each for each in manifests if each["kind"] == "Secret")
    agent = next(each for each in manifests if each["kind"] == "VMAgent")
    chosen = agent["spec"]["additionalScrapeConfigs"]
    assert secret["metadata"]["name"] == chosen["name"]
    text = base64.b64decode(secret["data"][chosen["key"]]).decode()
    assert text == (OPERATOR / "scrape.yml").read_text()
    assert {each["metadata"]["namespace"] for each in manifests} == {"monitoring"}

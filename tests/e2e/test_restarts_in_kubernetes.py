"""Counters of other Kubernetes exporters continue when pods and containers are replaced."""

import contextlib
import re
import time
from pathlib import Path

import pytest
import yaml

from tests.e2e import victoriametrics
from tests.e2e.targets import serve_metrics, static_scrape_job
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
SCRAPE_CONFIG = REPOSITORY / "deploy" / "victoriametrics" / "operator" / "scrape.yml"


def metrics_page(job, generation):
    """Metrics of an exporter before (1) and after (2) a restart of all pods."""
    text = (REPOSITORY / "tests/fixtures/restarts" / f"{job}.txt").read_text()
    return text.replace("@", str(generation))


# Stored series by job: name, and the labels that distinguish series of the same name.
EXPECTED_SERIES = {
    "cadvisor": [
        {"__name__": "container_cpu_usage_seconds_total", "namespace": "a", "pod": "db-0",
         "container": "db"},
        {"__name__": "container_network_receive_bytes_total", "namespace": "a", "pod": "db-0",
         "container": "POD", "interface": "eth0"},
    ],
    "kube-state-metrics": [
        {"__name__": "kube_pod_container_status_restarts_total", "namespace": "a", "pod": "db-0",
         "container": "db"},
        {"__name__": "kube_pod_info", "namespace": "a", "pod": "db-0", "node": "n1", "uid": "u1"},
        {"__name__": "kube_pod_info", "namespace": "a", "pod": "db-0", "node": "n1", "uid": "u2"},
    ],
    "dcgm_exporter": [
        {"__name__": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu": "0", "UUID": "GPU-a",
         "modelName": "NVIDIA H100"},
    ],
    "node_exporter": [{"__name__": "node_network_receive_bytes_total", "device": "eth0"}],
    "kubelet": [{"__name__": "kubelet_running_pods"}],
    "grafana": [
        {"__name__": "grafana_http_request_duration_seconds_count", "handler": "/api/ds/query",
         "method": "POST", "status_code": "200"},
    ],
    "kubelet_probes": [
        {"__name__": "prober_probe_total", "namespace": "a", "pod": "db-0", "container": "db",
         "probe_type": "Liveness", "result": "successful"},
    ],
    "kubelet_resource": [
        {"__name__": "node_cpu_usage_seconds_total"},
        {"__name__": "pod_cpu_usage_seconds_total", "namespace": "a", "pod": "db-0"},
    ],
}  # fmt: skip


def test_series_continue_across_restarts(tmp_path):
    if why_not := victoriametrics.missing():
        pytest.skip(why_not)
    jobs = {job["job_name"]: job for job in yaml.safe_load(SCRAPE_CONFIG.read_text())}
    assert jobs.keys() == EXPECTED_SERIES.keys()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(victoriametrics.store(tmp_path / "store"))
        current_pages = {name: {"text": metrics_page(name, 1)} for name in jobs}
        targets = {
            name: stack.enter_context(
                serve_metrics(lambda current_page=current_page: current_page["text"])
            )
            for name, current_page in current_pages.items()
        }
        scrape_jobs = [static_scrape_job(jobs[name], target) for name, target in targets.items()]
        stack.enter_context(victoriametrics.scraping_agent(tmp_path / "agent", store, scrape_jobs))
        energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
        until(lambda: _all_up(store, len(jobs)), "all targets scraped")
        for name, current_page in current_pages.items():
            current_page["text"] = metrics_page(name, 2)
        restarted = time.time()
        until(lambda: _value(store, energy) == 2000, "scraped after the restart")
        rescraped = f"count(timestamp(up) > {restarted + 1})"
        until(lambda: _value(store, rescraped) == len(jobs), "all targets scraped again")
        for name, expected in EXPECTED_SERIES.items():
            assert _stored_series(store, name) == _sorted_label_sets(expected), name


def _all_up(store, count):
    return len(store.query("sum by (job) (up) == 1")) == count


def _value(store, promql):
    vector = store.query(promql)
    return float(vector[0]["value"][1]) if vector else None


AGENT_METRICS = re.compile("up|scrape_.*")


def _stored_series(store, job):
    series = store.series(f'{{job="{job}"}}')
    return _sorted_label_sets(
        {name: text for name, text in labels.items() if name not in ("job", "instance")}
        for labels in series
        if not AGENT_METRICS.fullmatch(labels["__name__"])
    )


def _sorted_label_sets(label_sets):
    return sorted(label_sets, key=lambda labels: sorted(labels.items()))

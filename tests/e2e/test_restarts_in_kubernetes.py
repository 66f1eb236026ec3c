"""Counters of what stands beside batchjob in Kubernetes go on when pods and containers are new."""

import contextlib
import re
import time
from pathlib import Path

import pytest
import yaml

from tests.e2e import victoriametrics
from tests.e2e.processes import until
from tests.e2e.targets import exposed, static

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
SCRAPE = REPOSITORY / "deploy" / "victoriametrics" / "operator" / "scrape.yml"


def pages(job, generation):
    """What such an exporter says before (1) and after (2) a restart of everything."""
    text = (REPOSITORY / "tests/fixtures/restarts" / f"{job}.txt").read_text()
    return text.replace("@", str(generation))


# Each series that is left, by name and labels that tell it from others of its name.
LEFT = {
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


def test_series_are_the_same_before_and_after(tmp_path):
    if why_not := victoriametrics.missing():
        pytest.skip(why_not)
    jobs = {job["job_name"]: job for job in yaml.safe_load(SCRAPE.read_text())}
    assert jobs.keys() == LEFT.keys()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(victoriametrics.store(tmp_path / "store"))
        now = {name: {"now": pages(name, 1)} for name in jobs}
        targets = {
            name: stack.enter_context(exposed(lambda page=page: page["now"]))
            for name, page in now.items()
        }
        scraped = [static(jobs[name], target) for name, target in targets.items()]
        stack.enter_context(victoriametrics.scraping(tmp_path / "agent", store, scraped))
        energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
        until(lambda: _all_up(store, len(jobs)), "all targets scraped")
        for name, page in now.items():
            page["now"] = pages(name, 2)
        until(lambda: _value(store, energy) == 2000, "scraped after the restart")
        time.sleep(2)
        for name, expected in LEFT.items():
            assert _left(store, name) == _sorted(expected), name


def _all_up(store, count):
    return len(store.query("sum by (job) (up) == 1")) == count


def _value(store, promql):
    found = store.query(promql)
    return float(found[0]["value"][1]) if found else None


OF_THE_AGENT = re.compile("up|scrape_.*")


def _left(store, job):
    found = store.series(f'{{job="{job}"}}')
    return _sorted(
        {name: text for name, text in labels.items() if name not in ("job", "instance")}
        for labels in found
        if not OF_THE_AGENT.fullmatch(labels["__name__"])
    )


def _sorted(rows):
    return sorted(rows, key=lambda labels: sorted(labels.items()))

"""Latest values and time series of nodes, from real stores."""

import pytest

from batchjob.quantities.quantity import SeriesKind
from batchjob_stats_db.timeseries.base import SeriesQuery
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from tests.batchjob_stats_db.tsdb import SERVERS

T = 1_775_300_000
N1 = {"cluster": "c1", "instance": "n1:10910"}


def sample_line(metric, value, at, **labels):
    text = ",".join(f'{name}="{each}"' for name, each in labels.items())
    return f"{metric}{{{text}}} {value} {at}"


def two_hours_of_lines():
    """Two hours of a node that two replicas scrape, half an hour of another; 1.5 CPUs are busy."""
    for number in range(240):
        at = T - 7200 + 30 * number
        for replica in ("a", "b"):
            for mode, rate in (("user", 1.0), ("system", 0.5), ("idle", 2.5)):
                labels = N1 | {"mode": mode, "replica": replica}
                yield sample_line(
                    "batchjob_node_cpu_seconds_total", rate * 30 * number, at, **labels
                )
        yield sample_line("batchjob_node_cpus", 4, at, **N1)
        yield sample_line("batchjob_gpu_utilization_ratio", 0.5, at, gpu="0", uuid="G", **N1)
        if number < 60:
            yield sample_line("batchjob_node_cpus", 8, at, cluster="c1", instance="n2:10910")
        yield sample_line("batchjob_node_cpus", 9, at, cluster="other", instance="n3:10910")


@pytest.fixture(params=SERVERS, scope="module")
def store(request):
    with request.param(list(two_hours_of_lines())) as url:
        yield Prometheus(Endpoint(url, scrape_interval=30.0))


def test_latest_excludes_nodes_that_are_gone(store):
    found = store.latest("c1", ["batchjob_node_cpus", "batchjob_gpu_utilization_ratio"], T)
    assert {(each.metric, each.labels["instance"], each.value) for each in found} == {
        ("batchjob_node_cpus", "n1:10910", 4.0),
        ("batchjob_gpu_utilization_ratio", "n1:10910", 0.5),
    }
    assert store.latest("c1", ["batchjob_node_cpus"], T, "n2:10910") == []


def test_scrape_ratio_of_each_node(store):
    found = store.scrape_ratios("c1", "batchjob_node_cpus", T, 7200)
    ratios = {each.labels["instance"]: each.value for each in found}
    assert ratios == pytest.approx({"n1:10910": 1.0, "n2:10910": 0.25}, abs=0.01)


def test_node_series_counts_replicas_once(store):
    cpu_query = SeriesQuery(
        "batchjob_node_cpu_seconds_total", SeriesKind.RATE, {"mode": ("user", "system")},
        ("mode",),
    )  # fmt: skip
    (cpu,) = store.node_series(cpu_query, "c1", "n1:10910", T - 3600, T, 12)
    assert {round(point.mean, 3) for point in cpu.points} == {1.5}
    assert len(cpu.points) == 12
    gpu_query = SeriesQuery("batchjob_gpu_utilization_ratio", SeriesKind.GAUGE, by=("gpu", "uuid"))
    (utilization,) = store.node_series(gpu_query, "c1", "n1:10910", T - 3600, T, 12)
    assert utilization.labels == {"gpu": "0", "uuid": "G"}
    assert {point.mean for point in utilization.points} == {0.5}


def test_series_of_all_nodes_of_a_cluster(store):
    cpus = SeriesQuery("batchjob_node_cpus", SeriesKind.GAUGE, by=("instance",))
    found = store.node_series(cpus, "c1", "", T - 7200, T, 2)
    assert {each.labels["instance"]: [point.mean for point in each.points] for each in found} == {
        "n1:10910": [4.0, 4.0], "n2:10910": [8.0],
    }  # fmt: skip

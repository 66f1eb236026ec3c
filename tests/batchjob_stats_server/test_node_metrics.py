"""The node metrics that the server queries are those that the exporter has."""

from batchjob_stats_server.cluster_readings import CLUSTER_METRICS
from batchjob_stats_server.curves import NODE_CURVES
from collectors.cluster import metrics as cluster
from collectors.energy.metrics import NODE_ENERGY
from collectors.node import METRICS, MODES


def test_queried_node_metrics_are_exported():
    exported = {query.name for query in (*METRICS, NODE_ENERGY, *cluster.METRICS)}
    assert set(CLUSTER_METRICS) <= exported
    queries = [
        query
        for curve in NODE_CURVES.values()
        for query in (curve.query, curve.subtracted)
        if query
    ]
    assert {
        query.metric for query in queries if query.metric.startswith("batchjob_node_")
    } <= exported


def test_every_cpu_mode_is_busy_or_idle():
    busy = set(NODE_CURVES["cpu"].query.where["mode"])
    assert busy | {"idle", "iowait"} == set(MODES)

"""The metrics of nodes that the server asks for are those that the exporter has."""

from batchjob_stats_server.cluster_readings import CLUSTER_METRICS
from batchjob_stats_server.node_curves import NODE_CURVES
from collectors.cluster import metrics as cluster
from collectors.energy.metrics import NODE_ENERGY
from collectors.node import METRICS, MODES


def test_the_exporter_has_them():
    known = {each.name for each in (*METRICS, NODE_ENERGY, *cluster.METRICS)}
    assert set(CLUSTER_METRICS) <= known
    asked = [
        each for curve in NODE_CURVES.values() for each in (curve.query, curve.subtracted) if each
    ]
    assert {each.metric for each in asked if each.metric.startswith("batchjob_node_")} <= known


def test_every_mode_of_cpu_time_is_busy_or_not():
    busy = set(NODE_CURVES["cpu"].query.where["mode"])
    assert busy | {"idle", "iowait"} == set(MODES)

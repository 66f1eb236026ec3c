"""The reading of a cluster's nodes and accounts, of which any target could expose series."""

from batchjob_stats_db.timeseries.base import SeriesValue
from batchjob_stats_server.cluster_readings import reading_from_series

NODE = "batchjob_cluster_node_"
SCHEDULER = {"job": "batchjob_cluster", "instance": "slurmctl:10913"}


def exporter(instance, job="batchjob_exporter"):
    return SeriesValue("batchjob_node_cpus", {"job": job, "instance": instance}, 4.0)


def node_series(target, node, state="idle", cpus=4.0):
    return [
        SeriesValue(f"{NODE}info", {**target, "node": node, "state": state}, 1.0),
        SeriesValue(f"{NODE}cpus", {**target, "node": node}, cpus),
    ]


def test_nodes_come_from_the_target_of_the_scheduler():
    reading = reading_from_series([exporter("n1"), *node_series(SCHEDULER, "n1")])
    assert reading.totals() == {"cpus": 4}
    assert reading.nodes["n1"].state == "idle"
    assert reading.ignored == 0


def test_a_compute_node_does_not_speak_for_the_scheduler():
    lying = {"job": "batchjob_exporter", "instance": "n9"}
    series = [exporter("n1"), exporter("n9"), *node_series(SCHEDULER, "n1")]
    reading = reading_from_series([*series, *node_series(lying, "n1", "down", cpus=1e6)])
    assert reading.nodes["n1"].state == "idle"
    assert reading.totals() == {"cpus": 4}
    assert reading.ignored == 2


def test_one_machine_speaks_for_its_own_scheduler():
    own = {"job": "batchjob", "instance": "localhost:10910"}
    reading = reading_from_series([exporter("localhost:10910", "batchjob"), *node_series(own, "a")])
    assert list(reading.nodes) == ["a"]


def test_of_two_compute_nodes_that_speak_for_the_scheduler_none_is_believed():
    first, second = ({"job": "nodes", "instance": name} for name in ("n1", "n2"))
    series = [exporter("n1", "nodes"), exporter("n2", "nodes")]
    reading = reading_from_series(
        [*series, *node_series(first, "n1"), *node_series(second, "n1", cpus=8.0)]
    )
    assert reading.nodes == {}
    assert reading.ignored == 4
    assert reading.instance("n2") == "n2"


def test_two_targets_of_the_scheduler_are_both_believed():
    other = {"job": "batchjob_cluster", "instance": "slurmctl2:10913"}
    reading = reading_from_series([*node_series(SCHEDULER, "n1"), *node_series(other, "n2")])
    assert list(reading.nodes) == ["n1", "n2"]


def test_series_without_a_label_or_a_finite_value_are_counted():
    broken = [
        SeriesValue(f"{NODE}info", {**SCHEDULER, "node": "n2"}, 1.0),
        SeriesValue(f"{NODE}info", {**SCHEDULER, "state": "idle"}, 1.0),
        SeriesValue(f"{NODE}cpus", SCHEDULER, 4.0),
        SeriesValue(f"{NODE}cpus", {**SCHEDULER, "node": "n1"}, float("inf")),
        SeriesValue(f"{NODE}flag", {**SCHEDULER, "node": "n1"}, 1.0),
        SeriesValue(f"{NODE}unavailable_info", {**SCHEDULER, "node": "n1"}, 1.0),
        SeriesValue("batchjob_cluster_account_shares_ratio", SCHEDULER, 0.5),
    ]
    reading = reading_from_series([*node_series(SCHEDULER, "n1"), *broken])
    assert reading.totals() == {"cpus": 4}
    assert reading.ignored == len(broken)

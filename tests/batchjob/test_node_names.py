"""Schedulers, hosts and scrape targets call the same node by different names."""

import pytest

from batchjob.schedulers.node_names import NodeNames


@pytest.mark.parametrize(
    ("allocated", "instance", "is_same"),
    [
        ("n1", "n1", True),
        ("n1", "n1:9400", True),
        ("n1", "n1.cluster.example:9400", True),
        ("n1.cluster.example", "n1:9400", True),
        ("n1.cluster.example", "n1.cluster.example.:9400", True),
        ("N1", "n1.Cluster.Example:9400", True),
        ("10.0.0.1", "10.0.0.1:9400", True),
        ("fe80::1", "[fe80::1]:9400", True),
        ("n1", "n10:9400", False),
        ("n1", "n9:9400", False),
        ("n1.a.example", "n1.b.example:9400", False),
        ("10.0.0.1", "10.0.0.2:9400", False),
        ("10", "10.0.0.1:9400", False),
        ("n1", "", False),
    ],
)
def test_names_of_a_node(allocated, instance, is_same):
    assert (instance in NodeNames([allocated])) is is_same


def test_no_nodes():
    assert not NodeNames([])
    assert "n1" not in NodeNames([])

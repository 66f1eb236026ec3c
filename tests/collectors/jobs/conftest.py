"""Fixtures of the jobs collector's tests."""

import pytest

from tests.collectors.jobs.nodes import Node


@pytest.fixture
def node(tmp_path):
    simulated = Node(tmp_path)
    yield simulated
    for collector in simulated.collectors:
        collector.stop()

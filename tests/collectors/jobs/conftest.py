"""Fixtures of the jobs collector's tests."""

import pytest

from tests.collectors.jobs.nodes import Node


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    for each in made.started:
        each.stop()

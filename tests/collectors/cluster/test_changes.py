"""How long nodes are unavailable or draining."""

import pytest

from batchjob.schedulers.cluster import ClusterNode
from collectors.cluster.changes import ConditionDurations, is_draining, is_unavailable
from collectors.cluster.metric_types import Histogram

IDLE = ClusterNode("n1", "idle", frozenset(), ())
DOWN = IDLE._replace(state="down")


def count_and_seconds(histogram: Histogram) -> tuple[int, float]:
    return sum(histogram.counts), histogram.seconds


def test_duration_is_recorded_when_the_condition_ends():
    durations = ConditionDurations(is_unavailable)
    durations.observe([IDLE], 100)
    assert count_and_seconds(durations.observe([DOWN], 130)) == (0, 0)
    assert count_and_seconds(durations.observe([DOWN], 160)) == (0, 0)
    assert count_and_seconds(durations.observe([IDLE], 190)) == (1, 60)
    assert count_and_seconds(durations.observe([IDLE], 220)) == (1, 60)


def test_duration_starts_at_the_time_of_the_reason():
    durations = ConditionDurations(is_unavailable)
    durations.observe([IDLE], 100)
    durations.observe([DOWN._replace(reason_since=110)], 130)
    durations.observe([DOWN._replace(reason_since=150)], 160)  # another reason, same outage
    assert count_and_seconds(durations.observe([IDLE], 190)) == (1, 80)


def test_reason_older_than_the_condition_does_not_extend_the_duration():
    durations = ConditionDurations(is_unavailable)
    durations.observe([IDLE], 100)
    durations.observe([DOWN._replace(reason_since=20)], 130)
    assert count_and_seconds(durations.observe([IDLE], 190)) == (1, 60)


@pytest.mark.parametrize(("reason_since", "expected"), [(None, (0, 0)), (40, (1, 90))])
def test_condition_older_than_the_first_reading_is_counted_only_with_a_time(reason_since, expected):
    durations = ConditionDurations(is_unavailable)
    durations.observe([DOWN._replace(reason_since=reason_since)], 100)
    assert count_and_seconds(durations.observe([IDLE], 130)) == expected


def test_removed_node_is_forgotten():
    durations = ConditionDurations(is_unavailable)
    durations.observe([IDLE], 100)
    durations.observe([DOWN], 130)
    durations.observe([], 160)
    assert count_and_seconds(durations.observe([IDLE], 190)) == (0, 0)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (IDLE._replace(flags=frozenset(("drain",)), cpus_allocated=2), True),
        (IDLE._replace(flags=frozenset(("drain",)), state="mixed"), True),
        (IDLE._replace(flags=frozenset(("drain",)), cpus_allocated=0), False),  # drained
        (IDLE._replace(state="mixed", cpus_allocated=2), False),
    ],
)
def test_is_draining(node, expected):
    assert is_draining(node) is expected

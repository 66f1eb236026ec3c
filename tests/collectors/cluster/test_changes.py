"""Spells of nodes: out of use, and draining."""

import pytest

from batchjob.schedulers.cluster import ClusterNode
from collectors.cluster.changes import ConditionDurations, is_draining, is_unavailable
from collectors.cluster.metric_types import Histogram

IDLE = ClusterNode("n1", "idle", frozenset(), ())
DOWN = IDLE._replace(state="down")


def over(histogram: Histogram) -> tuple[int, float]:
    return sum(histogram.counts), histogram.seconds


def test_a_spell_counts_when_it_is_over():
    spells = ConditionDurations(is_unavailable)
    spells.observe([IDLE], 100)
    assert over(spells.observe([DOWN], 130)) == (0, 0)
    assert over(spells.observe([DOWN], 160)) == (0, 0)
    assert over(spells.observe([IDLE], 190)) == (1, 60)
    assert over(spells.observe([IDLE], 220)) == (1, 60)


def test_it_begins_when_its_reason_was_given():
    spells = ConditionDurations(is_unavailable)
    spells.observe([IDLE], 100)
    spells.observe([DOWN._replace(reason_since=110)], 130)
    spells.observe([DOWN._replace(reason_since=150)], 160)  # another reason, the same spell
    assert over(spells.observe([IDLE], 190)) == (1, 80)


def test_the_reason_of_an_earlier_spell_is_not_this_ones():
    spells = ConditionDurations(is_unavailable)
    spells.observe([IDLE], 100)
    spells.observe([DOWN._replace(reason_since=20)], 130)
    assert over(spells.observe([IDLE], 190)) == (1, 60)


@pytest.mark.parametrize(("since", "counted"), [(None, (0, 0)), (40, (1, 90))])
def test_a_spell_older_than_the_first_reading_needs_a_time(since, counted):
    spells = ConditionDurations(is_unavailable)
    spells.observe([DOWN._replace(reason_since=since)], 100)
    assert over(spells.observe([IDLE], 130)) == counted


def test_a_node_that_is_gone_is_forgotten():
    spells = ConditionDurations(is_unavailable)
    spells.observe([IDLE], 100)
    spells.observe([DOWN], 130)
    spells.observe([], 160)
    assert over(spells.observe([IDLE], 190)) == (0, 0)


@pytest.mark.parametrize(
    ("node", "drains"),
    [
        (IDLE._replace(flags=frozenset(("drain",)), cpus_allocated=2), True),
        (IDLE._replace(flags=frozenset(("drain",)), state="mixed"), True),
        (IDLE._replace(flags=frozenset(("drain",)), cpus_allocated=0), False),  # drained
        (IDLE._replace(state="mixed", cpus_allocated=2), False),
    ],
)
def test_what_draining_is(node, drains):
    assert is_draining(node) is drains

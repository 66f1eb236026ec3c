"""Totals by every store against a model: resets, gaps, replicas, runs of one id."""

import random
from itertools import pairwise
from typing import NamedTuple

import pytest

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.counters import is_reset, samples_around_resets, total_of
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import line

T = 1_775_300_000
STEP = 30
CPU = "batchjob_job_cpu_seconds_total"
ENERGY = "batchjob_job_energy_joules_total"
NODES = ("n001:10910", "n002:10910")


class Run(NamedTuple):
    """A run of a job, and what each of its counters counted."""

    span: JobWindow
    counted: dict[tuple[str, str], float]  # (metric, instance)


def _counter(chance, start, scrapes, resets, gaps):
    """Samples of a counter that may fall and may be away for a while, and its total."""
    value, samples = 0.001, []
    away = 0
    for number in range(1, scrapes + 1):
        if samples and chance.random() < resets:
            value = 0.0
        grown = chance.choice((0, 0, 1, 5, 17)) + chance.randint(0, 10**9) / 10**9
        value = round(value + grown, 9) if chance.random() < 0.5 else value
        if chance.random() < gaps:
            away = chance.randint(1, 30)
        if away and number < scrapes:
            away -= 1
            value, kept = samples[-1][1] if samples else value, None
        else:
            kept = (start + STEP * number, value)
        if kept:
            samples.append(kept)
    return samples


def _counted(samples):
    falls = [a for (_, a), (_, b) in pairwise(samples) if b < a]
    return sum(falls) + samples[-1][1]


def _lines(chance, jobid, start, scrapes, resets, gaps):
    """A run on two nodes, whose second replica misses some scrapes of the first."""
    lines, counted = [], {}
    for instance in NODES:
        for metric, labels in ((CPU, {"mode": "user"}), (ENERGY, _ACTIVE)):
            samples = _counter(chance, start, scrapes, resets, gaps)
            counted[metric, instance] = _counted(samples)
            shared = {"jobid": jobid, "instance": instance, **labels}
            name = metric.removeprefix("batchjob_job_")
            lines += [line(name, value, at, replica="a", **shared) for at, value in samples]
            seen = [each for each in samples if chance.random() < 0.7]
            lines += [line(name, value, at, replica="b", **shared) for at, value in seen]
    return lines, counted


_ACTIVE = {"component": "host", "kind": "active"}


def _site(seed):
    chance = random.Random(seed)
    lines, runs = [], []
    for number in range(12):
        scrapes = chance.choice((1, 3, 50, 119, 120, 121, 400, 1000))
        resets, gaps = chance.choice((0, 0.002, 0.05)), chance.choice((0, 0, 0.01))
        start = T + chance.randint(0, 5000)
        made, counted = _lines(chance, str(number), start, scrapes, resets, gaps)
        lines += made
        runs.append(Run(_span(str(number), start, scrapes), counted))
    return lines, runs


def _span(jobid, start, scrapes):
    return JobWindow("c1", jobid, start, start + STEP * scrapes + 10, nodes=2)


LINES, RUNS = [], []
for _seed in range(3):
    _more, _runs = _site(_seed)
    LINES += [each.replace('jobid="', f'jobid="{_seed}.') for each in _more]
    RUNS += [
        run._replace(span=run.span._replace(jobid=f"{_seed}.{run.span.jobid}")) for run in _runs
    ]


@pytest.fixture(scope="module", params=STORES)
def history(request):
    with request.param(LINES) as opened:
        yield opened


def about(history, total):
    """Sample files keep milliseconds and tenths of joules, so each reset rounds once."""
    return pytest.approx(total, abs=3 if history.source == "samples" else 1e-6)


def totals(history, spans):
    return history.measure({Statistic.TOTAL: [CPU, ENERGY]}, spans)[Statistic.TOTAL]


def test_every_counter_of_every_job(history):
    found = totals(history, [run.span for run in RUNS])
    seen = {(s.labels["jobid"], s.metric, s.labels["instance"]): s.value for s in found}
    assert len(seen) == len(found)
    assert seen == {
        (run.span.jobid, *which): about(history, total)
        for run in RUNS
        for which, total in run.counted.items()
    }


def test_a_run_whose_predecessor_is_near_counts_the_same(history):
    for run in RUNS[:12]:
        spans = [run.span._replace(near_other_run=True)]
        found = totals(history, spans)
        seen = {(s.metric, s.labels["instance"]): s.value for s in found}
        assert seen == {which: about(history, total) for which, total in run.counted.items()}


def test_rounding_is_no_reset():
    assert not is_reset(5.070736989, 5.070736988999999)
    assert is_reset(5.070736989, 5.0707)
    assert total_of([(1, 5.070736989), (2, 5.070736988999999)], 0) == pytest.approx(5.070736989)


def test_the_corners_of_a_counter_have_its_total():
    chance = random.Random(1)
    for _ in range(200):
        points = [(float(at), chance.randint(0, 5)) for at in range(-2, chance.randint(1, 30))]
        assert total_of(points, 0) == total_of(
            [
                *samples_around_resets([p for p in points if p[0] < 0]),
                *samples_around_resets([p for p in points if p[0] >= 0]),
            ],
            0,
        )

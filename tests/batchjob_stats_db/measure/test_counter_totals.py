"""Counter totals of every store against a model: resets, gaps, replicas, nearby runs."""

import random
from itertools import pairwise
from typing import NamedTuple

import pytest

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.resample import is_reset, samples_around_resets, total_of
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import line

T = 1_775_300_000
STEP = 30
CPU = "batchjob_job_cpu_seconds_total"
ENERGY = "batchjob_job_energy_joules_total"
NODES = ("n001:10910", "n002:10910")


class SimulatedRun(NamedTuple):
    """A run of a job, and the expected total of each of its counters."""

    span: JobWindow
    expected: dict[tuple[str, str], float]  # (metric, instance)


def _counter_samples(rng, start, scrapes, reset_probability, gap_probability):
    """Samples of a counter that may be reset and may be missing for a while."""
    value, samples = 0.001, []
    scrapes_missed = 0
    for number in range(1, scrapes + 1):
        if samples and rng.random() < reset_probability:
            value = 0.0
        growth = rng.choice((0, 0, 1, 5, 17)) + rng.randint(0, 10**9) / 10**9
        value = round(value + growth, 9) if rng.random() < 0.5 else value
        if rng.random() < gap_probability:
            scrapes_missed = rng.randint(1, 30)
        if scrapes_missed and number < scrapes:
            scrapes_missed -= 1
            value, sample = samples[-1][1] if samples else value, None
        else:
            sample = (start + STEP * number, value)
        if sample:
            samples.append(sample)
    return samples


def _expected_total(samples):
    falls = [a for (_, a), (_, b) in pairwise(samples) if b < a]
    return sum(falls) + samples[-1][1]


def _run_lines(rng, jobid, start, scrapes, reset_probability, gap_probability):
    """A run on two nodes, whose second replica misses some scrapes of the first."""
    lines, expected = [], {}
    for instance in NODES:
        for metric, labels in ((CPU, {"mode": "user"}), (ENERGY, _ACTIVE)):
            samples = _counter_samples(rng, start, scrapes, reset_probability, gap_probability)
            expected[metric, instance] = _expected_total(samples)
            shared = {"jobid": jobid, "instance": instance, **labels}
            name = metric.removeprefix("batchjob_job_")
            lines += [line(name, value, at, replica="a", **shared) for at, value in samples]
            second_replica = [each for each in samples if rng.random() < 0.7]
            lines += [line(name, value, at, replica="b", **shared) for at, value in second_replica]
    return lines, expected


_ACTIVE = {"component": "host", "kind": "active"}


def _lines_and_runs(seed):
    rng = random.Random(seed)
    lines, runs = [], []
    for number in range(12):
        scrapes = rng.choice((1, 3, 50, 119, 120, 121, 400, 1000))
        reset_probability, gap_probability = rng.choice((0, 0.002, 0.05)), rng.choice((0, 0, 0.01))
        start = T + rng.randint(0, 5000)
        run_lines, expected = _run_lines(
            rng, str(number), start, scrapes, reset_probability, gap_probability
        )
        lines += run_lines
        runs.append(SimulatedRun(_span(str(number), start, scrapes), expected))
    return lines, runs


def _span(jobid, start, scrapes):
    return JobWindow("c1", jobid, start, start + STEP * scrapes + 10, nodes=2)


LINES, RUNS = [], []
for _seed in range(3):
    _lines_of_seed, _runs_of_seed = _lines_and_runs(_seed)
    LINES += [each.replace('jobid="', f'jobid="{_seed}.') for each in _lines_of_seed]
    RUNS += [
        run._replace(span=run.span._replace(jobid=f"{_seed}.{run.span.jobid}"))
        for run in _runs_of_seed
    ]


@pytest.fixture(scope="module", params=STORES)
def history(request):
    with request.param(LINES) as opened:
        yield opened


def approximately(history, total):
    """Sample files keep milliseconds and tenths of joules, so each reset rounds once."""
    return pytest.approx(total, abs=3 if history.source == "samples" else 1e-6)


def totals(history, spans):
    return history.measure({Statistic.TOTAL: [CPU, ENERGY]}, spans)[Statistic.TOTAL]


def test_totals_match_the_model(history):
    found = totals(history, [run.span for run in RUNS])
    values = {(s.labels["jobid"], s.metric, s.labels["instance"]): s.value for s in found}
    assert len(values) == len(found)
    assert values == {
        (run.span.jobid, *which): approximately(history, total)
        for run in RUNS
        for which, total in run.expected.items()
    }


def test_totals_match_the_model_near_another_run(history):
    for run in RUNS[:12]:
        spans = [run.span._replace(near_other_run=True)]
        found = totals(history, spans)
        values = {(s.metric, s.labels["instance"]): s.value for s in found}
        assert values == {
            which: approximately(history, total) for which, total in run.expected.items()
        }


def test_rounding_is_not_a_reset():
    assert not is_reset(5.070736989, 5.070736988999999)
    assert is_reset(5.070736989, 5.0707)
    assert total_of([(1, 5.070736989), (2, 5.070736988999999)], 0) == pytest.approx(5.070736989)


def test_samples_around_resets_have_the_same_total():
    rng = random.Random(1)
    for _ in range(200):
        points = [(float(at), rng.randint(0, 5)) for at in range(-2, rng.randint(1, 30))]
        assert total_of(points, 0) == total_of(
            [
                *samples_around_resets([p for p in points if p[0] < 0]),
                *samples_around_resets([p for p in points if p[0] >= 0]),
            ],
            0,
        )

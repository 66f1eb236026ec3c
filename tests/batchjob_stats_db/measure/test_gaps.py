"""What measurements stand for that have gaps: of counters and of averages, in every store."""

import pytest

from batchjob_stats_db.measure.batches import measure
from batchjob_stats_db.measure.coverage import (
    MeasuredTime,
    NodeSamples,
    coverage,
    has_gaps,
    has_gpu_gaps,
    measured_until,
)
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.timeseries.base import JobWindow
from tests.batchjob_stats_db.conftest import NOW
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import line

STEP = 30
BEGIN = NOW - 3600
BUSY = 3.0  # of 4 CPUs


def node(jobid, *seen, instance="n001:10910", reset=0, end=None):
    """Samples of a node, in seconds since the job's start; of a counter that may restart."""
    lines = []
    for first, last in seen:
        for at in range(first, last + 1, STEP):
            own = {"jobid": jobid, "instance": instance}
            used = BUSY * (at - reset if at > reset else at)
            lines.append(line("cpu_seconds_total", used, BEGIN + at, mode="user", **own))
            lines.append(line("memory_current_bytes", 4096, BEGIN + at, **own))
            lines.append(line("memory_peak_bytes", 4096, BEGIN + at, **own))
            if end is not None and at >= end:
                lines.append(line("end_time_seconds", BEGIN + end, BEGIN + at, **own))
    return lines


LINES = [
    *node("gap", (20, 620), (1520, 3590)),
    *node("reset", (20, 620), (1520, 3590), reset=1000),
    *node("silent", (20, 620), (1520, 2000)),
    *node("one stopped", (20, 3590)),
    *node("one stopped", (20, 620), (1520, 1790), instance="n002:10910"),
    *node("ended", (20, 620), (1520, 3010), end=3000),
    *node("end unseen", (20, 620), (1520, 2030)),
    *node("seen late", (1820, 3590)),
]


def job(jobid, nodes=1, end=None, number=7):
    until = NOW if end is None else BEGIN + end + 390
    span = JobWindow("c1", jobid, BEGIN, until, end=None if end is None else BEGIN + end)
    return JobToMeasure(number, "c1", jobid, "alice", 1001, BEGIN, span.end, nodes, 4 * nodes, span)


@pytest.fixture(scope="module", params=STORES)
def history(request):
    with request.param(LINES) as opened:
        yield opened


def efficiency(usage, job):
    seconds = (usage.until_time - job.start) * usage.coverage
    return usage.values["user_cpu_seconds"] / (job.cpus * seconds)


@pytest.mark.parametrize(
    ("jobid", "more", "until", "covered", "doubts"),
    [
        ("gap", {}, 3590, 1.0, "running, gaps in samples"),
        ("silent", {}, 2000, 1.0, "running, gaps in samples"),
        (
            "one stopped",
            {"nodes": 2},
            3590,
            (1 + 1790 / 3590) / 2,
            "running, nodes missing, gaps in samples",
        ),
        ("ended", {"end": 3000}, 3000, 1.0, "gaps in samples"),
        ("end unseen", {"end": 3000}, 3000, 2030 / 3000, "nodes missing, gaps in samples"),
        ("seen late", {}, 3590, 1.0, "running, gaps in samples"),
    ],
)
def test_a_counter_stands_for_all_the_time_up_to_its_last_sample(
    history, jobid, more, until, covered, doubts
):
    which = job(jobid, **more)
    (usage,) = measure(history, [which], STEP)
    assert usage.until_time == BEGIN + until
    assert usage.coverage == pytest.approx(covered, abs=0.01)
    assert usage.doubt == doubts
    assert efficiency(usage, which) == pytest.approx(0.75, abs=0.01)


def test_what_a_counter_lost_that_began_anew_in_a_gap_is_not_covered(history):
    (usage,) = measure(history, [job("reset")], STEP)
    assert usage.values["user_cpu_seconds"] == pytest.approx(BUSY * (620 + 2590))
    assert usage.coverage == pytest.approx((21 + 70) * STEP / 3590)


def test_jobs_that_are_measured_together_have_the_same_figures(history):
    jobs = [job(each, number=n) for n, each in enumerate(("gap", "silent", "reset", "seen late"))]
    apart = [measure(history, [each], STEP)[0] for each in jobs]
    for together, alone in zip(measure(history, jobs, STEP), apart, strict=True):
        assert together.until_time == alone.until_time
        assert together.coverage == pytest.approx(alone.coverage)


RUNS = MeasuredTime(0, None, 3600)


def test_a_job_is_covered_by_the_nodes_that_it_has():
    whole = NodeSamples(120, latest=3600.0)
    assert coverage([whole, whole], 2, RUNS, 30) == 1
    assert coverage([whole], 2, RUNS, 30) == 0.5
    assert coverage([], 2, RUNS, 30) == 0


def test_the_end_is_not_known_of_a_node_that_did_not_tell_of_it():
    ended = MeasuredTime(0, 3600, 3600)
    assert coverage([NodeSamples(130, latest=3700.0)], 1, ended, 30) == 0.999
    assert coverage([NodeSamples(3, latest=3700.0, end=3600.0)], 1, ended, 30) == 1


def test_some_samples_may_be_missing_without_a_gap():
    assert not has_gaps([NodeSamples(120, 3600.0, gauge_samples=116)], RUNS, 30)
    assert has_gaps([NodeSamples(120, 3600.0, gauge_samples=100)], RUNS, 30)
    assert not has_gaps([NodeSamples(1, 25.0, gauge_samples=1)], MeasuredTime(0, None, 25), 30)


def test_a_gpu_seen_for_half_the_time_leaves_a_gap():
    assert not has_gpu_gaps([120, 116], 1.0, RUNS, 30)
    assert has_gpu_gaps([120, 60], 1.0, RUNS, 30)
    assert not has_gpu_gaps([60], 0.5, RUNS, 30)  # as long as all else
    assert not has_gpu_gaps([], 1.0, RUNS, 30)


def test_a_job_that_ended_on_all_its_nodes_is_known_to_its_end():
    going_on, over = NodeSamples(120, latest=3570.0), NodeSamples(90, latest=2900.0, end=2650.4)
    assert measured_until([going_on, over], 3600) == 3570
    assert measured_until([over, over._replace(end=2600.0)], 3600) == 2651
    assert measured_until([NodeSamples(1)], 3600) == 3600

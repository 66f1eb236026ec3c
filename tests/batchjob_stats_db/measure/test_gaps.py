"""Measurements with gaps, of counters and of averages, in every store."""

import pytest

from batchjob.quantities.curves import CURVES
from batchjob.quantities.quantity import SeriesKind
from batchjob.schedulers.node_names import NodeNames
from batchjob_stats_db.measure.coverage import (
    MeasuredTime,
    NodeSamples,
    coverage,
    has_ended_everywhere,
    has_gaps,
    has_gpu_gaps,
    measured_until,
)
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.timeseries.base import JobWindow, SeriesQuery
from batchjob_stats_server.curves import job_series
from tests.batchjob_stats_db.conftest import NOW
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import line
from tests.helpers.measured import measure

STEP = 30
BEGIN = NOW - 3600
BUSY_CPUS = 3.0  # of 4 CPUs


def node_lines(jobid, *periods, instance="n001:10910", reset_at=0, end_at=None, peak=4096):
    """Samples of a node in periods of seconds since the job's start; its counter may restart."""
    lines = []
    for first, last in periods:
        for at in range(first, last + 1, STEP):
            labels = {"jobid": jobid, "instance": instance}
            lives_until = at if end_at is None else min(at, end_at)
            used = BUSY_CPUS * (lives_until - reset_at if at > reset_at else at)
            lines.append(line("cpu_seconds_total", used, BEGIN + at, mode="user", **labels))
            lines.append(line("memory_peak_bytes", peak, BEGIN + at, **labels))
            if lives_until < at:
                lines.append(line("end_time_seconds", BEGIN + end_at, BEGIN + at, **labels))
            else:
                lines.append(line("memory_current_bytes", 4096, BEGIN + at, **labels))
    return lines


LINES = [
    *node_lines("gap", (20, 620), (1520, 3590)),
    *node_lines("reset", (20, 620), (1520, 3590), reset_at=1000),
    *node_lines("silent", (20, 620), (1520, 2000)),
    *node_lines("one stopped", (20, 3590)),
    *node_lines("one stopped", (20, 620), (1520, 1790), instance="n002:10910"),
    *node_lines("ended", (20, 620), (1520, 3010), end_at=3000),
    *node_lines("end unseen", (20, 620), (1520, 2030)),
    *node_lines("seen late", (1820, 3590)),
    *node_lines("gave back", (20, 3590)),
    *node_lines("gave back", (20, 1790), instance="n002:10910"),  # and does not see the end
    *node_lines("gave back", (20, 3590), instance="n003:10910"),  # though not the job's any more
]


def job_to_measure(jobid, nodes=1, end=None, number=7):
    until = NOW if end is None else BEGIN + end + 390
    span = JobWindow("c1", jobid, BEGIN, until, end=None if end is None else BEGIN + end)
    return JobToMeasure(number, "c1", jobid, "alice", 1001, BEGIN, span.end, nodes, 4 * nodes, span)


@pytest.fixture(scope="module", params=STORES)
def history(request):
    with request.param(LINES) as opened:
        yield opened


def cpu_efficiency(usage, job):
    seconds = (usage.until_time - job.start) * usage.coverage
    return usage.values["user_cpu_seconds"] / (job.cpus * seconds)


def test_node_is_measured_while_the_job_has_it(history):
    """Three nodes, of which it gives back two after half an hour."""
    returned = (("n002", BEGIN + 1800), ("n003", BEGIN + 1800))
    job = job_to_measure("gave back", nodes=3, end=3600)
    job = job._replace(returned=returned, allocated=NodeNames(("n001", "n002", "n003")))
    (usage,) = measure(history, [job], STEP)
    assert usage.values["user_cpu_seconds"] == pytest.approx(BUSY_CPUS * (3590 + 2 * 1790))
    assert (usage.nodes, usage.caveats) == (3, "")
    assert usage.coverage > 0.998
    ends = {
        line.device.node: max(point.time for point in line.series.points)
        for line in job_series(history, job, [CURVES["cpu"]], 60)
    }
    assert ends["n001"] > BEGIN + 3500
    assert ends["n003"] <= BEGIN + 1800


@pytest.mark.parametrize(
    ("jobid", "fields", "until", "expected_coverage", "caveats"),
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
def test_counter_covers_the_time_up_to_its_last_sample(
    history, jobid, fields, until, expected_coverage, caveats
):
    measured_job = job_to_measure(jobid, **fields)
    (usage,) = measure(history, [measured_job], STEP)
    assert usage.until_time == BEGIN + until
    assert usage.coverage == pytest.approx(expected_coverage, abs=0.01)
    assert usage.caveats == caveats
    assert cpu_efficiency(usage, measured_job) == pytest.approx(0.75, abs=0.01)


def test_gap_with_a_counter_reset_is_not_covered(history):
    (usage,) = measure(history, [job_to_measure("reset")], STEP)
    assert usage.values["user_cpu_seconds"] == pytest.approx(BUSY_CPUS * (620 + 2590))
    assert usage.coverage == pytest.approx((21 + 70) * STEP / 3590)


def test_jobs_measured_together_or_alone_give_the_same_usage(history):
    jobs = [
        job_to_measure(each, number=n)
        for n, each in enumerate(("gap", "silent", "reset", "seen late"))
    ]
    usages_alone = [measure(history, [each], STEP)[0] for each in jobs]
    for together, alone in zip(measure(history, jobs, STEP), usages_alone, strict=True):
        assert together.until_time == alone.until_time
        assert together.coverage == pytest.approx(alone.coverage)


FIRST_END, SECOND_BEGIN = 700, 860
REQUEUED = [
    *node_lines("elsewhere", (20, 980), end_at=FIRST_END, peak=3_000_000),
    *node_lines("elsewhere", (900, 1800), instance="n002:10910", reset_at=SECOND_BEGIN),
    *node_lines("same node", (20, 860), end_at=FIRST_END, peak=3_000_000),
    *node_lines("same node", (890, 1790), reset_at=SECOND_BEGIN),
]


@pytest.mark.parametrize("open_store", STORES)
@pytest.mark.parametrize("jobid", ["elsewhere", "same node"])
def test_second_run_has_none_of_what_lingers_of_the_first(open_store, jobid):
    """Its window begins while the first run's last values are still exposed."""
    span = JobWindow(
        "c1", jobid, BEGIN + 800, BEGIN + 1800, near_other_run=True,
        free_range=(BEGIN + 1000, float("inf")),
    )  # fmt: skip
    run = JobToMeasure(7, "c1", jobid, "alice", 1001, BEGIN + 800, None, 1, 4, span)
    with open_store(REQUEUED) as opened:
        (usage,) = measure(opened, [run], STEP)
    assert usage.nodes == 1
    assert usage.values["memory_peak_bytes"] == 4096
    assert 30 <= usage.samples <= 32
    assert usage.values["user_cpu_seconds"] == pytest.approx(BUSY_CPUS * 930, rel=0.02)
    assert usage.caveats == "running"


RESIZED_AT, LAST = 610, 1790
RESIZED = [
    *node_lines("resized", (20, LAST)),
    *node_lines("resized", (20, 950), instance="n002:10910", end_at=RESIZED_AT),
]


@pytest.mark.parametrize("open_store", STORES)
def test_parts_of_a_resized_job_add_up_to_it(open_store):
    """It gave up its second node; the counters of the first go on."""
    later = (BEGIN + 1000, float("inf"))
    spans = (
        JobWindow(
            "c1", "resized", BEGIN, BEGIN + RESIZED_AT - 1, near_other_run=True,
            end=BEGIN + RESIZED_AT, nodes=2, free_range=(float("-inf"), BEGIN + RESIZED_AT - 1),
        ),
        JobWindow(
            "c1", "resized", BEGIN + RESIZED_AT, BEGIN + LAST, near_other_run=True,
            free_range=later, continues=True,
        ),
    )  # fmt: skip
    nodes = (NodeNames(("n001", "n002")), NodeNames(("n001",)))
    with open_store(RESIZED) as opened:
        first, second = (
            measure(
                opened,
                [
                    JobToMeasure(
                        7, "c1", "resized", "alice", 1001, span.start, span.end, span.nodes, 4,
                        span, allocated=names,
                    )
                ],
                STEP,
            )[0]
            for span, names in zip(spans, nodes, strict=True)
        )  # fmt: skip
        (curve,) = opened.job_series(
            SeriesQuery(
                "batchjob_job_cpu_seconds_total", SeriesKind.RATE,
                {"jobid": ["resized"], "instance": ["n001:10910"]},
            ), spans[1], 10,
        )  # fmt: skip
    assert first.values["user_cpu_seconds"] == pytest.approx(BUSY_CPUS * 2 * 590)
    assert second.values["user_cpu_seconds"] == pytest.approx(BUSY_CPUS * (LAST - 590))
    assert (second.nodes, second.caveats) == (1, "running")
    assert [point.mean for point in curve.points] == pytest.approx([BUSY_CPUS] * 10)


RUNNING_TIME = MeasuredTime(0, None, 3600)


def test_coverage_is_relative_to_all_nodes_of_the_job():
    full = NodeSamples(120, latest=3600.0)
    assert coverage([full, full], 2, RUNNING_TIME, 30) == 1
    assert coverage([full], 2, RUNNING_TIME, 30) == 0.5
    assert coverage([], 2, RUNNING_TIME, 30) == 0


def test_node_without_an_end_sample_is_not_fully_covered():
    ended = MeasuredTime(0, 3600, 3600)
    assert coverage([NodeSamples(130, latest=3700.0)], 1, ended, 30) == 0.999
    assert coverage([NodeSamples(3, latest=3700.0, end=3600.0)], 1, ended, 30) == 1


def test_few_missing_samples_are_no_gap():
    assert not has_gaps([NodeSamples(120, 3600.0, gauge_samples=116)], RUNNING_TIME, 30)
    assert has_gaps([NodeSamples(120, 3600.0, gauge_samples=100)], RUNNING_TIME, 30)
    assert not has_gaps([NodeSamples(1, 25.0, gauge_samples=1)], MeasuredTime(0, None, 25), 30)


def test_gpu_seen_for_half_the_time_has_a_gap():
    assert not has_gpu_gaps([120, 116], 1.0, RUNNING_TIME, 30)
    assert has_gpu_gaps([120, 60], 1.0, RUNNING_TIME, 30)
    assert not has_gpu_gaps([60], 0.5, RUNNING_TIME, 30)  # as long as the job itself was seen
    assert not has_gpu_gaps([], 1.0, RUNNING_TIME, 30)


def test_job_that_ended_on_all_nodes_is_measured_until_its_end():
    running, ended = NodeSamples(120, latest=3570.0), NodeSamples(90, latest=2900.0, end=2650.4)
    assert measured_until([running, ended], 0, 3600, 30) == 3570
    assert measured_until([ended, ended._replace(end=2600.0)], 0, 3600, 30) == 2651
    assert measured_until([NodeSamples(1)], 0, 3600, 30) == 3600


def test_sum_over_nodes_is_that_of_the_mean_moment_of_their_samples():
    first = NodeSamples(2, latest=50.0, cpu_seconds=50.0)
    second = NodeSamples(1, latest=30.0, cpu_seconds=30.0)  # a CPU as well
    assert measured_until([first, second], 0, 55, 30) == 40
    assert coverage([first, second], 2, MeasuredTime(0, None, 40), 30) == 1
    idle = second._replace(cpu_seconds=0.0)
    assert measured_until([first, idle], 0, 55, 30) == 50
    silent = NodeSamples(1, latest=500.0, cpu_seconds=500.0)
    active = NodeSamples(9, latest=900.0, cpu_seconds=900.0)
    assert measured_until([active, silent], 0, 999, 30) == 900


def test_node_that_ended_first_is_covered_whole_and_ends_nothing_alone():
    ended, goes_on = NodeSamples(90, 3000.0, end=2650.0), NodeSamples(120, 3570.0)
    assert coverage([ended, goes_on], 2, MeasuredTime(0, None, 3570), 30) == 1
    assert not has_ended_everywhere([ended, goes_on], 2, 0)
    assert not has_ended_everywhere([ended], 2, 0)  # the other node is not known
    assert not has_ended_everywhere([ended], None, 0)
    assert not has_ended_everywhere([], 0, 0)
    assert has_ended_everywhere([ended, ended], 2, 0)


@pytest.mark.parametrize(
    ("node", "end"),
    [
        (NodeSamples(90, 3000.0, end=2650.0, gauge_latest=2640.0), 2650),
        (NodeSamples(90, 3000.0, end=9999.0, gauge_latest=2640.0), 3000),  # clock in the future
        (NodeSamples(90, 3000.0, end=1.0, gauge_latest=2640.0), 2640),  # clock in the past
        (NodeSamples(90, 3000.0, end=2650.0, gauge_latest=3000.0), None),  # it goes on
        (NodeSamples(90, 3000.0, end=500.0), None),  # of the run before
        (NodeSamples(90, None, end=2650.0), 2650),
    ],
)
def test_end_of_a_node_is_one_of_the_stores_clock(node, end):
    assert node.end_since(1000) == end

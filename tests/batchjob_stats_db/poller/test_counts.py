"""The counters that alerts use: recent jobs only, and each end once."""

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.states import JobState
from batchjob_stats_db.measure.job_usage import JobToMeasure, MeasuredUsage
from batchjob_stats_db.poller.self_metrics import (
    OTHERS,
    PollerMetrics,
    count_ended,
    count_measured,
)
from batchjob_stats_db.timeseries.base import JobWindow

NOW = 1_775_300_000


@pytest.fixture
def metrics():
    return PollerMetrics()


def metric_value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"batchjob_stats_db_{name}", labels)


def test_ended_jobs_are_counted_by_node_and_result(metrics, job):
    both = (NodeShare("n1", 1, None, None), NodeShare("n2", 1, None, None))
    jobs = [
        job("1", end_time=NOW - 60, state=JobState.FAILED, nodes=both),
        job("2", end_time=NOW - 60, state=JobState.CANCELLED, nodes=both[:1]),
        job("3", end_time=NOW - 90000, state=JobState.FAILED, nodes=both),  # of a backfill
        job("4", end_time=None, state=JobState.RUNNING, nodes=both),
    ]
    count_ended(metrics, "c", jobs, NOW)
    assert metric_value(metrics, "ended_jobs_total", cluster="c", node="n1", result="failed") == 1
    assert metric_value(metrics, "ended_jobs_total", cluster="c", node="n2", result="failed") == 1
    assert metric_value(metrics, "ended_jobs_total", cluster="c", node="n1", result="other") == 1


def test_failure_counters_start_at_zero(metrics, job):
    """`increase()` ignores the first value of a series: a node's first failures."""
    nodes = (NodeShare("n1", 1, None, None),)
    count_ended(metrics, "c", [job("1", end_time=NOW, nodes=nodes, tool="blast")], NOW)
    failed = {"cluster": "c", "result": "failed"}
    assert metric_value(metrics, "ended_jobs_total", node="n1", **failed) == 0
    assert metric_value(metrics, "tracked_work_total", tool="blast", **failed) == 0


def test_counters_of_a_cluster_start_at_zero(metrics):
    metrics.begin("c", ["sacct"])
    for name in ("measured_jobs_total", "jobs_with_caveats_total"):
        assert metric_value(metrics, name, cluster="c") == 0
    failed = {"cluster": "c", "source": "sacct", "result": "error"}
    assert metric_value(metrics, "polls_total", **failed) == 0


def test_number_of_tool_labels_is_bounded(metrics, job):
    jobs = [job(str(number), end_time=NOW, tool=f"tool{number}") for number in range(120)]
    count_ended(metrics, "local", jobs, NOW)
    labels = {"cluster": "local", "result": "other"}
    assert metric_value(metrics, "tracked_work_total", tool="tool7", **labels) == 1
    assert metric_value(metrics, "tracked_work_total", tool=OTHERS, **labels) == 20


def test_number_of_node_labels_is_bounded(metrics, job, monkeypatch):
    """In a shared directory, each run may name another node."""
    monkeypatch.setattr("batchjob_stats_db.poller.self_metrics._MAXIMUM_NODES", 5)
    jobs = [
        job(str(number), end_time=NOW, nodes=(NodeShare(f"n{number}", 1, None, None),))
        for number in range(12)
    ]
    count_ended(metrics, "local", jobs, NOW)
    labels = {"cluster": "local", "result": "other"}
    assert metric_value(metrics, "ended_jobs_total", node="n4", **labels) == 1
    assert metric_value(metrics, "ended_jobs_total", node="n5", **labels) is None
    assert metric_value(metrics, "ended_jobs_total", node=OTHERS, **labels) == 7


def job_to_measure(start, end):
    span = JobWindow("c", "1", start, end or NOW, near_other_run=False, end=end)
    return JobToMeasure(1, "c", "1", "alice", 1001, start, end, 1, 4, span, False)


def test_coverage_and_jobs_with_caveats_are_counted(metrics):
    good = MeasuredUsage(1, 10, 0, 1, 1.0, 0, "", {}, (), {})
    usages = {
        job_to_measure(NOW - 1000, NOW - 100): good,
        job_to_measure(NOW - 100, None): good,
        job_to_measure(NOW - 500, NOW - 400): good._replace(coverage=0.0, caveats="no samples"),
        job_to_measure(NOW - 90000, NOW - 89000): good._replace(coverage=0.0, caveats="no samples"),
        job_to_measure(NOW - 50, NOW - 40)._replace(tool="blast"): good._replace(
            caveats="no samples"
        ),
    }
    count_measured(metrics, "c", usages, NOW)
    assert metric_value(metrics, "measured_jobs_total", cluster="c") == 3
    assert metric_value(metrics, "jobs_with_caveats_total", cluster="c") == 1
    assert metric_value(metrics, "measured_job_seconds_total", cluster="c") == 900 + 100 + 100
    assert metric_value(metrics, "covered_job_seconds_total", cluster="c") == 1000


def test_expected_caveats_are_not_counted(metrics):
    good = MeasuredUsage(1, 10, 0, 1, 1.0, 0, "", {}, (), {})
    usages = {
        job_to_measure(NOW - 100, None): good._replace(caveats="running"),
        job_to_measure(NOW - 200, NOW - 100): good._replace(caveats="peak sampled"),
        job_to_measure(NOW - 300, None): good._replace(caveats="running, peak sampled"),
        job_to_measure(NOW - 400, None): good._replace(caveats="running, nodes missing"),
    }
    count_measured(metrics, "c", usages, NOW)
    assert metric_value(metrics, "measured_jobs_total", cluster="c") == 4
    assert metric_value(metrics, "jobs_with_caveats_total", cluster="c") == 1


def test_end_of_a_job_is_reported_once(store, job):
    def newly_ended(*jobs):
        return [each.jobid for each in store.write(Batch(jobs, (), "", 0), "s").newly_ended]

    assert newly_ended(job("1"), job("2", end_time=None, state=JobState.RUNNING)) == ["1"]
    assert newly_ended(job("1"), job("2")) == ["2"]
    assert newly_ended(job("1"), job("2", exit_code=3)) == []

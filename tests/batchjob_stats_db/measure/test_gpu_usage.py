"""The GPUs of a job: those that are known, and those of which only the number is."""

import pytest

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.measure.node_usage import UTILIZATION, gpu_columns, gpu_usages
from batchjob_stats_db.timeseries.base import SeriesValue

HOUR, INTERVAL = 3600.0, 30.0
BUSY = "batchjob_job_gpu_busy_seconds_total"
OBSERVED = "batchjob_job_gpu_observed_seconds_total"
UNOBSERVED = "batchjob_job_gpu_unobserved_seconds_total"
FREE_BUSY = "batchjob_job_free_gpu_busy_seconds_total"
FREE_OBSERVED = "batchjob_job_free_gpu_observed_seconds_total"
SM = "batchjob_job_gpu_sm_active"
GPU_0 = {"gpu": "0", "uuid": "GPU-a", "gpu_instance": ""}


def total(metric, value, node="n1", **labels):
    return (Statistic.TOTAL, metric), SeriesValue(
        metric, {"instance": f"{node}.example:9400", **labels}, value
    )


def usages(*samples, held=(), seconds=HOUR):
    series = {}
    for key, sample in samples:
        series.setdefault(key, []).append(sample)
    return gpu_usages(series, held, seconds, INTERVAL)


def test_utilization_is_busy_time_of_the_time_in_which_the_job_had_the_gpu_alone():
    (found,) = usages(
        total(BUSY, 600.0, **GPU_0),
        total(OBSERVED, 1800.0, **GPU_0),
        total(UNOBSERVED, 1700.0, **GPU_0, reason="shared"),
        total(UNOBSERVED, 100.0, **GPU_0, reason="mps"),
    )
    assert found.utilization_ratio == pytest.approx(1 / 3)
    assert (found.observed_seconds, found.shared_seconds, found.mps_seconds) == (1800, 1700, 100)


def test_moments_before_another_job_came_are_no_utilization_of_the_job():
    """As seen of a job that was alone for 5 ms of 5 s, and used 23 % of the GPU."""
    (found,) = usages(
        total(BUSY, 0.0, **GPU_0),
        total(OBSERVED, 0.005, **GPU_0),
        total(UNOBSERVED, 5.336, **GPU_0, reason="shared"),
    )
    assert (found.utilization_ratio, found.shared_seconds) == (None, 5.336)
    assert gpu_columns([found]) == {"gpus": 1}


def test_gpu_that_another_number_is_given_to_is_one_gpu():
    """Its counters go on when a GPU before it is lost, and the driver is loaded again."""
    renumbered = {**GPU_0, "gpu": "1"}
    for labels in (GPU_0, renumbered), (renumbered, GPU_0):
        (found,) = usages(
            total(BUSY, 300.0, **labels[0]),
            total(OBSERVED, 1000.0, **labels[0]),
            total(BUSY, 600.0, **labels[1]),
            total(OBSERVED, 1800.0, **labels[1]),
        )
        assert (found.gpu, found.observed_seconds) == (labels[1]["gpu"], 1800)
        assert found.utilization_ratio == pytest.approx(1 / 3)


def test_mean_of_a_gpu_with_two_numbers_is_that_of_the_most_samples():
    labels = {"instance": "n1.example:9400", **GPU_0}
    samples = [
        ((statistic, UTILIZATION), SeriesValue(UTILIZATION, {**labels, "gpu": number}, value))
        for number, mean, count in (("0", 0.9, 10), ("1", 0.2, 100))
        for statistic, value in ((Statistic.MEAN, mean), (Statistic.COUNT, count))
    ]
    (found,) = usages(*samples)
    assert (found.gpu, found.utilization_ratio) == ("1", 0.2)
    assert found.observed_seconds == 100 * INTERVAL


def test_activity_is_that_of_the_profiled_time():
    peak = SeriesValue(f"{SM}_peak_ratio", {"instance": "n1.example:9400", **GPU_0}, 0.9)
    (found,) = usages(
        total(f"{SM}_seconds_total", 300.0, **GPU_0),
        total("batchjob_job_gpu_profiled_seconds_total", 1200.0, **GPU_0),
        ((Statistic.PEAK, f"{SM}_peak_ratio"), peak),
    )
    assert (found.sm_active_ratio, found.sm_active_peak_ratio) == (0.25, 0.9)
    assert (found.tensor_active_ratio, found.tensor_active_peak_ratio) == (0.0, None)
    assert gpu_columns([found])["gpu_sm_active_ratio"] == 0.25


def test_gpu_that_was_always_shared_has_no_utilization_but_counts():
    found = usages(
        total(BUSY, 0.0, **GPU_0),
        total(OBSERVED, 0.0, **GPU_0),
        total(UNOBSERVED, 3600.0, **GPU_0, reason="shared"),
    )
    assert gpu_columns(found) == {"gpus": 1}
    assert found[0].shared_seconds == 3600


def test_gpu_that_was_allocated_and_never_touched_is_idle():
    found = usages(total(FREE_BUSY, 0.0), total(FREE_OBSERVED, 4 * HOUR), held=(("n1", 1),))
    assert [(each.node, each.uuid, each.utilization_ratio) for each in found] == [
        ("n1.example", "unidentified 1", 0.0)
    ]
    columns = gpu_columns(found)
    assert (columns["gpus"], columns["gpu_utilization_ratio"]) == (1, 0.0)
    assert columns["gpu_observed_seconds"] == HOUR


@pytest.mark.parametrize("claimed", [HOUR, HOUR / 10])
@pytest.mark.parametrize(
    ("busy", "allocated", "known"), [(0.0, 1, True), (HOUR, 1, False), (0.0, 0, False)]
)
def test_idle_gpu_that_others_claim_without_holding_it_is_idle(claimed, busy, allocated, known):
    (found,) = usages(
        total(BUSY, 0.0, **GPU_0),
        total(OBSERVED, HOUR - claimed, **GPU_0),
        total(UNOBSERVED, claimed, **GPU_0, reason="claimed"),
        total(FREE_BUSY, busy),
        total(FREE_OBSERVED, 4 * HOUR),
        held=(("n1", allocated),),
    )
    seen = HOUR if known else HOUR - claimed
    assert (found.observed_seconds, found.shared_seconds) == (seen, HOUR - seen)
    assert found.utilization_ratio == (0.0 if seen else None)


@pytest.mark.parametrize("free", [(), (total(FREE_BUSY, 0.0, node="n2"),)])
def test_claimed_gpu_is_not_idle_where_what_its_node_s_free_gpus_did_is_not_known(free):
    (found,) = usages(
        total(OBSERVED, 0.0, **GPU_0),
        total(UNOBSERVED, HOUR, **GPU_0, reason="claimed"),
        *free,
        held=(("n1", 1),),
    )
    assert (found.utilization_ratio, found.shared_seconds) == (None, HOUR)


def test_others_on_the_node_leave_the_use_unknown_rather_than_wrong():
    """Two jobs, whose GPUs nothing tells apart: one of the four free GPUs is busy."""
    (found,) = usages(total(FREE_BUSY, HOUR), total(FREE_OBSERVED, 4 * HOUR), held=(("n1", 1),))
    assert (found.utilization_ratio, found.observed_seconds) == (None, None)


def test_free_gpus_that_are_as_many_as_allocated_are_the_jobs():
    found = usages(total(FREE_BUSY, HOUR), total(FREE_OBSERVED, 2 * HOUR), held=(("n1", 2),))
    assert [each.utilization_ratio for each in found] == [0.5, 0.5]


def test_gpus_that_are_not_observed_are_not_known_to_be_idle():
    (found,) = usages(total(FREE_BUSY, 0.0), total(FREE_OBSERVED, HOUR / 2), held=(("n1", 1),))
    assert found.utilization_ratio is None


def test_job_that_uses_one_of_its_gpus_leaves_the_others_idle():
    found = usages(
        total(BUSY, 1800.0, **GPU_0),
        total(OBSERVED, HOUR, **GPU_0),
        total(FREE_BUSY, 0.0),
        total(FREE_OBSERVED, 3 * HOUR),
        held=(("n1", 4),),
    )
    assert [each.utilization_ratio for each in found] == [0.5, 0.0, 0.0, 0.0]
    assert gpu_columns(found)["gpu_utilization_ratio"] == 0.125


def test_gpus_of_several_nodes_whose_shares_are_unknown():
    idle = [total(FREE_BUSY, 1.0, node) for node in ("n1", "n2")]
    free = [total(FREE_OBSERVED, 4 * HOUR, node) for node in ("n1", "n2")]
    found = usages(*idle, *free, held=(("", 8),))
    assert len(found) == 8
    assert {each.node for each in found} == {""}
    assert found[0].utilization_ratio == pytest.approx(2 / (8 * HOUR))


def test_nothing_is_said_of_nodes_without_counters():
    assert usages(held=(("n1", 2),)) == []

"""Time series of a job: rates of counters and values of gauges."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.quantities.quantity import SeriesKind
from batchjob_stats_db.timeseries import resample
from batchjob_stats_db.timeseries.base import JobWindow, Point, SeriesQuery
from batchjob_stats_db.timeseries.resample import Bins, Segment
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import line

T = 1_775_300_000
GAP = 120
K = 1024


def window(end=T + 120, until=None, **more):
    return JobWindow("c1", "1", T, until or (end or T) + 390, end=end, **more)


def rates(samples, count=2, job_window=None, gap=GAP):
    job_window = job_window or window()
    bins = Bins(T, job_window.end or job_window.until, count)
    segments = resample.growth_segments([(T + at, value) for at, value in samples], job_window, gap)
    return [(point.time - T, *point[1:]) for point in resample.mean_rates(segments, bins)]


def test_single_counter_sample_is_a_mean_since_the_start():
    assert rates([(30, 60.0)]) == [(60, 2, 2, 2)]


def test_samples_after_the_end_count_until_the_end():
    # The counter grew by 90 in the last 30 s of the job, although it was read 20 s later.
    assert rates([(90, 90.0), (140, 180.0), (170, 180.0)]) == [(60, 1, 1, 1), (120, 1, 2, 3)]


def test_counter_reset_continues_from_zero():
    assert rates([(60, 60.0), (120, 30.0)]) == [(60, 1, 1, 1), (120, 0.5, 0.5, 0.5)]


def test_gap_has_no_points():
    samples = [(10, 10.0), (20, 20.0), (400, 400.0), (410, 420.0)]
    assert rates(samples, 6, window(T + 420)) == [(70, 1, 1, 1), (420, 2, 2, 2)]


def test_counter_value_of_the_previous_run_is_excluded():
    samples = [(-30, 500.0), (0, 500.0), (30, 500.0), (60, 6.0), (120, 12.0)]
    assert rates(samples) == [(60, 0.1, 0.1, 0.1), (120, 0.1, 0.1, 0.1)]


def test_segment_over_several_bins_is_in_each():
    assert rates([(120, 240.0)], 4) == [(at, 2, 2, 2) for at in (30, 60, 90, 120)]


def test_rates_are_added_where_they_are_known():
    one, two = [Segment(0, 10, 1.0), Segment(10, 20, 3.0)], [Segment(5, 10, 2.0)]
    assert resample.sum_segments([one, two]) == [
        Segment(0, 5, 1),
        Segment(5, 10, 3),
        Segment(10, 20, 3),
    ]


def test_gauge_points():
    points = [(T, 4.0), (T + 60, 2.0), (T + 61, 9.0), (T + 62, math.nan), (T + 500, 1.0)]
    bins = Bins(T, T + 120, 2)
    assert resample.gauge_points(points, bins) == [Point(T + 60, 2, 3, 4), Point(T + 120, 9, 9, 9)]


def test_replicas_fill_gaps_of_each_other():
    one = [(0.0, 0.0), (30.0, 3.0), (300.0, 30.0), (330.0, 33.0)]
    two = [(1.0, 0.1), (150.0, 15.0)]
    assert resample.merge_replicas([one, two], 60) == sorted([*one, two[1]])


def test_bins_are_not_shorter_than_the_sample_interval():
    assert resample.equal_bins(window(), 300, 30).bin_count == 4
    assert resample.equal_bins(window(T + 5), 300, 30).bin_count == 1
    assert resample.equal_bins(window(T), 300, 30).seconds == 1  # a job of zero length
    assert resample.equal_bins(window(T + 86400), 300, 30).bin_count == 300


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 10**9)), min_size=1, max_size=40),
    st.integers(1, 50),
)
def test_mean_rates_add_up_to_the_counter_growth(steps, count):
    at, value, samples = T, 0, []
    for seconds, growth in steps:
        at, value = at + seconds, value + growth
        samples.append((float(at), float(value)))
    bins = Bins(T, at, count)
    segments = resample.growth_segments(samples, window(at), gap=2000)
    points = resample.mean_rates(segments, bins)
    assert math.fsum(p.mean for p in points) * bins.seconds == pytest.approx(value, rel=1e-6)
    assert all(p.low <= p.mean <= p.high for p in points)


def series_lines(metric, values, begin=T, step=30, **labels):
    return [line(metric, value, begin + step * n, **labels) for n, value in enumerate(values, 1)]


N2 = {"instance": "n002:10910"}
SAMPLES = [
    *series_lines("cpu_seconds_total", [30, 60, 90, 150], mode="user", replica="a"),
    *series_lines("cpu_seconds_total", [30, 60, 90, 150], T + 7, mode="user", replica="b"),
    *series_lines("cpu_seconds_total", [3, 6, 9, 12], mode="system", replica="a"),
    *series_lines("cpu_seconds_total", [60], T - 20, mode="user", **N2),
    *series_lines("memory_current_bytes", [K * 100, K * 300, K * 200, K * 250], replica="a"),
    *series_lines("memory_current_bytes", [K * 100, K * 300], replica="b"),
    *series_lines("memory_current_bytes", [K * 77], T - 20, **N2),
    # Three days, a sample each minute; in the second one the exporter was gone.
    *series_lines(
        "cpu_seconds_total", [60 * n for n in range(1, 1441)], step=60, mode="user", jobid="2"
    ),
    *series_lines(
        "cpu_seconds_total",
        [2 * n for n in range(1, 1441)],
        T + 2 * 86400,
        60,
        mode="user",
        jobid="2",
    ),
]


@pytest.fixture(scope="module", params=STORES)
def store(request):
    with request.param(SAMPLES) as history:
        yield history


def points_by_series(found):
    return {
        (series.labels["instance"][:4], series.labels.get("mode")): [
            (round(p.time) - T, *map(pytest.approx, p[1:])) for p in series.points
        ]
        for series in found
    }


CPU = "batchjob_job_cpu_seconds_total"
MEMORY = "batchjob_job_memory_current_bytes"


def test_counter_rates_from_a_store(store):
    query = SeriesQuery(CPU, SeriesKind.RATE, {"jobid": ["1"]})
    assert points_by_series(store.job_series(query, window(), 2)) == {
        ("n001", "user"): [(60, 1, 1, 1), (120, 1, 1.5, 2)],
        ("n001", "system"): [(60, 0.1, 0.1, 0.1), (120, 0.1, 0.1, 0.1)],
        ("n002", "user"): [(60, 6, 6, 6)],
    }


def test_rates_summed_over_modes(store):
    query = SeriesQuery(
        CPU, SeriesKind.RATE, {"jobid": ["1"], "instance": ["n001:10910"]}, ("mode",)
    )
    expected = [(60, 1.1, 1.1, 1.1), (120, 1.1, 1.6, 2.1)]
    assert points_by_series(store.job_series(query, window(), 2)) == {("n001", None): expected}


def test_gauge_values_from_a_store(store):
    query = SeriesQuery(MEMORY, SeriesKind.GAUGE, {"jobid": ["1"]})
    assert points_by_series(store.job_series(query, window(), 2)) == {
        ("n001", None): [(60, K * 100, K * 200, K * 300), (120, K * 200, K * 225, K * 250)],
        ("n002", None): [(60, K * 77, K * 77, K * 77)],
    }


def test_series_of_a_long_job_keeps_its_gap(store):
    query = SeriesQuery(CPU, SeriesKind.RATE, {"jobid": ["2"]})
    (series,) = store.job_series(query, window(T + 3 * 86400), 72)
    hours = {round((p.time - T) / 3600): p for p in series.points}
    assert set(range(1, 24)) | set(range(50, 73)) <= set(hours)
    assert not set(range(26, 48)) & set(hours)
    assert hours[12].low == pytest.approx(1) == hours[12].high
    assert hours[60].mean == pytest.approx(1 / 30)


def test_series_of_other_jobs_and_clusters_are_excluded(store):
    assert (
        store.job_series(SeriesQuery(CPU, SeriesKind.RATE, {"jobid": ["1|2"]}), window(), 2) == []
    )
    other_cluster = window()._replace(cluster="c2")
    assert (
        store.job_series(SeriesQuery(CPU, SeriesKind.RATE, {"jobid": ["1"]}), other_cluster, 2)
        == []
    )

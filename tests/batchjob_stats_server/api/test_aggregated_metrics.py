"""The curves of a job, aggregated over all its nodes."""

from batchjob.quantities.curves import CURVES
from batchjob_stats_db.timeseries.base import Point, TimeSeries
from batchjob_stats_server.curves import JobGpu, JobSeries, aggregate


def node_series(node, *points, part=""):
    series = TimeSeries({}, [Point(at, mean - 1, mean, mean + 1) for at, mean in points])
    return JobSeries(CURVES["cpu"], JobGpu(node, "", "", ""), part, series)


def test_aggregate_has_median_minimum_and_maximum_of_nodes():
    curves = aggregate([
        node_series("n1", (10, 4.0), (20, 8.0)),
        node_series("n2", (10, 6.0)),
        node_series("n3", (10, 50.0)),
    ])  # fmt: skip
    (curve,) = curves
    assert curve.title == ""
    assert curve.series.points == [Point(10, 3.0, 6.0, 51.0), Point(20, 7.0, 8.0, 9.0)]


def test_parts_are_aggregated_separately():
    curves = aggregate(
        [node_series("n1", (1, 1.0), part="host"), node_series("n1", (1, 9.0), part="gpu")]
    )
    assert [curve.title for curve in curves] == ["host", "gpu"]
    assert aggregate([]) == []

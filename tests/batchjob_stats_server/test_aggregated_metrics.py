"""The course of a job over all its nodes at once."""

from batchjob.quantities.curves import CURVES
from batchjob_stats_db.timeseries.base import Point, TimeSeries
from batchjob_stats_server.job_curves import JobGpu, JobSeries, aggregate


def series(node, *points, part=""):
    course = TimeSeries({}, [Point(at, mean - 1, mean, mean + 1) for at, mean in points])
    return JobSeries(CURVES["cpu"], JobGpu(node, "", "", ""), part, course)


def test_the_median_of_the_nodes_between_the_lowest_and_the_highest():
    found = aggregate([
        series("n1", (10, 4.0), (20, 8.0)), series("n2", (10, 6.0)), series("n3", (10, 50.0)),
    ])  # fmt: skip
    (line,) = found
    assert line.title == ""
    assert line.series.points == [Point(10, 3.0, 6.0, 51.0), Point(20, 7.0, 8.0, 9.0)]


def test_parts_stay_apart():
    found = aggregate([series("n1", (1, 1.0), part="host"), series("n1", (1, 9.0), part="gpu")])
    assert [line.title for line in found] == ["host", "gpu"]
    assert aggregate([]) == []

"""What is low, and what differs from its like."""

from batchjob_stats_server.pages.rendering import usage_bars
from batchjob_stats_server.report.model import Efficiency


def efficiency(what, ratio, missing=""):
    return Efficiency(what, ratio, None, None, "seconds", "a / b", "prometheus", missing)


def test_level_is_that_of_the_shown_per_cent():
    """24.6 % is shown as 25 %, which is not red elsewhere either."""
    assert usage_bars.level("memory", 0.246) == usage_bars.level("memory", 0.254) == "fair"
    assert usage_bars.level("memory", 0.244) == "low"


def test_levels():
    levels = {
        (what, ratio): usage_bars.efficiency_bar(efficiency(what, ratio)).level
        for what, ratio in (
            ("cpu", 0.1), ("cpu", 0.5), ("cpu", 1.01),
            ("memory", 0.97), ("time", 0.01), ("gpu", 0.0),
        )
    }  # fmt: skip
    assert list(levels.values()) == ["low", "fair", "good", "high", "good", "low"]


def bar_of_job(what, age, memory=1 << 30, end_time=None):
    row = {
        "start_time": 1000, "end_time": end_time, "elapsed_seconds": None, "state": "RUNNING",
        "suspended_seconds": 0, "as_of_time": None, "allocated_memory_bytes": memory,
    }  # fmt: skip
    return usage_bars.job_bar(efficiency(what, 0.1), row, 1000 + age).level


def test_colours_blame_no_young_job_nor_memory_that_nobody_asked_for():
    assert bar_of_job("cpu", age=60) == "plain"
    assert bar_of_job("cpu", age=3600) == "low"
    assert bar_of_job("cpu", age=3600, end_time=1051) == "plain"  # too short to be judged
    assert bar_of_job("cpu", age=3600, end_time=1061) == "low"  # final
    assert bar_of_job("memory", age=3600) == "low"
    assert bar_of_job("memory", age=3600, memory=None) == "plain"


def test_what_is_missing_says_why():
    share = usage_bars.efficiency_bar(efficiency("cpu", None, "it has not started"))
    assert (share.ratio, share.reason) == (None, "it has not started")


def test_one_that_does_less_than_the_others():
    parts = usage_bars.compare_parts({"n1": 10.0, "n2": 9.0, "n3": 1.0, "n4": None})
    assert [part.level for part in parts.values()] == ["good", "good", "low", ""]
    assert [part.ratio for part in parts.values()] == [1.0, 0.9, 0.1, None]
    assert parts["n4"].reason == "not measured"


def test_nothing_is_compared_with_nothing():
    assert usage_bars.compare_parts({}) == {}
    assert usage_bars.compare_parts({"n1": 0.0})["n1"].ratio is None

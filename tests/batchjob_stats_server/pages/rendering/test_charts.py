"""Where lines and boxes are."""

import math
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from batchjob_stats_db.days import DAY
from batchjob_stats_server.pages.rendering import charts


def test_columns_are_stacked():
    days = {0: (1.0, 3.0), DAY: (0.0, 0.0)}
    chart = charts.day_chart("h", "CPU", {"used": "main", "free": "rest"}, days, 0, 2 * DAY, str)
    columns = ElementTree.fromstring(f"<p>{chart}</p>").iter("g")
    first, second = ([dict(box.attrib) for box in column.iter("rect")] for column in columns)
    middle = {"x": "1.0", "width": "358.0"}
    assert first[1:] == [
        {"class": "part main", "y": "120.0", "height": "40.0", **middle},
        {"class": "part rest", "y": "0.0", "height": "120.0", **middle},
    ]
    assert second == [{"class": "hit", "x": "360.0", "y": "0", "width": "360.0", "height": "160.0"}]


@given(st.floats(1e-9, 1e18), st.sampled_from([1.0, 3600.0]))
def test_scales_have_few_lines_at_round_numbers(value, unit):
    step = charts.round_step(value, unit)
    assert 1 <= math.ceil(value / step * (1 - 1e-9)) <= 5
    assert float(f"{step / unit:e}"[:1]) in (1, 2, 5)


def test_scales_of_durations_have_whole_hours_or_days():
    hours = [charts.round_step(hours * 3600, steps=charts.DURATION_STEPS) / 3600 for hours in
             (1, 4, 20, 100)]  # fmt: skip
    assert hours == [0.25, 1, 6, 24]


spans = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 300)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=30,
)


@given(spans)
def test_no_two_stays_share_a_lane_at_once(given_spans):
    stays = charts.assign_lanes(given_spans, 100, 600, 500)
    assert sorted(stay.item for stay in stays) == list(range(len(given_spans)))
    for one in stays:
        for other in stays:
            if one.item < other.item and one.lane == other.lane:
                (a, b), (c, d) = given_spans[one.item], given_spans[other.item]
                assert b <= c or d <= a or max(a, c, 100) >= min(b, d, 600)


def test_ticks_are_round_and_few():
    assert charts.tick_times(1_775_300_000, 1_775_300_000 + 86400)[0] % 10800 == 0
    assert 3 < len(charts.tick_times(1_775_300_000, 1_775_300_000 + 86400)) < 10


def test_tick_after_the_last_year_of_calendars_has_a_label():
    assert charts.tick_label(2**39, 2**39 - 3600, 2**39 + 3600) == "@549755813888"

"""Numbers and times as people read them."""

import pytest
from markupsafe import Markup

from batchjob_stats_server.pages.rendering import template_filters
from batchjob_stats_server.pages.rendering.template_filters import FILTERS


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        ("number", 0, "0"),
        ("number", 1234567, "1 234 567"),
        ("number", 3.14159, "3.14"),
        ("size", 0, "0 B"),
        ("size", 1023, "1023 B"),
        ("size", 1024, "1 KiB"),
        ("size", 1.5 * 2**30, "1.5 GiB"),
        ("size", 2**80, "1048576 EiB"),
        ("energy", 3.6e6, "1 kWh"),
        ("energy", 360, "0.1 Wh"),
        ("energy", 999.96 * 3.6e6, "1 MWh"),
        ("mass", 61_400, "61.4 kg"),
        ("percent", 0.0, "0 %"),
        ("percent", 0.004, "0.4 %"),
        ("percent", 0.42, "42 %"),
        ("percent", 1.034, "103 %"),
        ("duration", 0, "0 s"),
        ("duration", 0.25, "0.25 s"),
        ("duration", 59, "59 s"),
        ("duration", 3600, "1 h"),
        ("duration", 5025, "1 h 23 min"),
        ("duration", 183_600, "2 d 3 h"),
        ("hours", 5400, "1.5 h"),
        ("date", 1_775_300_000, "2026-04-04"),
    ],
)
def test_written(write, value, text):
    assert FILTERS[write](value).replace("\u202f", " ") == text


def test_times_have_their_zone():
    assert template_filters.moment(1_775_300_000) == (
        '<time datetime="2026-04-04T10:53:20Z">2026-04-04 10:53 UTC</time>'
    )
    assert "2026" not in template_filters.moment(1_775_300_000, False, 1_775_400_000).split(">")[1]


@pytest.mark.parametrize("write", FILTERS)
def test_what_is_not_known_is_a_dash_with_a_reason(write):
    shown = FILTERS[write](None, reason="it <b>runs</b>")
    assert isinstance(shown, Markup)
    assert "\u2013" in shown
    assert 'title="it &lt;b&gt;runs&lt;/b&gt;"' in shown


@pytest.mark.parametrize("value", [-1e300, 10**18, 1e300])
def test_no_time_is_too_far(value):
    assert "\u2013" in template_filters.moment(value)


def test_little_time_is_not_none():
    assert template_filters.hours(0) == "0\u202fh"
    assert template_filters.hours(1.5) == "< 0.01\u202fh"
    assert template_filters.hours(90) == "0.03\u202fh"

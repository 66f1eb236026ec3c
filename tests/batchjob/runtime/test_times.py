"""Times for people: always with their zone."""

import time
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from batchjob.runtime.times import (
    format_exact_time,
    format_time,
    local_zone,
    past_time,
    rfc3339,
    to_milliseconds,
)

AT = 1775307200.0  # 2026-04-04 12:53:20 UTC


@pytest.fixture
def zone(monkeypatch):
    def set_to(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_to
    monkeypatch.undo()
    time.tzset()


def test_local_by_default(zone):
    zone("America/New_York")
    assert format_time(AT) == "2026-04-04 08:53:20 EDT"
    assert local_zone() == "America/New_York"


def test_any_other_by_name():
    assert format_time(AT, UTC) == "2026-04-04 12:53:20 UTC"
    assert format_time(AT, ZoneInfo("Europe/Paris")) == "2026-04-04 14:53:20 CEST"


@pytest.mark.parametrize("name", ["Nowhere/Land", "../etc/passwd", "CET-1CEST"])
def test_a_zone_without_a_name_is_utc(zone, name):
    zone(name)
    assert local_zone() == "UTC"


def test_milliseconds_where_they_are_known():
    assert format_exact_time(AT, UTC) == "2026-04-04 12:53:20 UTC"
    assert format_exact_time(AT + 0.25, UTC) == "2026-04-04 12:53:20.250 UTC"
    assert rfc3339(AT) == "2026-04-04T12:53:20Z"
    assert rfc3339(AT + 0.345) == "2026-04-04T12:53:20.345Z"
    assert to_milliseconds(AT + 0.345) == 1775307200345
    assert (rfc3339(None), to_milliseconds(None)) == (None, None)


@pytest.mark.parametrize("text", ["5d", "-5d", "-120h"])
def test_how_long_ago_with_or_without_a_minus(text):
    assert past_time(text, AT) == AT - 5 * 86400


@pytest.mark.parametrize("text", ["--5d", "-d", "-5x"])
def test_an_age_that_is_none(text):
    with pytest.raises(ValueError, match=r"expected a time such as 22:30 or .* how long ago"):
        past_time(text, AT)

"""Formatting of times with their zone, and parsing of ages."""

import time
from datetime import UTC, datetime
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
def set_time_zone(monkeypatch):
    def set_to(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_to
    monkeypatch.undo()
    time.tzset()


def test_format_time_uses_local_zone_by_default(set_time_zone):
    set_time_zone("America/New_York")
    assert format_time(AT) == "2026-04-04 08:53:20 EDT"
    assert local_zone() == "America/New_York"


def test_format_time_in_given_zone():
    assert format_time(AT, UTC) == "2026-04-04 12:53:20 UTC"
    assert format_time(AT, ZoneInfo("Europe/Paris")) == "2026-04-04 14:53:20 CEST"


@pytest.mark.parametrize("name", ["Nowhere/Land", "../etc/passwd", "CET-1CEST"])
def test_unknown_local_zone_is_utc(set_time_zone, name):
    set_time_zone(name)
    assert local_zone() == "UTC"


def test_milliseconds_are_shown_if_not_zero():
    assert format_exact_time(AT, UTC) == "2026-04-04 12:53:20 UTC"
    assert format_exact_time(AT + 0.25, UTC) == "2026-04-04 12:53:20.250 UTC"
    assert rfc3339(AT) == "2026-04-04T12:53:20Z"
    assert rfc3339(AT + 0.345) == "2026-04-04T12:53:20.345Z"
    assert to_milliseconds(AT + 0.345) == 1775307200345
    assert (rfc3339(None), to_milliseconds(None)) == (None, None)


@pytest.mark.parametrize("text", ["5d", "-5d", "-120h"])
def test_past_time_from_age_with_or_without_minus(text):
    assert past_time(text, AT) == AT - 5 * 86400


@pytest.mark.parametrize(
    ("text", "day"),
    [("today", "2026-04-04"), ("yesterday", "2026-04-03"), ("this week", "2026-03-30"),
     ("last week", "2026-03-23"), ("last-week", "2026-03-23")],
)  # fmt: skip
def test_past_time_in_words_begins_at_midnight(text, day, set_time_zone):
    """Berlin's clocks changed on Sunday, 29 March."""
    set_time_zone("Europe/Berlin")
    assert past_time(text, AT) == datetime.fromisoformat(day).timestamp()


@pytest.mark.parametrize("text", ["--5d", "-d", "-5x"])
def test_invalid_age_is_rejected(text):
    with pytest.raises(ValueError, match=r"expected a time such as 22:30 or .* how long ago"):
        past_time(text, AT)


@pytest.mark.parametrize("at", [300_000_000_000, 2**39, -(10**12), 1e300])
def test_time_outside_the_calendar_is_in_epoch_seconds(at):
    assert format_time(at) == format_exact_time(at) == f"@{at:.0f}"

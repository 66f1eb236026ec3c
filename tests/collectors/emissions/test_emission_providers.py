"""What each provider's documents mean, in the forms they have."""

import base64
import contextlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.emissions.providers import electricity_maps, rte, stats_server, uk_grid, watttime
from collectors.emissions.providers.country_tables import country_observation, load_table
from collectors.emissions.providers.provider import (
    FactorError,
    Observation,
    ProviderAccess,
    parse_factor,
    parse_time,
)
from collectors.emissions.providers.registry import (
    PROVIDERS,
    TABLES,
    credit,
    longest_age,
    split_provider_zone,
)


def at(text):
    return datetime.fromisoformat(text).timestamp()


NOW = at("2024-05-02T14:40:00+02:00")


class Recorded:
    """Answers in turn, and remembers what was asked."""

    def __init__(self, *documents):
        self.documents = list(documents)
        self.asked = []

    def __call__(self, url, headers=()):
        self.asked.append((url, dict(headers)))
        return self.documents.pop(0)


# RTE


def eco2mix(*pairs):
    results = [{"taux_co2": value, "date_heure": time} for time, value in pairs]
    return {"total_count": len(results), "results": results}


def test_rte_asks_for_the_newest_values_that_are_there():
    ask = Recorded(eco2mix(("2024-05-02T14:15:00+02:00", 23)))
    (seen,) = rte.read(ask, ProviderAccess("https://portal", "FR"), NOW)
    assert seen == Observation("rte", "FR", "combustion", 23, at("2024-05-02T14:15:00+02:00"))
    url, _ = ask.asked[0]
    assert url.startswith("https://portal/api/explore/v2.1/catalog/datasets/eco2mix-national-tr/")
    assert "where=taux_co2+is+not+null" in url


def test_rte_leaves_out_nulls_zeros_and_the_rest_of_the_day():
    document = eco2mix(
        ("2024-05-02T23:45:00+02:00", 20),
        ("2024-05-02T14:30:00+02:00", None),
        ("2024-05-02T14:15:00+02:00", 0),
        ("2024-05-02T14:00:00+02:00", 24),
        ("2024-05-02T13:45:00+02:00", 25),
    )
    assert rte.parse(document, NOW).grams_per_kilowatt_hour == 24


def test_rte_tells_the_two_hours_of_an_autumn_night_apart():
    document = eco2mix(("2024-10-27T02:30:00+01:00", 31), ("2024-10-27T02:45:00+02:00", 30))
    seen = rte.parse(document, at("2024-10-27T03:00:00+01:00"))
    assert seen.grams_per_kilowatt_hour == 31


def test_rte_does_not_guess_the_offset_of_a_local_time():
    with pytest.raises(FactorError, match="no usable value"):
        rte.parse(eco2mix(("2024-05-02T14:15:00", 23)), NOW)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (eco2mix(), "no_value"),
        (eco2mix(("2024-05-02T14:15:00+02:00", None)), "no_value"),
        ({"error_code": "ODSQLError", "message": "?"}, "malformed"),
        ({"results": "none"}, "malformed"),
        ([], "malformed"),
        (None, "malformed"),
    ],
)
def test_rte_without_a_value_says_why(document, reason):
    with pytest.raises(FactorError) as caught:
        rte.parse(document, NOW)
    assert caught.value.reason == reason


# Electricity Maps

LATEST = {
    "zone": "FR",
    "carbonIntensity": 52,
    "datetime": "2024-05-02T12:00:00.000Z",
    "updatedAt": "2024-05-02T11:41:00.000Z",
    "emissionFactorType": "lifecycle",
    "isEstimated": True,
    "estimationMethod": "TIME_SLICER_AVERAGE",
}


def test_electricity_maps_is_asked_with_the_token_in_a_header():
    ask = Recorded(LATEST)
    access = ProviderAccess("https://maps", "FR", secret=lambda: "secret")
    (seen,) = electricity_maps.read(ask, access, NOW)
    assert seen == Observation(
        "electricity_maps", "FR", "lifecycle", 52, at("2024-05-02T12:00:00+00:00"), True
    )
    url, headers = ask.asked[0]
    assert url == "https://maps/v3/carbon-intensity/latest?zone=FR&emissionFactorType=lifecycle"
    assert headers == {"auth-token": "secret"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"zone": "DE"}, "malformed"),
        ({"emissionFactorType": "marginal"}, "malformed"),
        ({"carbonIntensity": None}, "no_value"),
        ({"carbonIntensity": 0}, "no_value"),
        ({"carbonIntensity": 52000}, "no_value"),
        ({"datetime": "2024-05-03T12:00:00.000Z"}, "no_value"),
    ],
)
def test_electricity_maps_without_a_value_says_why(change, reason):
    with pytest.raises(FactorError) as caught:
        electricity_maps.parse(LATEST | change, "FR", NOW)
    assert caught.value.reason == reason


def test_electricity_maps_direct_factors_are_combustion():
    document = LATEST | {"emissionFactorType": "direct"}
    assert electricity_maps.parse(document, "FR", NOW).scope == "combustion"


# Great Britain


def half_hour(actual, forecast=266):
    intensity = {"forecast": forecast, "actual": actual, "index": "moderate"}
    return {"from": "2024-05-02T12:30Z", "to": "2024-05-02T13:00Z", "intensity": intensity}


@pytest.mark.parametrize(("actual", "grams_", "estimated"), [(263, 263, False), (None, 266, True)])
def test_the_uk_grid_is_measured_or_else_forecast(actual, grams_, estimated):
    ask = Recorded({"data": [half_hour(actual)]})
    (seen,) = uk_grid.read(ask, ProviderAccess("https://uk", "GB"), NOW)
    assert seen == Observation(
        "uk_grid", "GB", "combustion", grams_, at("2024-05-02T12:30:00+00:00"), estimated
    )
    assert ask.asked[0][0] == "https://uk/intensity"


def test_a_region_of_the_uk_grid():
    half = half_hour(None, 120) | {"generationmix": []}
    ask = Recorded({"data": [{"regionid": 13, "shortname": "London", "data": [half]}]})
    (seen,) = uk_grid.read(ask, ProviderAccess("https://uk", "GB-13"), NOW)
    assert (seen.zone, seen.grams_per_kilowatt_hour) == ("GB-13", 120)
    assert ask.asked[0][0] == "https://uk/regional/regionid/13"


def test_the_uk_grid_without_a_value_says_so():
    with pytest.raises(FactorError) as caught:
        uk_grid.parse({"data": [half_hour(None, None), {"from": "?"}]}, "GB", NOW)
    assert caught.value.reason == "no_value"


# WattTime


def moer(**meta):
    values = [("2024-05-02T12:25:00+00:00", 900), ("2024-05-02T12:30:00+00:00", 1000)]
    return {
        "data": [{"point_time": time, "value": value} for time, value in values],
        "meta": {"region": "CAISO_NORTH", "units": "lbs_co2_per_mwh", "warnings": []} | meta,
    }


def test_watttime_logs_in_and_converts_pounds_per_megawatt_hour():
    ask = Recorded({"token": "t0"}, moer())
    access = ProviderAccess("https://wt", "CAISO_NORTH", "us", lambda: "geheim")
    (seen,) = watttime.read(ask, access, NOW)
    assert seen.scope == "marginal"
    assert seen.grams_per_kilowatt_hour == pytest.approx(453.59237)
    assert seen.observed_at == at("2024-05-02T12:30:00+00:00")
    login, data = ask.asked
    pair = base64.b64decode(login[1]["Authorization"].split()[1])
    assert pair == b"us:geheim"
    assert data[1] == {"Authorization": "Bearer t0"}
    assert "signal_type=co2_moer" in data[0]


@pytest.mark.parametrize("meta", [{"units": "percentile"}, {"region": "ERCOT"}])
def test_watttime_in_other_units_or_of_elsewhere_is_refused(meta):
    with pytest.raises(FactorError) as caught:
        watttime.parse(moer(**meta), "CAISO_NORTH", NOW)
    assert caught.value.reason == "malformed"


def test_watttime_without_a_token_says_so():
    with pytest.raises(FactorError, match="no token"):
        watttime.read(Recorded([]), ProviderAccess("https://wt", "X"), NOW)


# The server


def test_the_server_hands_on_what_it_has():
    observations = (
        Observation("rte", "FR", "combustion", 23.0, at("2024-05-02T14:15:00+02:00")),
        Observation("owid", "FR", "lifecycle", 44.18, at("2024-01-01T00:00:00+00:00")),
    )
    document = json.loads(json.dumps(stats_server.factors_document(observations)))
    ask = Recorded(document)
    access = ProviderAccess("https://stats", "", secret=lambda: "t")
    assert stats_server.read(ask, access, NOW) == observations
    assert ask.asked == [("https://stats/api/v1/emission-factors", {"Authorization": "Bearer t"})]


def test_rows_of_the_server_that_are_unusable_are_left_out():
    good = stats_server.factors_document([Observation("rte", "FR", "combustion", 23.0, NOW)])[
        "factors"
    ][0]
    bad = [
        good | {"grams_per_kilowatt_hour": 0},
        good | {"observed_at": "2030-01-01T00:00:00+00:00"},
        good | {"scope": "magic"},
        good | {"provider": None},
        "row",
    ]
    assert len(stats_server.parse({"factors": [*bad, good]}, NOW)) == 1
    with pytest.raises(FactorError, match="no current factor"):
        stats_server.parse({"factors": bad}, NOW)


# All of them

anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["results", "taux_co2", "date_heure", "data", "intensity", "from", "forecast",
             "point_time", "value", "meta", "factors", "zone", "carbonIntensity", "datetime"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=15,
)  # fmt: skip


@given(anything)
@pytest.mark.parametrize(
    "parse",
    [
        lambda document: rte.parse(document, NOW),
        lambda document: electricity_maps.parse(document, "FR", NOW),
        lambda document: uk_grid.parse(document, "GB", NOW),
        lambda document: uk_grid.parse(document, "GB-1", NOW),
        lambda document: watttime.parse(document, "X", NOW),
        lambda document: stats_server.parse(document, NOW),
    ],
    ids=["rte", "electricity_maps", "uk_grid", "uk_region", "watttime", "server"],
)
def test_any_document_is_a_factor_or_a_reason(parse, document):
    with contextlib.suppress(FactorError):
        parse(document)


@pytest.mark.parametrize(
    "value", [None, True, "23", 0, -1, 2001, float("nan"), float("inf"), 10**400, []]
)
def test_what_is_no_factor(value):
    assert parse_factor(value) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-02T12:00Z", "2024-05-02T12:00:00+00:00"),
        ("2024-05-02T12:00:00.000Z", "2024-05-02T12:00:00+00:00"),
        ("2024-05-02T14:50:00+02:00", "2024-05-02T14:50:00+02:00"),  # ten minutes ahead: clocks
        ("2024-05-02T14:56:00+02:00", None),
        ("yesterday", None),
        (1714652100, None),
    ],
)
def test_moments(text, seconds):
    assert parse_time(text, NOW) == (at(seconds) if seconds else None)


# Tables


@pytest.mark.parametrize(
    ("provider", "country", "grams_", "year"),
    [
        ("codecarbon", "FRA", 56.039, 2023),
        ("codecarbon", "DE", 380.95, 2023),
        ("owid", "FR", 44.18, 2024),
        ("owid", "world", 473.007, 2024),
        ("owid", "xk", None, None),
    ],
)
def test_figures_of_countries(provider, country, grams_, year):
    seen = country_observation(provider, country)
    if grams_ is not None:
        assert seen.grams_per_kilowatt_hour == pytest.approx(grams_, rel=1e-3)
        assert seen.observed_at == datetime(year + 1, 1, 1, tzinfo=UTC).timestamp()
    assert seen.scope == "lifecycle"


@pytest.mark.parametrize(("written", "zone"), [("UK", "GB"), ("EL", "GR"), ("gbr", "GB")])
def test_countries_go_by_several_names(written, zone):
    assert country_observation("owid", written).zone == zone


@pytest.mark.parametrize("country", ["CF", "CAF", "MC", "", "Atlantis"])
def test_a_hole_in_a_table_is_told_and_not_filled(country):
    with pytest.raises(ValueError, match=r"has no figure for .*owid:world"):
        country_observation("owid", country)


@pytest.mark.parametrize("provider", TABLES)
def test_every_row_of_a_table_is_a_figure_or_a_known_hole(provider):
    rows = set(load_table(provider).values())
    assert len(rows) >= 213
    assert {row.zone for row in rows if row.grams_per_kilowatt_hour is None} == {"CF"}
    assert all(2009 <= row.year <= 2024 for row in rows)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rte", "expected a zone of rte"),
        ("rte:DE", "expected a zone of rte"),
        ("uk_grid:FR", "expected a zone of uk_grid"),
        ("electricity_maps:../x", "expected a zone"),
        ("entsoe:FR", "expected PROVIDER:ZONE with one of owid, codecarbon, rte"),
        ("owid:XX", "has no figure"),
    ],
)
def test_wrong_providers_and_zones_are_told(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        split_provider_zone(text)


@pytest.mark.parametrize("provider", [*TABLES, *PROVIDERS, "server"])
def test_every_provider_is_credited_and_has_a_limit_of_age(provider):
    assert credit(provider)
    assert longest_age(provider) > 0

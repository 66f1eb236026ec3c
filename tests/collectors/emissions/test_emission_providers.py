"""Requests to each provider of emission factors, and the parsing of its documents."""

import base64
import contextlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.emissions.providers import electricity_maps, rte, stats_server, uk_grid, watttime
from collectors.emissions.providers.provider import (
    EmissionFactor,
    FactorError,
    ProviderAccess,
    parse_factor,
    parse_time,
)
from collectors.emissions.providers.registry import (
    PROVIDERS,
    TABLES,
    country_factor,
    credit,
    load_table,
    longest_age,
    split_provider_zone,
)


def unix_time(text):
    return datetime.fromisoformat(text).timestamp()


NOW = unix_time("2024-05-02T14:40:00+02:00")


class RecordedAnswers:
    """Returns the documents one after the other, and records the requests."""

    def __init__(self, *documents):
        self.documents = list(documents)
        self.requests = []

    def __call__(self, url, headers=()):
        self.requests.append((url, dict(headers)))
        return self.documents.pop(0)


# RTE


def eco2mix_document(*pairs):
    results = [{"taux_co2": value, "date_heure": time} for time, value in pairs]
    return {"total_count": len(results), "results": results}


def test_rte_requests_the_newest_values():
    fetch = RecordedAnswers(eco2mix_document(("2024-05-02T14:15:00+02:00", 23)))
    (observation,) = rte.read(fetch, ProviderAccess("https://portal", "FR"), NOW)
    assert observation == EmissionFactor(
        "rte", "FR", "combustion", 23, unix_time("2024-05-02T14:15:00+02:00")
    )
    url, _ = fetch.requests[0]
    assert url.startswith("https://portal/api/explore/v2.1/catalog/datasets/eco2mix-national-tr/")
    assert "where=taux_co2+is+not+null" in url


def test_rte_skips_nulls_zeros_and_future_values():
    document = eco2mix_document(
        ("2024-05-02T23:45:00+02:00", 20),
        ("2024-05-02T14:30:00+02:00", None),
        ("2024-05-02T14:15:00+02:00", 0),
        ("2024-05-02T14:00:00+02:00", 24),
        ("2024-05-02T13:45:00+02:00", 25),
    )
    assert rte.parse(document, NOW).grams_per_kilowatt_hour == 24


def test_rte_distinguishes_the_repeated_hour_when_daylight_saving_ends():
    document = eco2mix_document(
        ("2024-10-27T02:30:00+01:00", 31), ("2024-10-27T02:45:00+02:00", 30)
    )
    observation = rte.parse(document, unix_time("2024-10-27T03:00:00+01:00"))
    assert observation.grams_per_kilowatt_hour == 31


def test_rte_skips_times_without_utc_offset():
    with pytest.raises(FactorError, match="no usable value"):
        rte.parse(eco2mix_document(("2024-05-02T14:15:00", 23)), NOW)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (eco2mix_document(), "no_value"),
        (eco2mix_document(("2024-05-02T14:15:00+02:00", None)), "no_value"),
        ({"error_code": "ODSQLError", "message": "?"}, "malformed"),
        ({"results": "none"}, "malformed"),
        ([], "malformed"),
        (None, "malformed"),
    ],
)
def test_rte_error_reason(document, reason):
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


def test_electricity_maps_request_has_the_token_in_a_header():
    fetch = RecordedAnswers(LATEST)
    access = ProviderAccess("https://maps", "FR", secret=lambda: "secret")
    (observation,) = electricity_maps.read(fetch, access, NOW)
    assert observation == EmissionFactor(
        "electricity_maps", "FR", "lifecycle", 52, unix_time("2024-05-02T12:00:00+00:00"), True
    )
    url, headers = fetch.requests[0]
    assert url == "https://maps/v3/carbon-intensity/latest?zone=FR&emissionFactorType=lifecycle"
    assert headers == {"auth-token": "secret"}


@pytest.mark.parametrize(
    ("changed_fields", "reason"),
    [
        ({"zone": "DE"}, "malformed"),
        ({"emissionFactorType": "marginal"}, "malformed"),
        ({"carbonIntensity": None}, "no_value"),
        ({"carbonIntensity": 0}, "no_value"),
        ({"carbonIntensity": 52000}, "no_value"),
        ({"datetime": "2024-05-03T12:00:00.000Z"}, "no_value"),
    ],
)
def test_electricity_maps_error_reason(changed_fields, reason):
    with pytest.raises(FactorError) as caught:
        electricity_maps.parse(LATEST | changed_fields, "FR", NOW)
    assert caught.value.reason == reason


def test_electricity_maps_direct_factors_are_combustion():
    document = LATEST | {"emissionFactorType": "direct"}
    assert electricity_maps.parse(document, "FR", NOW).scope == "combustion"


# Great Britain


def half_hour_document(actual, forecast=266):
    intensity = {"forecast": forecast, "actual": actual, "index": "moderate"}
    return {"from": "2024-05-02T12:30Z", "to": "2024-05-02T13:00Z", "intensity": intensity}


@pytest.mark.parametrize(("actual", "grams", "estimated"), [(263, 263, False), (None, 266, True)])
def test_uk_grid_forecast_is_used_if_there_is_no_measured_value(actual, grams, estimated):
    fetch = RecordedAnswers({"data": [half_hour_document(actual)]})
    (observation,) = uk_grid.read(fetch, ProviderAccess("https://uk", "GB"), NOW)
    assert observation == EmissionFactor(
        "uk_grid", "GB", "combustion", grams, unix_time("2024-05-02T12:30:00+00:00"), estimated
    )
    assert fetch.requests[0][0] == "https://uk/intensity"


def test_uk_grid_region():
    half_hour = half_hour_document(None, 120) | {"generationmix": []}
    fetch = RecordedAnswers(
        {"data": [{"regionid": 13, "shortname": "London", "data": [half_hour]}]}
    )
    (observation,) = uk_grid.read(fetch, ProviderAccess("https://uk", "GB-13"), NOW)
    assert (observation.zone, observation.grams_per_kilowatt_hour) == ("GB-13", 120)
    assert fetch.requests[0][0] == "https://uk/regional/regionid/13"


def test_uk_grid_without_a_value_is_an_error():
    with pytest.raises(FactorError) as caught:
        uk_grid.parse({"data": [half_hour_document(None, None), {"from": "?"}]}, "GB", NOW)
    assert caught.value.reason == "no_value"


# WattTime


def moer_document(**meta):
    values = [("2024-05-02T12:25:00+00:00", 900), ("2024-05-02T12:30:00+00:00", 1000)]
    return {
        "data": [{"point_time": time, "value": value} for time, value in values],
        "meta": {"region": "CAISO_NORTH", "units": "lbs_co2_per_mwh", "warnings": []} | meta,
    }


def test_watttime_logs_in_and_converts_pounds_per_megawatt_hour():
    fetch = RecordedAnswers({"token": "t0"}, moer_document())
    access = ProviderAccess("https://wt", "CAISO_NORTH", "us", lambda: "geheim")
    (observation,) = watttime.read(fetch, access, NOW)
    assert observation.scope == "marginal"
    assert observation.grams_per_kilowatt_hour == pytest.approx(453.59237)
    assert observation.observed_at == unix_time("2024-05-02T12:30:00+00:00")
    login_request, data_request = fetch.requests
    user_and_password = base64.b64decode(login_request[1]["Authorization"].split()[1])
    assert user_and_password == b"us:geheim"
    assert data_request[1] == {"Authorization": "Bearer t0"}
    assert "signal_type=co2_moer" in data_request[0]


@pytest.mark.parametrize("meta", [{"units": "percentile"}, {"region": "ERCOT"}])
def test_watttime_answer_of_other_units_or_region_is_rejected(meta):
    with pytest.raises(FactorError) as caught:
        watttime.parse(moer_document(**meta), "CAISO_NORTH", NOW)
    assert caught.value.reason == "malformed"


def test_watttime_login_without_token_is_an_error():
    with pytest.raises(FactorError, match="no token"):
        watttime.read(RecordedAnswers([]), ProviderAccess("https://wt", "X"), NOW)


# The stats server


def test_factors_of_the_stats_server_are_read_back():
    observations = (
        EmissionFactor("rte", "FR", "combustion", 23.0, unix_time("2024-05-02T14:15:00+02:00")),
        EmissionFactor("owid", "FR", "lifecycle", 44.18, unix_time("2024-01-01T00:00:00+00:00")),
    )
    document = json.loads(json.dumps(stats_server.factors_document(observations)))
    fetch = RecordedAnswers(document)
    access = ProviderAccess("https://stats", "", secret=lambda: "t")
    assert stats_server.read(fetch, access, NOW) == observations
    assert fetch.requests == [
        ("https://stats/api/v1/emission-factors", {"Authorization": "Bearer t"})
    ]


def test_invalid_rows_of_the_stats_server_are_skipped():
    valid_row = stats_server.factors_document(
        [EmissionFactor("rte", "FR", "combustion", 23.0, NOW)]
    )["factors"][0]
    invalid_rows = [
        valid_row | {"grams_per_kilowatt_hour": 0},
        valid_row | {"observed_at": "2030-01-01T00:00:00+00:00"},
        valid_row | {"scope": "magic"},
        valid_row | {"provider": None},
        "row",
    ]
    assert len(stats_server.parse({"factors": [*invalid_rows, valid_row]}, NOW)) == 1
    with pytest.raises(FactorError, match="no current factor"):
        stats_server.parse({"factors": invalid_rows}, NOW)


# All providers

json_documents = st.recursive(
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


@given(json_documents)
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
def test_arbitrary_document_is_parsed_or_rejected(parse, document):
    with contextlib.suppress(FactorError):
        parse(document)


@pytest.mark.parametrize(
    "value", [None, True, "23", 0, -1, 2001, float("nan"), float("inf"), 10**400, []]
)
def test_invalid_factors(value):
    assert parse_factor(value) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-02T12:00Z", "2024-05-02T12:00:00+00:00"),
        ("2024-05-02T12:00:00.000Z", "2024-05-02T12:00:00+00:00"),
        ("2024-05-02T14:50:00+02:00", "2024-05-02T14:50:00+02:00"),  # ten minutes ahead
        ("2024-05-02T14:56:00+02:00", None),
        ("yesterday", None),
        (1714652100, None),
    ],
)
def test_parse_time(text, expected):
    assert parse_time(text, NOW) == (unix_time(expected) if expected else None)


# Tables


@pytest.mark.parametrize(
    ("provider", "country", "grams", "year"),
    [
        ("codecarbon", "FRA", 56.039, 2023),
        ("codecarbon", "DE", 380.95, 2023),
        ("owid", "FR", 44.18, 2024),
        ("owid", "world", 473.007, 2024),
        ("owid", "xk", None, None),
    ],
)
def test_country_figures(provider, country, grams, year):
    observation = country_factor(provider, country)
    if grams is not None:
        assert observation.grams_per_kilowatt_hour == pytest.approx(grams, rel=1e-3)
        assert observation.observed_at == datetime(year + 1, 1, 1, tzinfo=UTC).timestamp()
    assert observation.scope == "lifecycle"


@pytest.mark.parametrize(("country", "zone"), [("UK", "GB"), ("EL", "GR"), ("gbr", "GB")])
def test_country_aliases(country, zone):
    assert country_factor("owid", country).zone == zone


@pytest.mark.parametrize("country", ["CF", "CAF", "MC", "", "Atlantis"])
def test_country_without_figure_is_an_error(country):
    with pytest.raises(ValueError, match=r"has no figure for .*owid:world"):
        country_factor("owid", country)


@pytest.mark.parametrize("provider", TABLES)
def test_every_country_but_the_known_exception_has_a_figure(provider):
    table = load_table(provider)
    assert len({factor for factor in table.values() if factor}) >= 212
    assert {code for code, factor in table.items() if factor is None} <= {"CF", "CAF"}
    years = {datetime.fromtimestamp(f.observed_at, UTC).year for f in table.values() if f}
    assert 2010 <= min(years) <= max(years) <= 2025


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
def test_invalid_provider_or_zone_is_rejected(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        split_provider_zone(text)


@pytest.mark.parametrize("provider", [*TABLES, *PROVIDERS, "server"])
def test_every_provider_has_a_credit_and_a_maximum_age(provider):
    assert credit(provider)
    assert longest_age(provider) > 0

"""What all providers of emission factors keep to; one in the table without a case fails."""

import contextlib
import json
import re
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.settings import SettingsError
from collectors.emissions.providers.provider import FactorError, ProviderAccess
from collectors.emissions.providers.registry import PROVIDERS, credit, split_provider_zone
from collectors.emissions.providers.stats_server import SCOPES
from collectors.emissions.site_factors import EmissionsOptions, SiteFactors

NOW = datetime.fromisoformat("2024-05-02T14:40:00+02:00").timestamp()
PAGE = (Path(__file__).parents[3] / "docs/emissions.md").read_text()


class Case(NamedTuple):
    """A zone, and what the provider answers to the requests of one reading."""

    zone: str
    answers: tuple[object, ...]


def half_hour(actual):
    return {"from": "2024-05-02T12:30Z", "intensity": {"forecast": 266, "actual": actual}}


CASES = {
    "rte": Case(
        "FR", ({"results": [{"taux_co2": 23, "date_heure": "2024-05-02T14:15:00+02:00"}]},)
    ),
    "electricity_maps": Case(
        "FR", ({"zone": "FR", "carbonIntensity": 52, "datetime": "2024-05-02T12:00:00.000Z"},)
    ),
    "uk_grid": Case("GB", ({"data": [half_hour(263)]},)),
    "watttime": Case(
        "CAISO_NORTH",
        (
            {"token": "t0"},
            {
                "data": [{"point_time": "2024-05-02T12:30:00+00:00", "value": 900}],
                "meta": {"region": "CAISO_NORTH", "units": "lbs_co2_per_mwh"},
            },
        ),
    ),
}
every_provider = pytest.mark.parametrize("name", PROVIDERS)


class Answers:
    """Returns the answers one after the other, and records the requests."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.requests = []

    def __call__(self, url, headers=()):
        self.requests.append((url, dict(headers)))
        return self.answers.pop(0) if self.answers else None


def read(name, answers, zone=""):
    access = ProviderAccess("https://there", zone or CASES[name].zone, "me", lambda: "geheim")
    fetch = Answers(answers)
    return PROVIDERS[name].read(fetch, access, NOW), fetch.requests


def test_every_provider_has_a_case():
    assert CASES.keys() == PROVIDERS.keys()


@every_provider
def test_answer_becomes_an_observation_of_the_provider_and_zone(name):
    (observation,), requests = read(name, CASES[name].answers)
    assert (observation.provider, observation.zone) == (name, CASES[name].zone)
    assert observation.scope in SCOPES
    assert 0 < observation.grams_per_kilowatt_hour < 2000
    assert NOW - PROVIDERS[name].longest_age < observation.observed_at <= NOW
    assert len(requests) == len(CASES[name].answers)


@every_provider
def test_secret_is_never_in_an_address(name):
    _, requests = read(name, CASES[name].answers)
    assert all(url.startswith("https://there/") and "geheim" not in url for url, _ in requests)


@every_provider
def test_entry_is_complete(name):
    entry = PROVIDERS[name]
    assert entry.url.startswith("https://")
    assert 60 <= entry.interval < entry.longest_age
    assert credit(name) == entry.credit != ""
    assert split_provider_zone(f"{name}:{CASES[name].zone}") == (name, CASES[name].zone)
    with pytest.raises(ValueError, match=f"expected a zone of {name}"):
        split_provider_zone(f"{name}:../x")
    assert re.search(rf"^\| `{name}` \|", PAGE, re.M), "a row of the table in docs/emissions.md"


@every_provider
def test_missing_credentials_are_named(name):
    entry = PROVIDERS[name]
    options = EmissionsOptions(provider=(f"{name}:{CASES[name].zone}",))
    needed = [field for field in (entry.user_option, entry.credential_option) if field]
    assert set(needed) <= {field.name for field in fields(options)}
    for field in needed:
        flag = re.escape(f"collector.emissions.{field.replace('_', '-')}")
        with pytest.raises(SettingsError, match=rf"{flag}: expected with {name}"):
            SiteFactors.of_site(options)
        options = replace(options, **{field: "given"})
    assert len(SiteFactors.of_site(options).pollers) == 1


def changed_somewhere(document):
    """The document with one of its values replaced, at any depth."""
    replacements = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20)
    replacements |= st.just([]) | st.just({})
    if isinstance(document, dict) and document:
        return replacements | st.sampled_from(sorted(document)).flatmap(
            lambda key: changed_somewhere(document[key]).map(lambda new: {**document, key: new})
        )
    if isinstance(document, list) and document:
        return replacements | changed_somewhere(document[0]).map(lambda new: [new, *document[1:]])
    return replacements


@every_provider
@given(data=st.data())
def test_any_answer_becomes_observations_or_a_factor_error(name, data):
    answers = json.loads(json.dumps(CASES[name].answers))
    changed = data.draw(st.integers(0, len(answers) - 1))
    answers[changed] = data.draw(changed_somewhere(answers[changed]))
    with contextlib.suppress(FactorError):
        observations, _ = read(name, answers)
        assert all(0 < each.grams_per_kilowatt_hour <= 2000 for each in observations)

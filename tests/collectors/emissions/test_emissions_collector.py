"""The emissions collector: providers over HTTP on 127.0.0.1, their failures, and restarts."""

import dataclasses
import email.utils
import logging
import socket
import time
from datetime import UTC, datetime

import pytest

from batchjob.runtime.settings import SettingsError, build_section
from collectors.emissions.collector import AGE, COLLECTOR, ERRORS, ESTIMATED, FACTOR, INFO, METRICS
from collectors.emissions.providers.provider import REASONS
from collectors.emissions.site_factors import EmissionsOptions, SiteFactors, parse_retry_after
from collectors.host import Host
from tests.helpers.clock import Clock
from tests.helpers.waiting import scaled, until
from tests.simulated.provider import Provider

RTE = "/api/explore/v2.1/catalog/datasets/eco2mix-national-tr/records"


def eco2mix_document(clock, grams=23, age_seconds=1500):
    observed_at = datetime.fromtimestamp(clock.now - age_seconds, UTC).isoformat()
    return {"results": [{"taux_co2": grams, "date_heure": observed_at}]}


@pytest.fixture
def clock():
    return Clock(1714653600.0)  # 2024-05-02T12:40:00Z


@pytest.fixture
def provider(clock):
    provider = Provider({RTE: eco2mix_document(clock)})
    yield provider
    provider.close()


@pytest.fixture(autouse=True)
def no_state_directory(monkeypatch):
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)


@pytest.fixture
def rte_options(provider):
    return EmissionsOptions(provider=("rte:FR",), url=(f"rte={provider.url}",), timeout=scaled(5.0))


def emissions_collector(options, clock):
    return COLLECTOR.build(Host(clock=clock), options, {})


def refresh(collector):
    for source in collector.pollers:
        source.refresher.refresh()


def samples(collector, metric):
    return {
        labels: value
        for family in collector.collect()
        if family.metric is metric
        for labels, value in family.samples
    }


def error_counts(collector):
    return {labels: count for labels, count in samples(collector, ERRORS).items() if count}


def test_country_tables_need_no_network_and_no_thread(clock, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", None)
    collector = emissions_collector(EmissionsOptions(provider=("owid:FR", "codecarbon:FR")), clock)
    collector.start()
    assert samples(collector, FACTOR) == {
        'provider="owid",zone="FR",scope="lifecycle"': pytest.approx(44.18, rel=1e-3),
        'provider="codecarbon",zone="FR",scope="lifecycle"': 56.039,
    }
    assert collector.pollers == []
    collector.stop()


def test_live_factor_has_scope_age_and_credit(rte_options, clock):
    collector = emissions_collector(rte_options, clock)
    assert samples(collector, FACTOR) == {}
    refresh(collector)
    assert samples(collector, FACTOR) == {'provider="rte",zone="FR",scope="combustion"': 23}
    assert samples(collector, AGE) == {'provider="rte",zone="FR"': 1500}
    assert samples(collector, ESTIMATED) == {'provider="rte",zone="FR"': 0}
    assert any("RTE" in labels for labels in samples(collector, INFO))
    assert {family.metric for family in collector.collect()} <= set(METRICS)
    (factor,) = collector.current()
    assert (factor.grams_per_kilowatt_hour, factor.age_seconds(clock.now)) == (23, 1500)


def test_each_provider_has_a_series_of_its_own(rte_options, clock):
    options = dataclasses.replace(rte_options, provider=("rte:FR", "owid:FR"))
    collector = emissions_collector(options, clock)
    refresh(collector)
    assert len(samples(collector, FACTOR)) == 2
    clock.now += 6 * 3600  # RTE stopped answering
    assert list(samples(collector, FACTOR)) == ['provider="owid",zone="FR",scope="lifecycle"']


def test_only_the_configured_zone_is_requested(provider, clock, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    provider.otherwise = {"zone": "DK-DK1", "carbonIntensity": 80, "datetime": "2024-05-02T12:00Z"}
    options = EmissionsOptions(
        provider=("electricity_maps:DK-DK1",),
        url=(f"electricity_maps={provider.url}",),
        electricity_maps_token_file=str(tmp_path / "token"),
    )
    collector = emissions_collector(options, clock)
    refresh(collector)
    assert [path for path, _ in provider.requests] == [
        "/v3/carbon-intensity/latest?zone=DK-DK1&emissionFactorType=lifecycle"
    ]
    assert provider.requests[0][1]["auth-token"] == "secret"
    assert samples(collector, FACTOR)


@pytest.mark.parametrize(
    ("document", "status", "reason"),
    [
        (b"{}", 500, "status"),
        (b"{}", 302, "status"),
        (b"{}", 401, "authentication"),
        (b"{}", 429, "rate_limited"),
        (b"<!DOCTYPE html><p>maintenance", 200, "malformed"),
        (b'{"results": [{"taux_', 200, "malformed"),
        ({"results": [{"taux_co2": None, "date_heure": None}]}, 200, "no_value"),
        ({"results": []}, 200, "no_value"),
        (b" " * (2 << 20), 200, "too_large"),
    ],
    ids=["500", "302", "401", "429", "html", "truncated", "nulls", "empty", "huge"],
)
def test_failed_request_is_counted_and_the_last_factor_kept(
    provider, rte_options, clock, document, status, reason
):
    collector = emissions_collector(rte_options, clock)
    refresh(collector)
    provider.documents, provider.otherwise, provider.status = {}, document, status
    refresh(collector)
    assert error_counts(collector) == {f'provider="rte",reason="{reason}"': 1}
    assert list(samples(collector, FACTOR).values()) == [23]


def test_outdated_value_is_no_factor(provider, rte_options, clock):
    provider.documents[RTE] = eco2mix_document(clock, age_seconds=6 * 3600 + 60)
    collector = emissions_collector(rte_options, clock)
    refresh(collector)
    assert samples(collector, FACTOR) == {}
    assert error_counts(collector) == {'provider="rte",reason="late"': 1}


@pytest.mark.parametrize("fault", ["silence", "drip", "drip without length"])
def test_slow_provider_times_out(provider, rte_options, clock, fault):
    collector = emissions_collector(dataclasses.replace(rte_options, timeout=0.4), clock)
    provider.delay = 3.0 if fault == "silence" else 0.0
    provider.drip = 0.0 if fault == "silence" else 0.05
    provider.length = fault != "drip without length"
    started = time.monotonic()
    refresh(collector)
    assert time.monotonic() - started < scaled(1.5)
    assert error_counts(collector) == {'provider="rte",reason="deadline"': 1}


def test_stopped_provider_is_unreachable(provider, rte_options, clock):
    provider.close()
    collector = emissions_collector(rte_options, clock)
    refresh(collector)
    assert error_counts(collector) == {'provider="rte",reason="unreachable"': 1}


def test_failures_are_logged_once(provider, rte_options, clock, caplog):
    provider.status = 500
    collector = emissions_collector(rte_options, clock)
    for _ in range(3):
        refresh(collector)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "emissions rte:FR" in caplog.text


def test_retry_after_is_honoured(provider, rte_options, clock):
    provider.status, provider.headers = 429, {"Retry-After": "7200"}
    collector = emissions_collector(rte_options, clock)
    refresh(collector)
    assert collector.pollers[0].refresher.pause == 7200


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        (email.utils.formatdate(1714653600 + 90, usegmt=True), 90),
        (email.utils.formatdate(1714653600 - 90, usegmt=True), 0),
        ("99999999", 86400),
        ("", 0),
        ("soon", 0),
        ("-5", 0),
    ],
)
def test_parse_retry_after(text, seconds):
    assert parse_retry_after(text, 1714653600.0) == seconds


def test_factors_of_the_server_are_added_unless_the_node_has_its_own(provider, clock):
    observed_at = datetime.fromtimestamp(clock.now - 60, UTC).isoformat()
    row = {"scope": "lifecycle", "grams_per_kilowatt_hour": 99, "observed_at": observed_at}
    provider.documents["/api/v1/emission-factors"] = {
        "factors": [row | {"provider": "owid", "zone": "DE"}, row | {"provider": "x", "zone": "y"}]
    }
    options = EmissionsOptions(provider=("owid:FR",), server_url=provider.url)
    collector = emissions_collector(options, clock)
    refresh(collector)
    assert set(samples(collector, FACTOR)) == {
        'provider="owid",zone="FR",scope="lifecycle"',
        'provider="x",zone="y",scope="lifecycle"',
    }


def test_thread_fetches_factors_until_it_is_stopped(provider, rte_options, clock, monkeypatch):
    monkeypatch.setattr("collectors.emissions.site_factors.SPREAD_SECONDS", 0.0)
    factors = SiteFactors.of_site(rte_options, clock=clock)
    factors.start()
    until(factors.current, "factors")
    factors.stop()
    assert len(factors.current()) == 1


def test_http_failure_reasons_are_declared():
    from batchjob.runtime import http_client

    assert set(http_client.REASONS) <= set(REASONS)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "collector.emissions.provider: expected PROVIDER:ZONE, such as owid:FR"),
        ({"provider": ["owid:FR", "owid:DE"]}, "expected one zone for owid"),
        ({"provider": ["owid:Atlantis"]}, "has no figure for 'Atlantis'"),
        ({"provider": ["FR"]}, "expected PROVIDER:ZONE with one of"),
        ({"provider": [1]}, "expected PROVIDER:ZONE"),
        ({"provider": ["electricity_maps:FR"]}, "electricity-maps-token-file: expected with"),
        ({"provider": ["watttime:X"]}, "watttime-user: expected with watttime"),
        ({"provider": ["rte:FR"], "url": ["rte"]}, "url: expected PROVIDER=URL"),
        ({"server-url": "stats"}, "server-url: expected http://HOST"),
        ({"provider": ["rte:FR"], "ca-file": "/nonexistent"}, "ca-file: /nonexistent: No such"),
    ],
)
def test_invalid_settings_are_rejected(settings, complaint):
    named_settings = {f"collector.emissions.{key}": value for key, value in settings.items()}
    with pytest.raises(SettingsError, match=complaint) as caught:
        SiteFactors.of_site(build_section(EmissionsOptions, "collector.emissions", named_settings))
    assert "\n" not in str(caught.value)

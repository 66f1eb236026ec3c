"""The Redfish collector over HTTPS, on a simulated service with sessions."""

import dataclasses
import os

import pytest

from batchjob.runtime import http_client
from batchjob.runtime.settings import SettingsError
from collectors.host import Host
from collectors.power.redfish.collector import (
    AGE,
    ERRORS,
    METRICS,
    POWER,
    RedfishCollector,
    RedfishOptions,
)
from collectors.power.redfish.power import REASONS
from tests.helpers.clock import Clock
from tests.helpers.waiting import scaled
from tests.simulated.redfish_service import ROOT, SESSIONS, RedfishService, link, one_node

CHASSIS = "/redfish/v1/Chassis/1"
ENVIRONMENT = f"{CHASSIS}/EnvironmentMetrics"


TIMEOUT = scaled(5.0)


@pytest.fixture
def service():
    documents = one_node(EnvironmentMetrics=link(ENVIRONMENT)) | {
        ENVIRONMENT: {"PowerWatts": {"Reading": 374.5}}
    }
    service = RedfishService(documents)
    yield service
    service.close()


@pytest.fixture
def options(service, tmp_path):
    (tmp_path / "password").write_text("geheim\n")
    (tmp_path / "password").chmod(0o600)
    service.authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return RedfishOptions(
        url=service.url,
        user="power",
        password_file=str(tmp_path / "password"),
        ca_file=str(tmp_path / "ca.pem"),
        timeout=TIMEOUT,
    )


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def collector(options, clock):
    collector = RedfishCollector(Host(monotonic=clock), options)
    yield collector
    collector.stop()


def samples(collector, metric):
    return {
        labels: value
        for family in collector.collect()
        if family.metric is metric
        for labels, value in family.samples
    }


def refresh(collector):
    collector.refresher.refresh()


def error_counts(collector):
    return {labels: count for labels, count in samples(collector, ERRORS).items() if count}


def test_power_is_exported_by_chassis_and_read_by_the_meter(collector, clock):
    refresh(collector)
    clock.now += 3
    assert samples(collector, POWER) == {'chassis="1"': 374.5}
    assert samples(collector, AGE) == {"": 3.0}
    (meter,) = collector.meters()
    assert (meter.name, meter.scope, meter.read().watts) == ("redfish", "node", 374.5)
    assert {family.metric for family in collector.collect()} <= set(METRICS)


def test_session_is_reused_and_deleted_on_stop(collector, service):
    for _ in range(4):
        refresh(collector)
    assert service.logins == 1
    assert len(service.sessions) == 1
    collector.stop()
    assert service.sessions == {}


def test_power_resource_is_looked_up_once(collector, service):
    refresh(collector)
    before = len(service.requests)
    refresh(collector)
    assert service.requests[before:] == [("GET", ENVIRONMENT)]


def test_expired_session_is_renewed_immediately(collector, service):
    refresh(collector)
    service.expire()
    refresh(collector)
    assert error_counts(collector) == {}
    assert service.logins == 2
    assert len(service.sessions) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_within_the_service_are_followed(collector, service, status):
    """Some BMCs redirect a path to itself with or without a slash at its end."""
    service.redirects[ENVIRONMENT] = (status, f"{ENVIRONMENT}/")
    service.documents[f"{ENVIRONMENT}/"] = service.documents.pop(ENVIRONMENT)
    refresh(collector)
    assert samples(collector, POWER) == {'chassis="1"': 374.5}


def test_login_is_redirected_with_its_method_and_body(collector, service):
    service.redirects[SESSIONS] = (308, f"{SESSIONS}/")
    refresh(collector)
    assert ("POST", f"{SESSIONS}/") in service.requests
    assert samples(collector, POWER) == {'chassis="1"': 374.5}


def test_login_uses_the_sessions_of_the_service_root(collector, service):
    service.documents[ROOT]["Links"] = {"Sessions": {"@odata.id": "/redfish/v1/Sessions"}}
    refresh(collector)
    assert ("POST", "/redfish/v1/Sessions") in service.requests


@pytest.mark.parametrize(
    "target", [ENVIRONMENT, "https://elsewhere.example/metrics", "http://127.0.0.1/", "//[::1]:x/"]
)
def test_circular_and_foreign_redirects_are_errors(collector, service, target):
    service.redirects[ENVIRONMENT] = (307, target)
    refresh(collector)
    assert samples(collector, POWER) == {}
    assert service.requests.count(("GET", ENVIRONMENT)) <= 4


def test_sessions_do_not_accumulate(collector, service):
    for _ in range(6):
        refresh(collector)
        service.sessions = dict.fromkeys(service.sessions, "renamed")  # tokens end, slots stay
    assert error_counts(collector) == {}
    assert len(service.sessions) == 1


def test_wrong_password_is_counted_and_retried_after_ten_minutes(collector, options, service):
    service.credentials["Password"] = "other"
    refresh(collector)
    assert error_counts(collector) == {'reason="authentication"': 1}
    assert collector.refresher.pause == 600


def test_changed_password_is_read_again(collector, options, service):
    refresh(collector)
    service.expire()
    service.credentials["Password"] = "new"
    with open(options.password_file, "w") as file:
        file.write("new\n")
    refresh(collector)
    assert error_counts(collector) == {}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (500, "status"),
        (404, "status"),
        (b"<html>Busy</html>", "malformed"),
        (b'{"PowerWatts": {"Rea', "malformed"),
        (b"[]", "malformed"),
        ({"PowerWatts": {"Reading": None}}, "no_reading"),
        ({"PowerWatts": {"Reading": 0}}, "no_reading"),
        (b"x" * (5 << 20), "too_large"),
    ],
    ids=["500", "404", "html", "truncated", "list", "null", "zero", "huge"],
)
def test_failures_are_counted_and_stale_power_is_not_exported(
    collector, clock, service, document, reason
):
    refresh(collector)
    service.documents[ENVIRONMENT] = document
    refresh(collector)
    assert error_counts(collector) == {f'reason="{reason}"': 1}
    assert samples(collector, POWER)
    clock.now += 3 * 30 + TIMEOUT + 0.1
    assert samples(collector, POWER) == {}
    assert collector.meters() == ()


@pytest.mark.parametrize("fault", ["delay", "drip"])
def test_slow_service_times_out(options, service, fault):
    collector = RedfishCollector(Host(), dataclasses.replace(options, timeout=0.6))
    while not samples(collector, POWER):  # on a busy machine, this may time out, too
        refresh(collector)
    earlier_timeouts = error_counts(collector).get('reason="deadline"', 0)
    setattr(service, fault, 5.0 if fault == "delay" else 0.1)
    refresh(collector)  # the service would answer later
    assert error_counts(collector) == {'reason="deadline"': earlier_timeouts + 1}
    service.delay = service.drip = 0.0
    collector.stop()


def test_stopped_service_is_unreachable(collector, service):
    service.close()
    refresh(collector)
    assert error_counts(collector) == {'reason="unreachable"': 1}


def test_certificates_are_verified_by_default(options, service):
    verifying = RedfishCollector(Host(), dataclasses.replace(options, ca_file=""))
    refresh(verifying)
    assert error_counts(verifying) == {'reason="tls"': 1}
    assert service.logins == 0
    insecure = RedfishCollector(Host(), dataclasses.replace(options, ca_file="", insecure=True))
    refresh(insecure)
    assert samples(insecure, POWER) == {'chassis="1"': 374.5}
    insecure.stop()


def test_chassis_are_added_only_if_configured(options, service):
    second_chassis = "/redfish/v1/Chassis/2"
    service.documents["/redfish/v1/Chassis"]["Members"].append(link(second_chassis))
    service.documents[second_chassis] = service.documents[CHASSIS] | {"Id": "2"}
    by_default = RedfishCollector(Host(), options)
    refresh(by_default)
    assert by_default.meters()[0].read().watts == 374.5
    by_default.stop()
    with_two_chassis = RedfishCollector(Host(), dataclasses.replace(options, chassis=("1", "2")))
    refresh(with_two_chassis)
    assert with_two_chassis.meters()[0].read().watts == 749
    with_two_chassis.stop()
    with_unknown_chassis = RedfishCollector(
        Host(), dataclasses.replace(options, chassis=("1", "9"))
    )
    refresh(with_unknown_chassis)
    assert error_counts(with_unknown_chassis) == {'reason="no_reading"': 1}
    with_unknown_chassis.stop()


@pytest.mark.parametrize(
    ("changed_options", "complaint"),
    [
        ({"url": ""}, "collector.redfish.url: expected https://HOST"),
        ({"url": "http://bmc"}, "collector.redfish.url: expected https://HOST"),
        ({"url": "https://u:p@bmc"}, "collector.redfish.url: expected https://HOST"),
        ({"user": ""}, "collector.redfish.user: expected"),
        ({"password_file": ""}, "collector.redfish.password-file: expected"),
        ({"ca_file": "/nonexistent"}, "collector.redfish.ca-file: /nonexistent: No such file"),
    ],
)
def test_invalid_settings_are_rejected(options, changed_options, complaint):
    with pytest.raises(SettingsError, match=complaint) as caught:
        RedfishCollector(Host(), dataclasses.replace(options, **changed_options))
    assert "\n" not in str(caught.value)


def test_http_failure_reasons_are_declared():
    assert set(http_client.REASONS) <= set(REASONS)


def test_node_name_in_the_url(options):
    host_name = os.uname().nodename.partition(".")[0]
    with pytest.raises(SettingsError, match=f"got 'http://{host_name}-bmc'"):
        RedfishCollector(Host(), dataclasses.replace(options, url="http://{node}-bmc"))

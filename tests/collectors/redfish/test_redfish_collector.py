"""Over HTTPS, against a service with sessions."""

import dataclasses
import os

import pytest

from batchjob.runtime import http_client
from batchjob.runtime.settings import SettingsError
from collectors.host import Host
from collectors.power.redfish.collector import AGE, ERRORS, METRICS, POWER, RedfishOptions, build
from collectors.power.redfish.error import REASONS
from tests.simulated.redfish_service import RedfishService, link, one_node

CHASSIS = "/redfish/v1/Chassis/1"
ENVIRONMENT = f"{CHASSIS}/EnvironmentMetrics"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


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
        timeout=5.0,
    )


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def collector(options, clock):
    collector = build(Host(monotonic=clock), options, {})
    yield collector
    collector.stop()


def shown(collector, metric):
    return {
        labels: value
        for family in collector.collect()
        if family.metric is metric
        for labels, value in family.samples
    }


def refresh(collector):
    collector.refresher.refresh()


def errors(collector):
    return {labels: count for labels, count in shown(collector, ERRORS).items() if count}


def test_power_is_shown_by_chassis_and_offered_as_a_meter(collector, clock):
    refresh(collector)
    clock.now += 3
    assert shown(collector, POWER) == {'chassis="1"': 374.5}
    assert shown(collector, AGE) == {"": 3.0}
    (meter,) = collector.meters()
    assert (meter.name, meter.scope, meter.read().watts) == ("redfish", "node", 374.5)
    assert {family.metric for family in collector.collect()} <= set(METRICS)


def test_one_session_serves_all_readings_and_is_deleted_at_the_end(collector, service):
    for _ in range(4):
        refresh(collector)
    assert service.logins == 1
    assert len(service.sessions) == 1
    collector.stop()
    assert service.sessions == {}


def test_where_the_power_stands_is_looked_up_once(collector, service):
    refresh(collector)
    service.requests.clear()
    refresh(collector)
    assert service.requests == [("GET", ENVIRONMENT)]


def test_a_session_that_expired_is_renewed_at_once(collector, service):
    refresh(collector)
    service.expire()
    refresh(collector)
    assert errors(collector) == {}
    assert service.logins == 2
    assert len(service.sessions) == 1


def test_sessions_never_pile_up(collector, service):
    for _ in range(6):
        refresh(collector)
        service.sessions = dict.fromkeys(service.sessions, "renamed")  # tokens end, slots stay
    assert errors(collector) == {}
    assert len(service.sessions) == 1


def test_a_wrong_password_is_counted_and_given_a_rest(collector, options, service):
    service.credentials["Password"] = "other"
    refresh(collector)
    assert errors(collector) == {'reason="authentication"': 1}
    assert collector.refresher.pause == 600


def test_a_password_that_changes_is_read_anew(collector, options, service):
    refresh(collector)
    service.expire()
    service.credentials["Password"] = "new"
    with open(options.password_file, "w") as file:
        file.write("new\n")
    refresh(collector)
    assert errors(collector) == {}


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
def test_bad_days_are_counted_and_the_value_disappears(collector, clock, service, document, reason):
    refresh(collector)
    service.documents[ENVIRONMENT] = document
    refresh(collector)
    assert errors(collector) == {f'reason="{reason}"': 1}
    assert shown(collector, POWER)
    clock.now += 3 * 30 + 5 + 0.1
    assert shown(collector, POWER) == {}
    assert collector.meters() == ()


@pytest.mark.parametrize("fault", ["delay", "drip"])
def test_a_slow_service_costs_its_deadline(options, service, fault):
    collector = build(Host(), dataclasses.replace(options, timeout=0.6), {})
    while not shown(collector, POWER):  # a busy machine may miss this deadline, too
        refresh(collector)
    missed = errors(collector).get('reason="deadline"', 0)
    setattr(service, fault, 5.0 if fault == "delay" else 0.1)
    refresh(collector)  # in the end the service would answer
    assert errors(collector) == {'reason="deadline"': missed + 1}
    service.delay = service.drip = 0.0
    collector.stop()


def test_a_service_that_is_gone_is_unreachable(collector, service):
    service.close()
    refresh(collector)
    assert errors(collector) == {'reason="unreachable"': 1}


def test_certificates_are_verified_unless_told_otherwise(options, service):
    suspicious = build(Host(), dataclasses.replace(options, ca_file=""), {})
    refresh(suspicious)
    assert errors(suspicious) == {'reason="tls"': 1}
    assert service.logins == 0
    trusting = build(Host(), dataclasses.replace(options, ca_file="", insecure=True), {})
    refresh(trusting)
    assert shown(trusting, POWER) == {'chassis="1"': 374.5}
    trusting.stop()


def test_chassis_are_added_only_when_named(options, service):
    other = "/redfish/v1/Chassis/2"
    service.documents["/redfish/v1/Chassis"]["Members"].append(link(other))
    service.documents[other] = service.documents[CHASSIS] | {"Id": "2"}
    by_default = build(Host(), options, {})
    refresh(by_default)
    assert by_default.meters()[0].read().watts == 374.5
    by_default.stop()
    named = build(Host(), dataclasses.replace(options, chassis=("1", "2")), {})
    refresh(named)
    assert named.meters()[0].read().watts == 749
    named.stop()
    missing = build(Host(), dataclasses.replace(options, chassis=("1", "9")), {})
    refresh(missing)
    assert errors(missing) == {'reason="no_reading"': 1}
    missing.stop()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"url": ""}, "collector.redfish.url: expected https://HOST"),
        ({"url": "http://bmc"}, "collector.redfish.url: expected https://HOST"),
        ({"url": "https://u:p@bmc"}, "collector.redfish.url: expected https://HOST"),
        ({"user": ""}, "collector.redfish.user: expected"),
        ({"password_file": ""}, "collector.redfish.password-file: expected"),
        ({"ca_file": "/nonexistent"}, "collector.redfish.ca-file: /nonexistent: No such file"),
    ],
)
def test_wrong_settings_are_told_in_one_line(options, change, complaint):
    with pytest.raises(SettingsError, match=complaint) as caught:
        build(Host(), dataclasses.replace(options, **change), {})
    assert "\n" not in str(caught.value)


def test_every_failure_of_a_request_has_its_reason():
    assert set(http_client.REASONS) <= set(REASONS)


def test_the_nodes_name_may_stand_in_the_url(options):
    short = os.uname().nodename.partition(".")[0]
    with pytest.raises(SettingsError, match=f"got 'http://{short}-bmc'"):
        build(Host(), dataclasses.replace(options, url="http://{node}-bmc"), {})

"""What the management controller and the providers of emission factors answer."""

import dataclasses
import os
import socket

import pytest

from batchjob_cli.doctor.command import examine, run
from batchjob_cli.doctor.finding import ExaminedNode
from collectors.emissions.site_factors import EmissionsOptions
from collectors.power.ipmi.collector import IpmiOptions
from collectors.power.ipmi.in_band import IpmiDevice
from collectors.power.redfish.collector import RedfishOptions
from tests.simulated.bmc import SimulatedBmc
from tests.simulated.ipmi_driver import SimulatedDriver
from tests.simulated.provider import Provider
from tests.simulated.redfish_service import RedfishService, link, one_node

ENVIRONMENT = "/redfish/v1/Chassis/1/EnvironmentMetrics"


def finding(name, host, **options):
    return examine(ExaminedNode(host, options=options))["energy"].get(name)


@pytest.fixture
def bmc(monkeypatch):
    bmc = SimulatedBmc()

    def open_device(_dev):
        driver = SimulatedDriver(bmc)
        return IpmiDevice(driver.descriptor, driver.ioctl)

    monkeypatch.setattr("collectors.power.ipmi.collector.open_device", open_device)
    return bmc


def test_bmc_power_reading(machine, bmc):
    seen = finding("ipmi", machine({"dev/ipmi0": ""}), ipmi=IpmiOptions())
    assert seen.result == "ok"
    assert seen.seen.startswith("345 W by DCMI in ")
    assert seen.seen.endswith(" ms")


def test_bmc_without_power_reading(machine, bmc):
    bmc.power_code = 0xD4
    seen = finding("ipmi", machine({"dev/ipmi0": ""}), ipmi=IpmiOptions())
    assert seen.result == "warning"
    assert "privilege level too low" in seen.seen
    assert "collector.ipmi.privilege" in seen.advice


def test_bmc_is_not_asked_when_collector_is_disabled(machine, bmc):
    assert finding("ipmi", machine({"dev/ipmi0": ""})) == ("ok", "readable", "")
    assert bmc.asked == []


def test_machine_without_bmc(machine):
    seen = finding("ipmi", machine(), ipmi=IpmiOptions())
    assert seen[:2] == ("missing", "not present")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_ipmi_device(machine, tmp_path):
    host = machine({"dev/ipmi0": ""})
    (tmp_path / "dev/ipmi0").chmod(0o200)
    seen = finding("ipmi", host, ipmi=IpmiOptions())
    assert "--w-------" in seen.seen
    assert "udev" in seen.advice


@pytest.fixture
def redfish(tmp_path):
    service = RedfishService(
        one_node(EnvironmentMetrics=link(ENVIRONMENT))
        | {ENVIRONMENT: {"PowerWatts": {"Reading": 374}}}
    )
    (tmp_path / "password").write_text("geheim")
    (tmp_path / "password").chmod(0o600)
    service.authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    service.options = RedfishOptions(
        service.url, "power", str(tmp_path / "password"), str(tmp_path / "ca.pem")
    )
    yield service
    service.close()


def test_redfish_power_reading(machine, redfish):
    seen = finding("redfish", machine(), redfish=redfish.options)
    assert seen.result == "ok"
    assert seen.seen.startswith("374 W (chassis 1) in ")
    assert redfish.sessions == {}


@pytest.mark.parametrize(
    ("change", "expected_text", "expected_advice"),
    [
        ({"ca_file": ""}, "certificate not trusted", "collector.redfish.ca-file"),
        ({"user": "root"}, "login refused", "collector.redfish.user"),
        ({"url": ""}, "expected https://HOST", ""),
    ],
)
def test_redfish_failures(machine, redfish, change, expected_text, expected_advice):
    options = dataclasses.replace(redfish.options, **change)
    result, seen, advice = finding("redfish", machine(), redfish=options)
    assert result == "warning"
    assert expected_text in seen
    assert expected_advice in advice


def test_unconfigured_sources_are_not_asked(machine, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert finding("redfish", machine()) is None
    assert finding("emission factors", machine()) is None


def test_emission_factors(machine):
    seen = finding("emission factors", machine(), emissions=EmissionsOptions(provider=("owid:FR",)))
    assert seen.result == "ok"
    assert seen.seen.startswith("owid FR: 44.179 g/kWh")
    assert "(lifecycle, " in seen.seen


def test_failing_and_missing_emission_providers(machine, monkeypatch):
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    provider = Provider()
    provider.status = 500
    options = EmissionsOptions(provider=("rte:FR",), url=(f"rte={provider.url}",))
    result, seen, advice = finding("emission factors", machine(), emissions=options)
    provider.close()
    assert (result, seen) == ("warning", "no current factor; no factor from rte (status)")
    assert "server-url" in advice
    wrong = finding("emission factors", machine(), emissions=EmissionsOptions())
    assert "expected PROVIDER:ZONE" in wrong.seen


def test_command_accepts_collector_flags(machine, capsys):
    host = machine({"proc/self/status": ""})
    run(
        [f"--path.procfs={host.procfs}", f"--path.sysfs={host.sysfs}",
         f"--path.cgroupfs={host.cgroupfs}", f"--path.dev={host.dev}", "--collector.emissions",
         "--collector.emissions.provider=codecarbon:NO", "--web.listen-address=127.0.0.1:0"]
    )  # fmt: skip
    assert "codecarbon NO: 30.08" in " ".join(capsys.readouterr().out.split())

"""The IPMI collector on simulated BMCs."""

import dataclasses
import logging
import threading

import pytest

from batchjob.runtime.settings import SettingsError, build_section
from collectors.host import Host
from collectors.power.ipmi import power
from collectors.power.ipmi.collector import (
    AGE,
    COLLECTOR,
    ERRORS,
    METRICS,
    POWER,
    SENSOR,
    IpmiCollector,
    IpmiOptions,
)
from collectors.power.ipmi.message import REASONS, payload
from collectors.power.ipmi.power import BmcPower
from collectors.power.meter import BmcError, energy_between
from tests.helpers.clock import Clock
from tests.helpers.waiting import scaled
from tests.simulated.bmc import InProcess, SimulatedBmc, full_record


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def no_retry_delay(monkeypatch):
    monkeypatch.setattr(power, "RETRY_SECONDS", 0)


class FailingTransport(InProcess):
    """A transport that fails once for each element of `failures`."""

    failures = ()

    def query(self, request, timeout):
        if self.failures:
            self.failures = self.failures[1:]
            raise BmcError("timeout", "no answer")
        return super().query(request, timeout)


class IpmiOnSimulatedBmc:
    """The collector on a simulated BMC; `refresh()` reads once."""

    def __init__(self, clock, bmc, **options):
        self.bmc = bmc
        self.connections = []
        ipmi_options = dataclasses.replace(IpmiOptions(), **options)
        power = BmcPower(
            self.connect, ipmi_options.timeout, ipmi_options.source, ipmi_options.sensor
        )
        self.collector = IpmiCollector(Host(monotonic=clock), ipmi_options, power.read, power.close)

    def connect(self):
        self.connections.append(FailingTransport(self.bmc, payload))
        return self.connections[-1]

    def refresh(self):
        self.collector.refresher.refresh()

    def samples(self, metric):
        return {
            labels: value
            for family in self.collector.collect()
            if family.metric is metric
            for labels, value in family.samples
        }


def test_dcmi_power_has_statistics_and_age(clock):
    ipmi = IpmiOnSimulatedBmc(clock, SimulatedBmc())
    ipmi.refresh()
    clock.now += 4
    assert ipmi.samples(POWER) == {
        'statistic="current"': 345,
        'statistic="min"': 300,
        'statistic="max"': 400,
        'statistic="average"': 350,
    }
    assert ipmi.samples(AGE) == {"": 4.0}


def test_deactivated_dcmi_with_valid_watts_is_exported(clock):
    bmc = SimulatedBmc()
    bmc.active, bmc.period_ms = False, 0
    ipmi = IpmiOnSimulatedBmc(clock, bmc)
    ipmi.refresh()
    assert ipmi.samples(POWER) == {'statistic="current"': 345}


def test_sensors_are_read_if_dcmi_is_unsupported(clock):
    records = [full_record("PS1 Input Power", 2, m=4), full_record("PS2 Input Power", 3, m=4)]
    ipmi = IpmiOnSimulatedBmc(
        clock, SimulatedBmc(dcmi=False, records=records, readings={2: 50, 3: 36})
    )
    ipmi.refresh()
    assert ipmi.samples(POWER) == {'statistic="current"': 344}
    assert ipmi.samples(SENSOR) == {
        'sensor="PS1 Input Power"': 200,
        'sensor="PS2 Input Power"': 144,
    }
    requests_before = len(ipmi.bmc.asked)
    ipmi.refresh()
    assert len(ipmi.bmc.asked) == requests_before + 2  # the repository is read once


def test_sensors_of_the_same_name_are_numbered(clock):
    records = [full_record("Pwr", 2), full_record("Pwr", 3)]
    bmc = SimulatedBmc(dcmi=False, records=records, readings={2: 50, 3: 36})
    ipmi = IpmiOnSimulatedBmc(clock, bmc, sensor=("Pwr",))
    ipmi.refresh()
    assert ipmi.samples(SENSOR) == {'sensor="Pwr"': 50, 'sensor="Pwr #2"': 36}


def test_bmc_without_power_readings_is_retried_after_an_hour(clock, caplog):
    ipmi = IpmiOnSimulatedBmc(
        clock, SimulatedBmc(dcmi=False, records=[full_record("Fan", 1, unit=18)])
    )
    ipmi.refresh()
    assert ipmi.samples(POWER) == {}
    assert ipmi.samples(ERRORS)['reason="unsupported"'] == 1
    assert ipmi.collector.refresher.pause == 3600


def test_stale_power_is_not_exported(clock):
    ipmi = IpmiOnSimulatedBmc(clock, SimulatedBmc(), interval=10.0, timeout=5.0)
    ipmi.refresh()
    meter = ipmi.collector.meters()[0]
    assert meter.read().watts == 345
    ipmi.connections[0].failures = (1,) * 9
    ipmi.refresh()
    clock.now += 35
    assert ipmi.samples(POWER)
    clock.now += 0.1
    assert ipmi.samples(POWER) == {}
    assert ipmi.samples(AGE) == {}
    assert meter.read() is None
    assert ipmi.collector.meters() == ()


def test_failures_are_logged_once_and_counted(clock, caplog):
    ipmi = IpmiOnSimulatedBmc(clock, SimulatedBmc())
    ipmi.bmc.power_code = 0xD4
    for _ in range(3):
        ipmi.refresh()
    assert ipmi.samples(ERRORS)['reason="privilege"'] == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "privilege level too low" in caplog.text


def test_error_counters_of_all_reasons_start_at_zero(clock):
    counts = IpmiOnSimulatedBmc(clock, SimulatedBmc()).samples(ERRORS)
    assert counts == {f'reason="{reason}"': 0.0 for reason in REASONS}


def test_timeout_causes_a_new_connection(clock):
    ipmi = IpmiOnSimulatedBmc(clock, SimulatedBmc())
    ipmi.refresh()
    ipmi.connections[0].failures = (1,)
    ipmi.refresh()
    ipmi.refresh()
    assert len(ipmi.connections) == 2
    assert ipmi.connections[0].closed
    assert ipmi.samples(POWER)


def test_pause_doubles_while_a_bmc_fails(clock):
    ipmi = IpmiOnSimulatedBmc(clock, SimulatedBmc(), interval=10.0)
    ipmi.bmc.power_code = 0xFF
    pauses = []
    for _ in range(8):
        ipmi.refresh()
        pauses.append(ipmi.collector.refresher.pause)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]
    ipmi.bmc.power_code = 0
    ipmi.refresh()
    assert ipmi.collector.refresher.pause == 10


def test_source_is_chosen_again_after_three_failures(clock):
    bmc = SimulatedBmc(records=[full_record("Power Meter", 2)], readings={2: 99})
    ipmi = IpmiOnSimulatedBmc(clock, bmc)
    ipmi.refresh()
    bmc.dcmi = False  # new firmware
    for _ in range(4):
        ipmi.refresh()
    assert ipmi.samples(POWER) == {'statistic="current"': 99}


def test_hanging_bmc_does_not_delay_a_scrape(clock):
    released = threading.Event()

    def read_power():
        released.wait(scaled(30))
        raise BmcError("timeout", "no answer")

    collector = IpmiCollector(Host(), IpmiOptions(), read_power, released.set)
    collector.start()
    families = collector.collect()
    assert [family.metric for family in families] == [ERRORS]
    released.set()
    collector.stop()


def test_missing_driver_is_logged_as_info(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="batchjob.runtime.background")
    collector = COLLECTOR.build(Host(dev=str(tmp_path)), IpmiOptions(), {})
    collector.refresher.refresh()
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "no IPMI driver, or no BMC" in caplog.text
    assert collector.meters() == ()


LAN = {"access": "lan", "host": "b", "user": "u", "password-file": "/secret"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"access": "lan", "host": "b", "user": "u"}, "collector.ipmi.password-file: expected"),
        ({"access": "lan"}, "collector.ipmi.host: expected"),
        (LAN | {"port": 65536}, "collector.ipmi.port: expected 1 to 65535, got 65536"),
        (LAN | {"port": 0}, "collector.ipmi.port: expected 1 to 65535, got 0"),
        ({"access": "command"}, "collector.ipmi.command: expected"),
        ({"access": "telepathy"}, "expected one of device, lan, command"),
        ({"access": "command", "command": "ipmitool -P x dcmi"}, "exposes the password"),
        ({"access": "command", "command": "ipmitool 'dcmi"}, "expected a command line"),
        ({"privilege": "root"}, "expected one of callback, user"),
    ],
)
def test_invalid_settings_are_rejected(settings, complaint):
    named_settings = {f"collector.ipmi.{key}": value for key, value in settings.items()}
    with pytest.raises(SettingsError, match=complaint) as caught:
        COLLECTOR.build(Host(), build_section(IpmiOptions, "collector.ipmi", named_settings), {})
    assert "\n" not in str(caught.value)


def test_exported_families_are_declared(clock):
    ipmi = IpmiOnSimulatedBmc(clock, SimulatedBmc())
    ipmi.refresh()
    assert {family.metric for family in ipmi.collector.collect()} <= set(METRICS)


def test_implausible_power_is_ignored_and_interrupts_the_energy(clock):
    bmc = SimulatedBmc()
    ipmi = IpmiOnSimulatedBmc(clock, bmc)
    for _ in range(6):
        clock.now += 10
        ipmi.refresh()
    (meter,) = ipmi.collector.meters()
    reading_before = meter.read()
    clock.now += 10
    bmc.watts = 49152
    ipmi.refresh()
    assert ipmi.samples(POWER)['statistic="current"'] == 345
    assert ipmi.samples(ERRORS)['reason="implausible"'] == 1
    clock.now += 10
    bmc.watts = 345
    ipmi.refresh()
    reading_after = meter.read()
    assert energy_between(reading_before, reading_after, max_gap_seconds=60) is None

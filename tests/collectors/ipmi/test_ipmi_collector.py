import dataclasses
import logging
import threading

import pytest

from batchjob.runtime.settings import SettingsError, build_section
from collectors.host import Host
from collectors.power.ipmi import dcmi
from collectors.power.ipmi.collector import (
    ACTIVE,
    AGE,
    ERRORS,
    METRICS,
    PERIOD,
    POWER,
    SENSOR,
    IpmiCollector,
    IpmiOptions,
    build,
)
from collectors.power.ipmi.message import REASONS, IpmiError, payload
from collectors.power.ipmi.power import BmcPower
from collectors.power.meter import energy_between
from tests.simulated.bmc import InProcess, SimulatedBmc, full_record


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(dcmi, "RETRY_SECONDS", 0)


class Flaky(InProcess):
    """A transport that fails as often as it is told."""

    failures = ()

    def query(self, request, timeout):
        if self.failures:
            self.failures = self.failures[1:]
            raise IpmiError("timeout", "no answer")
        return super().query(request, timeout)


class Rig:
    """A collector on a simulated BMC, refreshed by hand."""

    def __init__(self, clock, bmc, **options):
        self.bmc = bmc
        self.connections = []
        chosen = dataclasses.replace(IpmiOptions(), **options)
        source = BmcPower(self.connect, chosen.timeout, chosen.source, chosen.sensor)
        self.collector = IpmiCollector(Host(monotonic=clock), source, chosen)

    def connect(self):
        self.connections.append(Flaky(self.bmc, payload))
        return self.connections[-1]

    def refresh(self):
        self.collector.refresher.refresh()

    def shown(self, metric):
        return {
            labels: value
            for family in self.collector.collect()
            if family.metric is metric
            for labels, value in family.samples
        }


def test_dcmi_is_shown_with_statistics_period_and_age(clock):
    rig = Rig(clock, SimulatedBmc())
    rig.refresh()
    clock.now += 4
    assert rig.shown(POWER) == {
        'statistic="current"': 345,
        'statistic="min"': 300,
        'statistic="max"': 400,
        'statistic="average"': 350,
    }
    assert rig.shown(PERIOD) == {"": 1.0}
    assert rig.shown(ACTIVE) == {"": 1.0}
    assert rig.shown(AGE) == {"": 4.0}


def test_deactivated_with_valid_watts_is_shown_with_its_state(clock):
    bmc = SimulatedBmc()
    bmc.active, bmc.period_ms = False, 0
    rig = Rig(clock, bmc)
    rig.refresh()
    assert rig.shown(POWER) == {'statistic="current"': 345}
    assert rig.shown(ACTIVE) == {"": 0.0}


def test_sensors_serve_where_dcmi_is_unsupported(clock):
    records = [full_record("PS1 Input Power", 2, m=4), full_record("PS2 Input Power", 3, m=4)]
    rig = Rig(clock, SimulatedBmc(dcmi=False, records=records, readings={2: 50, 3: 36}))
    rig.refresh()
    assert rig.shown(POWER) == {'statistic="current"': 344}
    assert rig.shown(SENSOR) == {'sensor="PS1 Input Power"': 200, 'sensor="PS2 Input Power"': 144}
    asked = len(rig.bmc.asked)
    rig.refresh()
    assert len(rig.bmc.asked) == asked + 2  # the repository is read once


def test_sensors_of_one_name_are_told_apart(clock):
    records = [full_record("Pwr", 2), full_record("Pwr", 3)]
    bmc = SimulatedBmc(dcmi=False, records=records, readings={2: 50, 3: 36})
    rig = Rig(clock, bmc, sensor=("Pwr",))
    rig.refresh()
    assert rig.shown(SENSOR) == {'sensor="Pwr"': 50, 'sensor="Pwr #2"': 36}


def test_a_bmc_without_any_power_is_asked_again_in_an_hour(clock, caplog):
    rig = Rig(clock, SimulatedBmc(dcmi=False, records=[full_record("Fan", 1, unit=18)]))
    rig.refresh()
    assert rig.shown(POWER) == {}
    assert rig.shown(ERRORS)['reason="unsupported"'] == 1
    assert rig.collector.refresher.pause == 3600


def test_a_value_disappears_when_it_is_stale(clock):
    rig = Rig(clock, SimulatedBmc(), interval=10.0, timeout=5.0)
    rig.refresh()
    meter = rig.collector.meters()[0]
    assert meter.read().watts == 345
    rig.connections[0].failures = (1,) * 9
    rig.refresh()
    clock.now += 35
    assert rig.shown(POWER)
    clock.now += 0.1
    assert rig.shown(POWER) == {}
    assert rig.shown(AGE) == {}
    assert meter.read() is None
    assert rig.collector.meters() == ()


def test_failures_are_logged_once_and_counted(clock, caplog):
    rig = Rig(clock, SimulatedBmc())
    rig.bmc.power_code = 0xD4
    for _ in range(3):
        rig.refresh()
    assert rig.shown(ERRORS)['reason="privilege"'] == 3
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "privilege level too low" in caplog.text


def test_every_reason_is_there_from_the_beginning(clock):
    counts = Rig(clock, SimulatedBmc()).shown(ERRORS)
    assert counts == {f'reason="{reason}"': 0.0 for reason in REASONS}


def test_after_a_timeout_a_new_connection_is_made(clock):
    rig = Rig(clock, SimulatedBmc())
    rig.refresh()
    rig.connections[0].failures = (1,)
    rig.refresh()
    rig.refresh()
    assert len(rig.connections) == 2
    assert rig.connections[0].closed
    assert rig.shown(POWER)


def test_pauses_double_while_a_bmc_fails_and_end_with_it(clock):
    rig = Rig(clock, SimulatedBmc(), interval=10.0)
    rig.bmc.power_code = 0xFF
    pauses = []
    for _ in range(8):
        rig.refresh()
        pauses.append(rig.collector.refresher.pause)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]
    rig.bmc.power_code = 0
    rig.refresh()
    assert rig.collector.refresher.pause == 10


def test_dcmi_and_sensors_are_chosen_anew_after_three_failures(clock):
    bmc = SimulatedBmc(records=[full_record("Power Meter", 2)], readings={2: 99})
    rig = Rig(clock, bmc)
    rig.refresh()
    bmc.dcmi = False  # new firmware
    for _ in range(4):
        rig.refresh()
    assert rig.shown(POWER) == {'statistic="current"': 99}


def test_a_bmc_that_hangs_delays_no_scrape(clock):
    hanging = threading.Event()

    class Hanging:
        def read(self):
            hanging.wait(30)
            raise IpmiError("timeout", "no answer")

        def close(self):
            hanging.set()

    collector = IpmiCollector(Host(), Hanging(), IpmiOptions())
    collector.start()
    families = collector.collect()
    assert [family.metric for family in families] == [ERRORS]
    hanging.set()
    collector.stop()


def test_a_node_without_driver_says_so_without_a_warning(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    collector = build(Host(dev=str(tmp_path)), IpmiOptions(), {})
    collector.refresher.refresh()
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "no IPMI driver, or no BMC" in caplog.text
    assert collector.meters() == ()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"access": "lan", "host": "b", "user": "u"}, "collector.ipmi.password-file: expected"),
        ({"access": "lan"}, "collector.ipmi.host: expected"),
        ({"access": "command"}, "collector.ipmi.command: expected"),
        ({"access": "telepathy"}, "expected one of device, lan, command"),
        ({"access": "command", "command": "ipmitool -P x dcmi"}, "exposes the password"),
        ({"access": "command", "command": "ipmitool 'dcmi"}, "expected a command line"),
        ({"privilege": "root"}, "expected one of callback, user"),
    ],
)
def test_wrong_settings_are_told_in_one_line(given, complaint):
    named = {f"collector.ipmi.{key}": value for key, value in given.items()}
    with pytest.raises(SettingsError, match=complaint) as caught:
        build(Host(), build_section(IpmiOptions, "collector.ipmi", named), {})
    assert "\n" not in str(caught.value)


def test_every_family_is_in_the_table(clock):
    rig = Rig(clock, SimulatedBmc())
    rig.refresh()
    assert {family.metric for family in rig.collector.collect()} <= set(METRICS)


def test_a_glitch_is_neither_shown_nor_metered_nor_bridged(clock):
    bmc = SimulatedBmc()
    rig = Rig(clock, bmc)
    for _ in range(6):
        clock.now += 10
        rig.refresh()
    (meter,) = rig.collector.meters()
    before = meter.read()
    clock.now += 10
    bmc.watts = 49152
    rig.refresh()
    assert rig.shown(POWER)['statistic="current"'] == 345
    assert rig.shown(ERRORS)['reason="implausible"'] == 1
    clock.now += 10
    bmc.watts = 345
    rig.refresh()
    after = meter.read()
    assert energy_between(before, after, max_gap_seconds=60) is None

"""Power and energy from sensors in /sys/class/hwmon."""

import dataclasses
import logging

import pytest

from collectors.host import Host
from collectors.power.hwmon import ENERGY, ERRORS, POWER, Hwmon, HwmonOptions
from tests.simulated.node import Time


class HwmonTree:
    """/sys/class/hwmon with chips on buses."""

    def __init__(self, sysfs):
        self.sysfs = sysfs
        self.root = sysfs / "class/hwmon"
        self.root.mkdir(parents=True)

    def chip(self, number, driver, address=None, at_device=False, **files):
        hwmon_directory = self.root / f"hwmon{number}"
        hwmon_directory.mkdir()
        directory = hwmon_directory
        if address:
            device = self.sysfs / "devices" / address
            device.mkdir(parents=True)
            (hwmon_directory / "device").symlink_to(device)
            directory = device if at_device else hwmon_directory
        (hwmon_directory / "name").write_text(f"{driver}\n")
        for name, content in files.items():
            (directory / name).write_text(f"{content}\n")
        return directory

    def power_meter(self, number, label="", watts=500):
        label_file = {"power1_oem_info": label} if label else {}
        return self.chip(
            number,
            "power_meter",
            f"ACPI000D:{number:02}",
            at_device=True,
            power1_average=int(watts * 1e6),
            power1_average_interval=1000,
            power1_is_battery=0,
            **label_file,
        )


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def tree(tmp_path):
    return HwmonTree(tmp_path)


@pytest.fixture
def build_hwmon(tree, time):
    def build_and_refresh(**options):
        host = Host(sysfs=str(tree.sysfs), monotonic=time.monotonic)
        collector = Hwmon(host, dataclasses.replace(HwmonOptions(), **options))
        collector.refresher.refresh()
        return collector

    return build_and_refresh


def samples(collector, metric):
    return {
        labels: value
        for family in collector.collect()
        if family.metric is metric
        for labels, value in family.samples
    }


def test_sensor_labels_have_chip_bus_and_sensor_label(tree, build_hwmon):
    tree.power_meter(0)
    tree.chip(1, "amdgpu", "0000:c1:00.0", power1_average=87_000_000, power1_input=91_000_000)
    tree.chip(
        2,
        "ina226",
        "3-0040",
        power1_input=5_250_000,
        power1_label="VDD",
        power2_input=1_000_000,
        power2_label="VDD",
        energy1_input=7_000_000,
        in1_input=12_000,
    )
    tree.chip(3, "coretemp", "coretemp.0", temp1_input=45_000)
    collector = build_hwmon()
    assert samples(collector, POWER) == {
        'chip="power_meter-ACPI000D:00",sensor="power1"': 500,
        'chip="amdgpu-0000:c1:00.0",sensor="power1"': 87,
        'chip="ina226-3-0040",sensor="VDD"': 5.25,
        'chip="ina226-3-0040",sensor="power2"': 1,
    }
    assert samples(collector, ENERGY) == {'chip="ina226-3-0040",sensor="energy1"': 7}


def test_single_acpi_power_meter_measures_the_node(tree, build_hwmon):
    tree.power_meter(0, watts=480)
    tree.chip(1, "amdgpu", "0000:c1:00.0", power1_average=87_000_000)
    (meter,) = build_hwmon().meters()
    assert (meter.name, meter.scope, meter.includes_gpus, meter.period) == (
        "hwmon",
        "node",
        True,
        10,
    )
    assert meter.read().watts == 480
    assert meter.read().joules is None


def test_two_acpi_power_meters_are_added_only_if_configured(tree, build_hwmon):
    tree.power_meter(0, watts=480)
    tree.power_meter(1, watts=20)
    assert build_hwmon().meters() == ()
    (meter,) = build_hwmon(node_sensor=("power_meter-*/power1",)).meters()
    assert meter.read().watts == 500


def test_grace_power_is_read_at_module_level(tree, build_hwmon):
    number = 0
    for socket in range(2):
        for level, watts in (("Module", 900), ("Grace", 300), ("CPU", 220), ("SysIO", 30)):
            tree.power_meter(number, f"{level} Power Socket {socket}", watts + socket)
            number += 1
    collector = build_hwmon()
    (meter,) = collector.meters()
    assert meter.read().watts == 1801
    assert (meter.scope, meter.includes_gpus) == ("cpu+memory", True)
    assert (
        samples(collector, POWER)['chip="power_meter-ACPI000D:01",sensor="Grace Power Socket 0"']
        == 300
    )


def test_grace_power_without_module_sensors(tree, build_hwmon):
    tree.power_meter(0, "Grace Power Socket 0", 300)
    tree.power_meter(1, "CPU Power Socket 0", 220)
    (meter,) = build_hwmon().meters()
    assert meter.read().watts == 300
    assert meter.includes_gpus is False


def test_amd_energy_sockets_are_added_without_cores(tree, build_hwmon):
    tree.chip(
        0,
        "amd_energy",
        "amd_energy.0",
        energy1_input=50_000_000,
        energy1_label="Ecore000",
        energy2_input=900_000_000,
        energy2_label="Esocket0",
        energy3_input=800_000_000,
        energy3_label="Esocket1",
    )
    (meter,) = build_hwmon().meters()
    assert meter.read().joules == 1700
    assert meter.scope == "cpu"


def test_configured_node_sensor_is_the_meter(tree, build_hwmon):
    tree.chip(0, "ina3221", "1-0041", power1_input=3_000_000, energy1_input=12_000_000)
    assert build_hwmon().meters() == ()
    (meter,) = build_hwmon(node_sensor=("ina3221-1-0041/*",)).meters()
    assert meter.read().joules == 12


def test_batteries_are_ignored(tree, build_hwmon):
    tree.chip(0, "power_meter", "ACPI000D:00", power1_average=15_000_000, power1_is_battery=1)
    assert build_hwmon().collect() == []


def test_meter_has_no_reading_while_one_of_its_sensors_fails(tree, build_hwmon, caplog):
    tree.power_meter(0, "Module Power Socket 0", 300)
    second_sensor = tree.power_meter(1, "Module Power Socket 1", 200)
    collector = build_hwmon()
    (meter,) = collector.meters()
    assert meter.read().watts == 500
    (second_sensor / "power1_average").write_text("")
    with caplog.at_level(logging.WARNING):
        collector.refresher.refresh()
        collector.refresher.refresh()
    assert meter.read() is None
    assert len(samples(collector, POWER)) == 1
    assert samples(collector, ERRORS) == {"": 2}
    assert caplog.text.count("cannot be read") == 1


def test_zero_watts_is_no_reading(tree, build_hwmon):
    tree.power_meter(0, watts=0)
    (meter,) = build_hwmon().meters()
    assert meter.read() is None


def test_stale_values_are_not_exported(tree, build_hwmon, time):
    tree.power_meter(0)
    collector = build_hwmon()
    time.pass_(29)
    assert collector.collect() != []
    time.pass_(2)
    assert collector.collect() == []
    assert collector.meters() == ()


def test_chips_of_the_same_name_without_a_bus_are_distinguished(tree, build_hwmon):
    tree.chip(0, "virtual", power1_input=1_000_000)
    tree.chip(1, "virtual", power1_input=2_000_000)
    assert samples(build_hwmon(), POWER) == {
        'chip="virtual",sensor="power1"': 1,
        'chip="virtual-hwmon1",sensor="power1"': 2,
    }


def test_machine_without_sensors_exports_nothing(tmp_path, time, caplog):
    collector = Hwmon(Host(sysfs=str(tmp_path), monotonic=time.monotonic), HwmonOptions())
    collector.start()
    collector.stop()
    assert collector.collect() == []
    assert caplog.text == ""

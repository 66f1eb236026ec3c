"""Energy from the RAPL counters in /sys/class/powercap."""

import dataclasses
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.host import Host
from collectors.power import powercap
from collectors.power.meter import energy_between
from collectors.power.rapl import (
    ENERGY,
    ERRORS,
    GAPS,
    Rapl,
    RaplOptions,
    counter_delta,
)
from tests.helpers.clock import Clock
from tests.helpers.waiting import until
from tests.simulated.powercap import (
    AMD_RANGE_UJ,
    INTEL_DRAM_RANGE_UJ,
    INTEL_RANGE_UJ,
    PSYS_RANGE_UJ,
    Powercap,
)


@pytest.fixture
def clock():
    return Clock()


def rapl_collector(tree, clock, *, state="", **options):
    host = Host(sysfs=str(tree.sysfs), procfs=str(tree.procfs), state=state, monotonic=clock)
    return Rapl(host, dataclasses.replace(RaplOptions(), **options))


def samples(collector, metric):
    return {
        labels: value
        for family in collector.collect()
        if family.metric is metric
        for labels, value in family.samples
    }


def tree_with_two_sockets(tmp_path):
    tree = Powercap(tmp_path)
    return tree, {
        "package 0": tree.zone("intel-rapl:0", "package-0"),
        "dram 0": tree.zone("intel-rapl:0:0", "dram", INTEL_DRAM_RANGE_UJ),
        "psys": tree.zone("intel-rapl:1", "psys", PSYS_RANGE_UJ, 60293987000000),
        "package 1": tree.zone("intel-rapl:a", "package-1"),
        "core 1": tree.zone("intel-rapl:a:0", "core"),
        "dram 1": tree.zone("intel-rapl:a:1", "dram", INTEL_DRAM_RANGE_UJ),
        "mmio": tree.zone("intel-rapl-mmio:0", "package-0"),
    }


def test_zones_are_labelled_by_name_and_mmio_duplicates_are_ignored(tmp_path, clock):
    tree, zones = tree_with_two_sockets(tmp_path)
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    clock.now += 10
    for number, zone in enumerate(zones.values(), 1):
        zone.run(number)
    assert samples(collector, ENERGY) == {
        'zone="package",package="0"': pytest.approx(1),
        'zone="dram",package="0"': pytest.approx(2),
        'zone="psys",package=""': pytest.approx(3),
        'zone="package",package="1"': pytest.approx(4),
        'zone="core",package="1"': pytest.approx(5),
        'zone="dram",package="1"': pytest.approx(6),
    }


def test_meter_is_the_sum_of_packages_and_memory(tmp_path, clock):
    tree, zones = tree_with_two_sockets(tmp_path)
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    meters = {meter.name: meter for meter in collector.meters()}
    before = {name: meter.read() for name, meter in meters.items()}
    clock.now += 10
    for zone in zones.values():
        zone.run(100)
    assert meters["rapl"].scope == "cpu+memory"
    assert meters["rapl"].read().joules - before["rapl"].joules == pytest.approx(400)


def test_energy_starts_at_zero_and_counter_wraps_are_corrected(tmp_path, clock):
    tree = Powercap(tmp_path, "AuthenticAMD")
    package = tree.zone("intel-rapl:0", "package-0", AMD_RANGE_UJ, AMD_RANGE_UJ - 1_000_000)
    collector = rapl_collector(tree, clock)
    assert samples(collector, ENERGY) == {'zone="package",package="0"': 0}
    for _ in range(100):
        clock.now += 10
        package.run(4000)
        collector.read_totals()
    assert samples(collector, ENERGY) == {'zone="package",package="0"': pytest.approx(400_000)}


def test_interval_of_possible_unseen_wraps_is_skipped_and_counted(tmp_path, clock, caplog):
    tree = Powercap(tmp_path, "AuthenticAMD")
    package = tree.zone("intel-rapl:0", "package-0", AMD_RANGE_UJ)
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    (meter,) = collector.meters()
    before = meter.read()
    clock.now += 400
    package.run(160_000)
    with caplog.at_level(logging.WARNING):
        after = meter.read()
    assert after.series != before.series
    assert after.joules == before.joules
    assert samples(collector, GAPS) == {'zone="package",package="0",reason="wraps"': 1}
    assert "interval skipped: wraps" in caplog.text


@pytest.fixture
def boot(tmp_path):
    """Sets the id of the machine's boot."""

    def set_boot(text):
        path = tmp_path / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    set_boot("first")
    return set_boot


def saved_by_a_thread(collector, directory):
    """The collector's meter at the end of its process."""
    collector.start()
    until((directory / "rapl.json").exists)
    collector.stop()
    (meter,) = collector.meters()
    return meter.read()


def test_energy_while_the_exporter_was_away_is_in_the_counters(tmp_path, clock, boot):
    tree = Powercap(tmp_path)
    package = tree.zone("intel-rapl:0", "package-0")
    options = {"state": str(tmp_path)}
    collector = rapl_collector(tree, clock, **options)
    package.run(500)
    before = saved_by_a_thread(collector, tmp_path)
    clock.now += 60
    package.run(6000)
    collector = rapl_collector(tree, clock, **options)
    collector.read_totals()
    (meter,) = collector.meters()
    assert energy_between(before, meter.read(), 300) == pytest.approx(6000)


@pytest.mark.parametrize("change", ["boot", "zones", "outage", "file"])
def test_totals_of_another_boot_or_of_other_zones_are_not_continued(
    tmp_path, clock, boot, change, caplog
):
    tree = Powercap(tmp_path)
    package = tree.zone("intel-rapl:0", "package-0")
    options = {"state": str(tmp_path)}
    before = saved_by_a_thread(rapl_collector(tree, clock, **options), tmp_path)
    clock.now += 500 if change == "outage" else 60  # at 1000 W a counter wraps after 262 s
    package.run(6000)
    if change == "boot":
        boot("second")
    elif change == "zones":
        tree.zone("intel-rapl:1", "package-1")
    elif change == "file":
        (tmp_path / "rapl.json").write_text('{"version": 1, "boot_id": "first", "zones": 1}')
    collector = rapl_collector(tree, clock, **options)
    collector.read_totals()
    (meter,) = collector.meters()
    assert energy_between(before, meter.read(), 300) is None
    assert ("start from zero" in caplog.text) == (change == "file")


def test_counter_reset_is_not_a_wrap(tmp_path, clock):
    tree = Powercap(tmp_path)
    package = tree.zone("intel-rapl:0", "package-0", energy_uj=100_000_000_000)
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    clock.now += 10
    package.raw_uj = 5_000_000
    package.write()
    assert samples(collector, ENERGY) == {'zone="package",package="0"': 0}
    assert samples(collector, GAPS) == {'zone="package",package="0",reason="implausible"': 1}


def test_decrease_of_a_counter_without_range_is_a_gap(tmp_path, clock):
    tree = Powercap(tmp_path)
    package = tree.zone("intel-rapl:0", "package-0", None, 100_000_000)
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    clock.now += 10
    package.run(500)
    collector.read_totals()
    clock.now += 10
    package.raw_uj = 7
    package.write()
    assert samples(collector, ENERGY) == {'zone="package",package="0"': pytest.approx(500)}
    assert samples(collector, GAPS) == {'zone="package",package="0",reason="wraps"': 1}


@pytest.mark.parametrize(
    ("vendor", "expected_joules"),
    [
        ("GenuineIntel", {"package": 100, "core": 40}),
        ("AuthenticAMD", {"package": 50}),
        ("HygonGenuine", {"package": 50}),
    ],
)
def test_intel_dies_are_added_but_not_amd_dies_that_repeat_the_socket(
    tmp_path, clock, vendor, expected_joules
):
    tree = Powercap(tmp_path, vendor)
    dies = [tree.zone(f"intel-rapl:{die}", f"package-0-die-{die}") for die in range(2)]
    cores = [tree.zone(f"intel-rapl:{die}:0", "core") for die in range(2)]
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    clock.now += 10
    for die, core in zip(dies, cores, strict=True):
        die.run(50)
        core.run(20)
    assert samples(collector, ENERGY) == {
        f'zone="{zone}",package="0"': pytest.approx(joules)
        for zone, joules in expected_joules.items()
    }


def test_amd_dies_with_separate_counters_are_added(tmp_path, clock):
    tree = Powercap(tmp_path, "AuthenticAMD")
    dies = [
        tree.zone(f"intel-rapl:{die}", f"package-0-die-{die}", energy_uj=(die + 1) * 10_000_000)
        for die in range(2)
    ]
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    clock.now += 10
    for die in dies:
        die.run(50)
    assert samples(collector, ENERGY) == {'zone="package",package="0"': pytest.approx(100)}


def test_mmio_zone_is_used_if_it_is_the_only_one(tmp_path, clock):
    tree = Powercap(tmp_path)
    zone = tree.zone("intel-rapl-mmio:0", "package-0")
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    clock.now += 10
    zone.run(5)
    assert samples(collector, ENERGY) == {'zone="package",package="0"': pytest.approx(5)}


def test_permission_errors_are_counted_and_logged_once(tmp_path, clock, caplog, monkeypatch):
    tree, _ = tree_with_two_sockets(tmp_path)

    def raise_permission_error(zone):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(powercap, "energy_joules", raise_permission_error)
    collector = rapl_collector(tree, clock)
    with caplog.at_level(logging.WARNING):
        collector.read_totals()
        errors = samples(collector, ERRORS)
    others = ("masked", "gone", "io", "invalid")
    assert errors == {
        'reason="permission"': 12,
        **{f'reason="{name}"': 0 for name in others},
    }, "`increase()` does not count what a series begins with"
    assert samples(collector, ENERGY) == {}
    assert collector.meters() == []
    assert caplog.text.count("Permission denied") == 1


def test_meter_has_no_reading_while_one_of_its_zones_fails(tmp_path, clock):
    tree, zones = tree_with_two_sockets(tmp_path)
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    meter = next(meter for meter in collector.meters() if meter.name == "rapl")
    before = meter.read()
    energy_file = zones["dram 1"].path / "energy_uj"
    energy_file.write_text("")
    clock.now += 10
    assert meter.read() is None
    assert 'zone="dram",package="1"' not in samples(collector, ENERGY)
    assert samples(collector, ERRORS)['reason="invalid"'] > 0
    clock.now += 10
    for zone in zones.values():
        zone.run(10)
    after = meter.read()
    assert after.joules - before.joules == pytest.approx(40)
    assert after.series == before.series


def test_counter_that_stays_zero_is_ignored(tmp_path, clock):
    tree = Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0", energy_uj=0)
    collector = rapl_collector(tree, clock)
    assert [family.metric for family in collector.collect()] == [ERRORS]
    clock.now += 60
    assert [family.metric for family in collector.collect()] == [ERRORS]
    assert collector.meters() == []


def test_masked_zones_are_logged_and_counted(tmp_path, clock, caplog):
    tree = Powercap(tmp_path)
    (tree.root / "intel-rapl:0").symlink_to(tmp_path / "nowhere")
    collector = rapl_collector(tree, clock)
    assert samples(collector, ERRORS)['reason="masked"'] == 1
    assert "masked" in caplog.text


def test_machine_without_powercap_exports_nothing(tmp_path, clock, caplog):
    host = Host(sysfs=str(tmp_path), procfs=str(tmp_path), monotonic=clock)
    collector = Rapl(host, RaplOptions())
    assert collector.collect() == []
    assert collector.meters() == []
    assert caplog.text == ""


def test_fast_wrapping_counters_are_read_more_often(tmp_path, clock):
    tree = Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0", INTEL_RANGE_UJ)
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    assert collector.interval() == 10
    tree.zone("intel-rapl:1", "package-1", 8_000_000_000)
    clock.now += 301
    collector.read_totals()
    assert collector.interval() == 4


def test_socket_added_later_is_found(tmp_path, clock):
    tree = Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0")
    collector = rapl_collector(tree, clock)
    collector.read_totals()
    (meter,) = collector.meters()
    before = meter.read()
    tree.zone("intel-rapl:1", "package-1")
    for _ in range(10):
        clock.now += 31
        collector.read_totals()
    assert set(samples(collector, ENERGY)) == {
        'zone="package",package="0"',
        'zone="package",package="1"',
    }
    assert meter.read().series == before.series


@given(
    start_joules=st.floats(0, 65532),
    watts=st.floats(0, 999),
    seconds=st.floats(0.01, 65.4),
)
def test_energy_below_the_counter_range_is_exact(start_joules, watts, seconds):
    range_joules = AMD_RANGE_UJ / 1e6
    joules = watts * seconds
    counted, gap = counter_delta(
        seconds,
        start_joules,
        (start_joules + joules) % range_joules,
        range_joules,
        max_watts=1000,
    )
    assert gap == ""
    assert counted == pytest.approx(joules, abs=1e-6)


@given(seconds=st.floats(65.6, 1e6), later_joules=st.floats(0, 65532))
def test_interval_long_enough_for_a_whole_wrap_has_no_energy(seconds, later_joules):
    assert counter_delta(seconds, 1, later_joules, AMD_RANGE_UJ / 1e6, 1000) == (0.0, "wraps")

"""Energy and power from the pm_counters of HPE Cray nodes."""

import contextlib
import logging
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.host import Host
from collectors.power import cray
from collectors.power.cray import ENERGY, POWER, STALE, Cray
from tests.simulated.cray import Controller
from tests.simulated.node import Time


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def controller(tmp_path):
    return Controller(tmp_path)


@pytest.fixture
def collector(tmp_path, time, controller):
    return Cray(Host(sysfs=str(tmp_path), monotonic=time.monotonic))


def samples(collector, metric):
    return {
        re.sub(r'domain="(.*)"', r"\1", labels): value
        for family in collector.collect()
        if family.metric is metric
        for labels, value in family.samples
    }


def test_energy_and_power_by_domain(collector):
    assert samples(collector, ENERGY) == {
        "node": 2_000_000,
        "cpu": 900_000,
        "memory": 100_000,
        "accel0": 800_000,
    }
    assert samples(collector, POWER) == {"node": 500, "cpu": 500, "memory": 500, "accel0": 500}


def test_meter_measures_the_node_with_its_accelerators(collector, controller, time):
    (meter,) = collector.meters()
    assert (meter.name, meter.scope, meter.includes_gpus) == ("cray", "node", True)
    before = meter.read()
    time.pass_(10)
    controller.update(watts=600, seconds=10)
    after = meter.read()
    assert after.joules - before.joules == 6000
    assert after.series == before.series
    time.pass_(10)
    controller.startup += 1
    controller.joules[""] = 0
    controller.update()
    assert meter.read().series != before.series


def test_stale_counters_are_not_exported(collector, controller, time, caplog):
    (meter,) = collector.meters()
    assert meter.read() is not None
    time.pass_(0.5)
    assert meter.read() is not None
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            time.pass_(10)
            assert meter.read() is None
    assert samples(collector, ENERGY) == {}
    assert samples(collector, STALE) == {"": 4 + 1}
    assert caplog.text.count("is not updated") == 1
    controller.update()
    assert meter.read() is not None


def test_read_during_an_update_is_retried(controller, monkeypatch):
    freshness_values = iter([5, 5, 6, 6, 6, 6])
    read_integer = cray.read_integer
    monkeypatch.setattr(
        cray,
        "read_integer",
        lambda directory, entry: (
            next(freshness_values) if entry == "freshness" else read_integer(directory, entry)
        ),
    )
    assert cray.read(str(controller.directory)).freshness == 5
    assert cray.read(str(controller.directory)).freshness == 6
    ever_new_values = iter(range(100))
    monkeypatch.setattr(
        cray,
        "read_integer",
        lambda directory, entry: (
            next(ever_new_values) if entry == "freshness" else read_integer(directory, entry)
        ),
    )
    assert cray.read(str(controller.directory)) is None


@given(st.text(max_size=40))
def test_arbitrary_text_is_parsed_or_rejected(text):
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "power").write_text(text, encoding="utf-8", errors="replace")
        with contextlib.suppress(ValueError):
            assert cray.read_value(directory, "power") >= 0


@pytest.mark.parametrize("text", ["", "many W", "17", "17 kW 5 us"])
def test_unknown_format_is_logged_once_and_exports_nothing(collector, controller, caplog, text):
    controller.write("cpu_power", text)
    assert collector.collect() == []
    assert collector.collect() == []
    assert caplog.text.count("cpu_power: expected a number of W or J") == 1


def test_machine_without_pm_counters_exports_nothing(tmp_path, caplog):
    collector = Cray(Host(sysfs=str(tmp_path / "elsewhere")))
    assert collector.collect() == []
    assert collector.meters() == ()
    assert caplog.text == ""

"""Choice of the meter, and the metrics of the energy collector."""

import logging
import threading

import pytest

from collectors.emissions.providers.provider import EmissionFactor
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading
from tests.collectors.energy.fake_collectors import (
    FakeEmissions,
    FakeGpus,
    FakeMeters,
    constant_power,
    energy_collector,
    meter,
    run_for,
    samples,
)
from tests.helpers.waiting import scaled
from tests.simulated.node import Job, Jobs, name


def test_preferred_meter_is_used_and_named(host, time):
    collectors = {
        "cray": FakeMeters(),
        "ipmi": FakeMeters(meter("ipmi", constant_power(time, 500))),
        "rapl": FakeMeters(meter("rapl", constant_power(time, 300), "cpu", False)),
    }
    collector = energy_collector(host, collectors)
    run_for(collector, time, 60)
    assert samples(collector, "node_power_source_info") == {
        'source="ipmi",scope="node",gpus="included"': 1
    }
    energy_of_node = samples(collector, "node_energy_joules_total")
    assert energy_of_node['component="host",consumer="unallocated"'] == pytest.approx(500 * 60)


@pytest.mark.parametrize(("seconds", "chosen"), [(20, "redfish"), (60, "rapl")])
def test_preferred_meter_is_awaited_for_a_limited_time(host, time, seconds, chosen):
    preferred = FakeMeters()
    collector = energy_collector(
        host, {"redfish": preferred, "rapl": FakeMeters(meter("rapl", constant_power(time, 300)))}
    )
    run_for(collector, time, seconds)
    preferred.available_meters.append(meter("redfish", constant_power(time, 500)))
    run_for(collector, time, seconds)
    assert list(samples(collector, "node_power_source_info")) == [
        f'source="{chosen}",scope="node",gpus="included"'
    ]


def test_configured_meter_has_no_fallback(host, time, caplog):
    collectors = {
        "rapl": FakeMeters(
            meter("rapl", constant_power(time, 300)), meter("hwmon", constant_power(time, 400))
        )
    }
    collector = energy_collector(host, collectors, source="rapl", gpus_included="no")
    run_for(collector, time, 20)
    assert list(samples(collector, "node_power_source_info")) == [
        'source="rapl",scope="node",gpus="apart"'
    ]
    collector = energy_collector(host, collectors, source="cray")
    run_for(collector, time, 60)
    assert samples(collector, "node_power_source_info") == {}
    assert caplog.text.count("cray returns no reading") == 1


def test_node_without_meter_exports_no_energy(host, time):
    collector = energy_collector(host, {"rapl": FakeMeters()})
    run_for(collector, time, 60)
    assert [family.metric.name for family in collector.collect()] == [
        "batchjob_energy_tick_errors_total"
    ]


def test_gpu_energy_is_counted_on_a_node_without_meter(host, time):
    gpus = FakeGpus()
    job = Job(1, 8, 0, time.clock(), float("inf"))
    collector = energy_collector(host, {"jobs": Jobs(time, [job]), "gpu": gpus})
    for _ in range(10):
        shares = (GpuEnergyShare(job.name, 1.0),)
        gpus.readings = (GpuEnergyReading("GPU-1", time.now, 300 * time.now, 0, shares),)
        collector.tick()
        time.pass_(10)
    active = 'manager="slurm",jobid="1",user="alice",component="gpu",kind="active"'
    assert samples(collector, "job_energy_joules_total")[active] == pytest.approx(300 * 90)


def test_gpu_energy_is_counted_before_a_node_meter_is_chosen(host, time):
    gpus, rapl = FakeGpus(), FakeMeters()
    job = Job(1, 8, 0, time.clock(), time.clock() + 12)
    collector = energy_collector(host, {"jobs": Jobs(time, [job]), "gpu": gpus, "rapl": rapl})
    for second in range(25):
        if second == 20:
            rapl.available_meters.append(
                meter("rapl", constant_power(time, 100), includes_gpus=False)
            )
        shares = (GpuEnergyShare(job.name, 1.0),) if second < 12 else ()
        gpus.readings = (GpuEnergyReading("GPU-1", time.now, 300 * time.now, 0, shares),)
        collector.tick()
        time.pass_(1)
    active = 'manager="slurm",jobid="1",user="alice",component="gpu",kind="active"'
    assert samples(collector, "job_energy_joules_total")[active] == pytest.approx(300 * 12)


def test_meter_age_and_emissions_are_exported(host, time):
    emissions = FakeEmissions()
    emissions.factors = (EmissionFactor("rte", "FR", "combustion", 60.0, 300.0),)
    job = Job(1, 64, 0, time.clock(), float("inf"))
    collector = energy_collector(
        host,
        {
            "jobs": Jobs(time, [job]),
            "rapl": FakeMeters(meter("rapl", constant_power(time, 360))),
            "emissions": emissions,
        },
    )
    run_for(collector, time, 100)
    time.pass_(7)
    assert samples(collector, "meter_age_seconds") == {'meter="rapl"': 7}
    assert samples(collector, "job_emissions_grams_total") == {
        'manager="slurm",jobid="1",user="alice",provider="rte"': pytest.approx(0.6)
    }


def test_ticks_follow_the_period_of_a_slow_meter(host, time):
    started = time.now

    def read_latest():
        return MeterReading(started + (time.now - started) // 30.25 * 30.25, watts=100)

    collector = energy_collector(
        host, {"ipmi": FakeMeters(meter("ipmi", read_latest, period=30.0))}
    )
    reading_ages = []
    while time.now < started + 300:
        collector.tick()
        snapshot = collector.ledger.last_snapshot
        reading_ages.append(snapshot.at - snapshot.meter.at)
        time.pass_(collector.seconds_until_next_tick())
    assert max(reading_ages) < 1
    node = samples(collector, "node_energy_joules_total")
    assert sum(node.values()) == pytest.approx(100 * 30.25 * 9)


def test_failed_tick_is_counted_and_its_energy_is_booked_by_the_next(host, time, caplog):
    class FailingJobs(Jobs):
        failing = False

        def usage(self):
            if self.failing:
                raise RuntimeError("no such tree")
            return super().usage()

    jobs = FailingJobs(time, [])
    collector = energy_collector(
        host, {"jobs": jobs, "rapl": FakeMeters(meter("rapl", constant_power(time, 100)))}
    )
    run_for(collector, time, 10)
    jobs.failing = True
    time.pass_(10)
    collector.step()
    assert samples(collector, "energy_tick_errors_total") == {"": 1}
    assert "no such tree" in caplog.text
    jobs.failing = False
    time.pass_(10)
    collector.tick()
    total = samples(collector, "node_energy_joules_total")
    assert total['component="host",consumer="unallocated"'] == pytest.approx(3000)


def test_threads_start_and_stop(host, time, tmp_path, caplog):
    first_tick = threading.Event()

    def read():
        first_tick.set()
        return MeterReading(time.now, joules=0.0)

    with caplog.at_level(logging.INFO):
        collector = energy_collector(host, {"rapl": FakeMeters(meter("rapl", read))})
        collector.start()
        assert first_tick.wait(scaled(30))
        collector.stop()
        collector.stop()
    assert "using rapl as the meter" in caplog.text


def test_simulated_job_labels():
    assert name(5).labels == 'manager="slurm",jobid="5",user="alice"'

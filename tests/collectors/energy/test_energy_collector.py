"""Which meter is chosen, and what the collector shows."""

import logging

import pytest

from batchjob_exporter import exposition
from collectors.emissions.factor import EmissionFactor
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading
from tests.collectors.energy.bench import (
    Emissions,
    Gpus,
    Source,
    counter,
    energy,
    run,
    shown,
    steady,
)
from tests.simulated.node import Job, Jobs, name


def test_the_best_meter_is_chosen_and_named(host, time):
    built = {
        "cray": Source(),
        "ipmi": Source(counter("ipmi", steady(time, 500))),
        "rapl": Source(counter("rapl", steady(time, 300), "cpu", False)),
    }
    collector = energy(host, built)
    run(collector, time, 60)
    assert shown(collector, "node_power_source_info") == {
        'source="ipmi",scope="node",gpus="included"': 1
    }
    energy_of_node = shown(collector, "node_energy_joules_total")
    assert energy_of_node['component="host",consumer="unallocated"'] == pytest.approx(500 * 60)


def test_a_better_meter_that_answers_late_is_waited_for_and_a_later_one_is_not_taken(host, time):
    slow = Source()
    collector = energy(host, {"redfish": slow, "rapl": Source(counter("rapl", steady(time, 300)))})
    run(collector, time, 20)
    slow.offered.append(counter("redfish", steady(time, 500)))
    run(collector, time, 20)
    assert list(shown(collector, "node_power_source_info")) == [
        'source="redfish",scope="node",gpus="included"'
    ]

    late = Source()
    collector = energy(host, {"redfish": late, "rapl": Source(counter("rapl", steady(time, 300)))})
    run(collector, time, 60)
    late.offered.append(counter("redfish", steady(time, 500)))
    run(collector, time, 60)
    assert list(shown(collector, "node_power_source_info")) == [
        'source="rapl",scope="node",gpus="included"'
    ]


def test_a_named_meter_is_the_only_one(host, time, caplog):
    built = {"rapl": Source(counter("rapl", steady(time, 300)), counter("psys", steady(time, 400)))}
    collector = energy(host, built, source="psys", gpus_included="no")
    run(collector, time, 20)
    assert list(shown(collector, "node_power_source_info")) == [
        'source="psys",scope="node",gpus="apart"'
    ]
    collector = energy(host, built, source="cray")
    run(collector, time, 60)
    assert shown(collector, "node_power_source_info") == {}
    assert caplog.text.count("cray returns no reading") == 1


def test_a_node_without_any_meter_says_nothing(host, time):
    collector = energy(host, {"rapl": Source()})
    run(collector, time, 60)
    assert [family.metric.name for family in collector.collect()] == [
        "batchjob_energy_tick_errors_total"
    ]


def test_gpus_are_booked_on_a_node_without_a_meter(host, time):
    gpus = Gpus()
    job = Job(1, 8, 0, time.clock(), float("inf"))
    collector = energy(host, {"jobs": Jobs(time, [job]), "gpu": gpus})
    for _ in range(10):
        held = (GpuEnergyShare(job.name, 1.0),)
        gpus.readings = (GpuEnergyReading("GPU-1", time.now, 300 * time.now, 0, held),)
        collector.tick()
        time.pass_(10)
    active = 'manager="slurm",jobid="1",user="alice",component="gpu",kind="active"'
    assert shown(collector, "job_energy_joules_total")[active] == pytest.approx(300 * 90)


def test_gpus_are_booked_from_the_first_reading_whatever_becomes_the_meter(host, time):
    gpus, rapl = Gpus(), Source()
    job = Job(1, 8, 0, time.clock(), time.clock() + 12)
    collector = energy(host, {"jobs": Jobs(time, [job]), "gpu": gpus, "rapl": rapl})
    for second in range(25):
        if second == 20:
            rapl.offered.append(counter("rapl", steady(time, 100), includes_gpus=False))
        held = (GpuEnergyShare(job.name, 1.0),) if second < 12 else ()
        gpus.readings = (GpuEnergyReading("GPU-1", time.now, 300 * time.now, 0, held),)
        collector.tick()
        time.pass_(1)
    active = 'manager="slurm",jobid="1",user="alice",component="gpu",kind="active"'
    assert shown(collector, "job_energy_joules_total")[active] == pytest.approx(300 * 12)


def test_ages_and_grams_are_shown(host, time):
    emissions = Emissions()
    emissions.factors = (EmissionFactor("rte", "FR", "combustion", 60.0, 300.0),)
    job = Job(1, 64, 0, time.clock(), float("inf"))
    collector = energy(
        host,
        {
            "jobs": Jobs(time, [job]),
            "rapl": Source(counter("rapl", steady(time, 360))),
            "emissions": emissions,
        },
    )
    run(collector, time, 100)
    time.pass_(7)
    assert shown(collector, "meter_age_seconds") == {'meter="rapl"': 7}
    assert shown(collector, "job_emissions_grams_total") == {
        'manager="slurm",jobid="1",user="alice",provider="rte"': pytest.approx(0.6)
    }


def test_jobs_energy_says_when_it_was_zero_if_asked(host, time):
    class Starting(Jobs):
        def created(self):
            return {job.name.labels: job.start for job in self.jobs}

    start = time.clock() + 5
    jobs = [Job(1, 4, 2.0, start, start + 600)]

    def text(view):
        collector = energy(host, {"jobs": view, "rapl": Source(counter("rapl", steady(time, 100)))})
        run(collector, time, 100)
        return exposition.render(collector.collect(), exposition.OPENMETRICS).decode()

    created = [each for each in text(Starting(time, jobs)).splitlines() if "_created{" in each]
    assert created
    assert all(each.startswith("batchjob_job_energy_joules_created{") for each in created)
    assert {float(each.rsplit(" ", 1)[1]) for each in created} == {start}
    assert "_created" not in text(Jobs(time, jobs))


def test_slow_meters_are_looked_at_when_their_reading_is_due(host, time):
    started = time.now

    def last():
        return MeterReading(started + (time.now - started) // 30.25 * 30.25, watts=100)

    collector = energy(host, {"ipmi": Source(counter("ipmi", last, period=30.0))})
    late = []
    while time.now < started + 300:
        collector.tick()
        since = collector.ledger.last_snapshot
        late.append(since.at - since.meter.at)
        time.pass_(collector.seconds_until_next_tick())
    assert max(late) < 1
    node = shown(collector, "node_energy_joules_total")
    assert sum(node.values()) == pytest.approx(100 * 30.25 * 9)


def test_a_tick_that_fails_is_counted_and_the_next_one_makes_up_for_it(host, time, caplog):
    class Broken(Jobs):
        broken = False

        def usage(self):
            if self.broken:
                raise RuntimeError("no such tree")
            return super().usage()

    jobs = Broken(time, [])
    collector = energy(host, {"jobs": jobs, "rapl": Source(counter("rapl", steady(time, 100)))})
    run(collector, time, 10)
    jobs.broken = True
    time.pass_(10)
    collector.step()
    assert shown(collector, "energy_tick_errors_total") == {"": 1}
    assert "no such tree" in caplog.text
    jobs.broken = False
    time.pass_(10)
    collector.tick()
    total = shown(collector, "node_energy_joules_total")
    assert total['component="host",consumer="unallocated"'] == pytest.approx(3000)


def test_threads_start_and_stop(host, time, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        collector = energy(host, {"rapl": Source(counter("rapl", steady(time, 100)))})
        collector.start()
        collector.stop()
        collector.stop()
    assert "using rapl as the meter" in caplog.text


def test_jobs_are_named_as_the_jobs_collector_names_them():
    assert name(5).labels == 'manager="slurm",jobid="5",user="alice"'

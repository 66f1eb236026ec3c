import contextlib
import dataclasses
import json
import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.settings import SettingsError
from collectors import cray, hwmon, rapl
from collectors.emissions.factor import Factor
from collectors.energy import state
from collectors.energy.collector import Options, build
from collectors.energy.idle import Idle
from collectors.energy.interval import Look, key_of
from collectors.energy.ledger import Ledger
from collectors.energy.meter import GpuHolding, GpuReading, Meter, Reading
from collectors.energy.processors import Processors
from collectors.host import Host
from collectors.jobs.view import JobUsage
from tests.simulated.cray import Controller
from tests.simulated.node import Job, Jobs, Time, name, write_stat
from tests.simulated.powercap import AMD_RANGE_UJ, INTEL_DRAM_RANGE_UJ, Powercap

BOOT_ID = "0b0e1f2c-6f3f-4a39-9a44-8a3b0c6f1d2e"


class Source:
    """A collector with meters and nothing else."""

    def __init__(self, *meters):
        self.offered = list(meters)

    def meters(self):
        return self.offered

    def start(self):
        pass

    stop = start

    def collect(self):
        return []


class Gpus(Source):
    readings = ()

    def gpu_energy(self):
        return self.readings


class Emissions(Source):
    factors = ()

    def current(self):
        return self.factors


def counter(name, read, scope="node", includes_gpus=True, period=0.0):
    return Meter(name, scope, includes_gpus, period, read)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def host(tmp_path, time):
    tree = Powercap(tmp_path)
    (tree.procfs / "sys/kernel/random").mkdir(parents=True)
    (tree.procfs / "sys/kernel/random/boot_id").write_text(BOOT_ID + "\n")
    write_stat(tree.procfs, 0, 1000, 64)
    return Host(
        sysfs=str(tree.sysfs),
        procfs=str(tree.procfs),
        clock=time.clock,
        monotonic=time.monotonic,
    )


def energy(host, built, **options):
    return build(host, dataclasses.replace(Options(), **options), built)


def shown(collector, family_name):
    return {
        labels: value
        for family in collector.collect()
        if family.metric.name == f"batchjob_{family_name}"
        for labels, value in family.samples
    }


def steady(time, watts):
    """A counter of a node that draws always the same."""
    return lambda: Reading(time.now, joules=watts * time.now)


def run(collector, time, seconds, step=10):
    for _ in range(int(seconds / step)):
        collector.tick()
        time.pass_(step)
    collector.tick()


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
    assert caplog.text.count("cray gives no reading") == 1


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
        held = (GpuHolding(job.name, 1.0),)
        gpus.readings = (GpuReading("GPU-1", time.now, 300 * time.now, 0, held),)
        collector.tick()
        time.pass_(10)
    active = 'manager="slurm",jobid="1",user="alice",component="gpu",kind="active"'
    assert shown(collector, "job_energy_joules_total")[active] == pytest.approx(300 * 60)


def test_ages_and_grams_are_shown(host, time):
    emissions = Emissions()
    emissions.factors = (Factor("rte", "FR", "combustion", 60.0, 300.0),)
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


def test_slow_meters_are_looked_at_when_their_reading_is_due(host, time):
    started = time.now

    def last():
        return Reading(started + (time.now - started) // 30.25 * 30.25, watts=100)

    collector = energy(host, {"ipmi": Source(counter("ipmi", last, period=30.0))})
    late = []
    while time.now < started + 300:
        collector.tick()
        since = collector._ledger.since
        late.append(since.at - since.meter.at)
        time.pass_(collector._pause())
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
    collector._step()
    assert shown(collector, "energy_tick_errors_total") == {"": 1}
    assert "no such tree" in caplog.text
    jobs.broken = False
    time.pass_(10)
    collector.tick()
    total = shown(collector, "node_energy_joules_total")
    assert total['component="host",consumer="unallocated"'] == pytest.approx(3000)


def test_sums_go_on_after_a_restart_within_a_boot(host, time, tmp_path):
    job = Job(1, 64, 64, time.clock(), float("inf"))
    built = {"jobs": Jobs(time, [job]), "cray": Source(counter("cray", steady(time, 100)))}
    options = {"state_directory": str(tmp_path), "idle_watts": 20.0}
    first = energy(host, built, **options)
    run(first, time, 100)
    before = shown(first, "job_energy_joules_total")
    time.pass_(60)

    second = energy(host, built, **options)
    second.tick()
    after = shown(second, "job_energy_joules_total")
    assert before.keys() == after.keys()
    assert sum(after.values()) - sum(before.values()) == pytest.approx(100 * 60)

    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("another boot\n")
    third = energy(host, built, **options)
    run(third, time, 10)
    assert sum(shown(third, "job_energy_joules_total").values()) == pytest.approx(1000)


def test_another_meter_begins_new_sums(host, time, tmp_path):
    built = {
        "cray": Source(counter("cray", steady(time, 100))),
        "rapl": Source(counter("rapl", steady(time, 50))),
    }
    run(energy(host, built, state_directory=str(tmp_path)), time, 100)
    other = energy(host, built, state_directory=str(tmp_path), source="rapl")
    run(other, time, 10)
    assert sum(shown(other, "node_energy_joules_total").values()) == pytest.approx(500)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 9}'])
def test_damaged_state_is_a_restart(host, time, tmp_path, caplog, content):
    (tmp_path / "energy.json").write_text(content)
    built = {"rapl": Source(counter("rapl", steady(time, 100)))}
    collector = energy(host, built, state_directory=str(tmp_path))
    run(collector, time, 10)
    assert sum(shown(collector, "node_energy_joules_total").values()) == pytest.approx(1000)
    assert caplog.text.count("energy begins anew") == 1


def test_every_number_of_the_state_is_needed(host, time, tmp_path):
    built = {
        "jobs": Jobs(time, [Job(1, 64, 64, time.clock(), float("inf"))]),
        "rapl": Source(counter("rapl", steady(time, 100))),
    }
    run(energy(host, built, state_directory=str(tmp_path)), time, 100)
    document = json.loads((tmp_path / "energy.json").read_text())
    for key in document:
        without = {each: value for each, value in document.items() if each != key}
        (tmp_path / "energy.json").write_text(json.dumps(without))
        collector = energy(host, built, state_directory=str(tmp_path))
        run(collector, time, 60)
        assert shown(collector, "energy_tick_errors_total") == {"": 0}


def test_state_that_cannot_be_written_is_said_once_and_leaves_no_old_file(
    host, time, tmp_path, caplog
):
    built = {"rapl": Source(counter("rapl", steady(time, 100)))}
    collector = energy(host, built, state_directory=str(tmp_path))
    run(collector, time, 10)
    (tmp_path / "energy.json.new").mkdir()
    run(collector, time, 30)
    assert not (tmp_path / "energy.json").exists()
    assert caplog.text.count("will begin anew") == 1
    assert sum(shown(collector, "node_energy_joules_total").values()) == pytest.approx(4000)


def test_idle_power_by_node_type_from_a_file(host, time, tmp_path):
    table = tmp_path / "idle.yaml"
    table.write_text('"gpu-*": 420\nthin: 135.5\n')
    built = {"rapl": Source(counter("rapl", steady(time, 300)))}
    collector = energy(host, built, idle_file=str(table), node_type="thin")
    run(collector, time, 10)
    assert shown(collector, "node_idle_power_watts") == {'origin="configured"': 135.5}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("- 1", "expected a mapping of node types to watts"),
        ("thin: many", "thin: expected at least 0 watts, got 'many'"),
        ("thin: -1", "thin: expected at least 0 watts, got -1"),
        ("thin: true", "thin: expected at least 0 watts, got True"),
        ("a: [", "not YAML"),
    ],
)
def test_an_idle_file_that_is_none_is_refused(host, tmp_path, content, complaint):
    table = tmp_path / "idle.yaml"
    table.write_text(content)
    with pytest.raises(SettingsError, match=complaint):
        energy(host, {}, idle_file=str(table))
    with pytest.raises(SettingsError, match="No such file"):
        energy(host, {}, idle_file=str(tmp_path / "nowhere"))


def test_idle_power_is_learned_from_quiet_minutes(host, time, tmp_path):
    drawn = [80.0]
    joules = [0.0]

    def read():
        return Reading(time.now, joules=joules[0])

    collector = energy(host, {"rapl": Source(counter("rapl", read))})
    busy = 0.0
    for minute, (watts, load) in enumerate([(90, 0), (80, 1), (40, 32), (85, 0)]):
        drawn[0] = watts
        for _ in range(6):
            collector.tick()
            time.pass_(10)
            joules[0] += watts * 10
            busy += load * 10
            write_stat(tmp_path / "proc", busy, 1000 + minute * 60, 64)
    collector.tick()
    (learned,) = shown(collector, "node_idle_power_watts").values()
    assert learned == pytest.approx(80, rel=1e-4)


class Hour:
    """A node of 8 jobs over an hour: two AMD sockets, or two Intel ones with memory and psys."""

    def __init__(self, tmp_path, host, time, vendor):
        self.time, self.procfs = time, tmp_path / "proc"
        tree = Powercap(tmp_path, vendor)
        if vendor == "AuthenticAMD":
            self.counted = [
                tree.zone(f"intel-rapl:{n}", f"package-{n}", AMD_RANGE_UJ, (n + 1) * 10**9)
                for n in range(2)
            ]
            tree.zone("intel-rapl:0:0", "core", AMD_RANGE_UJ)
        else:
            self.counted = [
                tree.zone("intel-rapl:0", "package-0"),
                tree.zone("intel-rapl:1", "package-1", energy_uj=262_000_000_000),
                tree.zone("intel-rapl:0:0", "dram", INTEL_DRAM_RANGE_UJ),
                tree.zone("intel-rapl:1:0", "dram", INTEL_DRAM_RANGE_UJ, 65_000_000_000),
            ]
            self.psys = tree.zone("intel-rapl:2", "psys")
        self.metered = 0.0
        self.busy = 0.0
        start = time.clock()
        self.jobs = [
            Job(
                n, cpus=8, load=n % 4 * 2.0, start=start + 60 + n * 211.3, end=start + 1800 + n * 97
            )
            for n in range(7)
        ]
        self.jobs.append(Job(7, cpus=16, load=12.0, start=start + 3003.1, end=start + 3006.2))
        self.rapl = rapl.build(host, rapl.Options(), {})
        self.collector = energy(
            host, {"jobs": Jobs(time, self.jobs), "rapl": self.rapl}, idle_watts=120.0
        )

    def live(self, seconds):
        """Power follows load, second by second; the exporter sees what the counters make of it."""
        joules = 0.0
        for _ in range(seconds):
            self.time.pass_(1)
            now = self.time.clock()
            used = sum(job.cpu_seconds(now) - job.cpu_seconds(now - 1) for job in self.jobs)
            self.busy += used + 0.5
            joules += 150 + 14 * used
        for zone in self.counted:
            zone.run(joules / len(self.counted))
        self.metered += joules
        write_stat(self.procfs, self.busy, 10000, 64)


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD"])
def test_an_hour_of_eight_jobs_adds_up_to_the_meter(tmp_path, host, time, vendor):
    hour = Hour(tmp_path, host, time, vendor)
    peak = {}
    hour.rapl.look()
    hour.collector.tick()
    for _ in range(360):
        hour.live(10)
        hour.collector.tick()
        for labels, joules in shown(hour.collector, "job_energy_joules_total").items():
            assert joules >= peak.get(labels, 0.0)
            peak[labels] = joules
    node = shown(hour.collector, "node_energy_joules_total")
    assert sum(node.values()) == pytest.approx(hour.metered, rel=1e-6)
    assert sum(peak.values()) == pytest.approx(node['component="host",consumer="jobs"'], rel=1e-9)
    assert sum(peak.values()) + node['component="host",consumer="system"'] + node[
        'component="host",consumer="unallocated"'
    ] == pytest.approx(hour.metered, rel=1e-6)
    assert {f'jobid="{n}"' for n in range(8)} == {labels.split(",")[1] for labels in peak}
    assert min(joules for labels, joules in peak.items() if "idle" in labels) > 0
    assert shown(hour.collector, "meter_seconds_without_data_total") == {'meter="rapl"': 0}
    (deviation,) = shown(hour.collector, "node_energy_deviation_ratio").values()
    assert deviation < 1e-6


def test_the_counters_of_a_cray_node_are_split_with_its_accelerator(host, time, tmp_path):
    controller = Controller(tmp_path / "sys")
    gpus = Gpus()
    job = Job(1, 64, 32, time.clock(), float("inf"))
    built = {
        "jobs": Jobs(time, [job]),
        "cray": cray.build(host, cray.Options(), {}),
        "gpu": gpus,
    }
    collector = energy(host, built, idle_watts=100.0)
    joules = 0.0
    for tick in range(61):
        held = (GpuHolding(job.name, 1.0),)
        gpus.readings = (GpuReading("GPU-1", time.now, joules, 0, held),)
        collector.tick()
        time.pass_(10)
        joules += 300 * 10
        controller.update(watts=900, seconds=10)
        write_stat(tmp_path / "proc", tick * 320 + 320, 10000, 64)
    node = shown(collector, "node_energy_joules_total")
    assert sum(node.values()) == pytest.approx(900 * 600)
    by_job = shown(collector, "job_energy_joules_total")
    labels = 'manager="slurm",jobid="1",user="alice",component='
    assert by_job == {
        f'{labels}"host",kind="active"': pytest.approx(500 * 600),
        f'{labels}"host",kind="idle"': pytest.approx(100 * 600),
        f'{labels}"gpu",kind="active"': pytest.approx(300 * 600),
        f'{labels}"gpu",kind="idle"': 0,
    }


def test_an_acpi_power_meter_is_integrated(host, time, tmp_path):
    chip = tmp_path / "sys/class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "name").write_text("power_meter\n")
    sensors = hwmon.build(host, hwmon.Options(), {})
    collector = energy(host, {"hwmon": sensors})
    for watts in [200, 400, 600, 400, 200]:
        (chip / "power1_average").write_text(f"{watts}000000\n")
        sensors.refresher.refresh()
        collector.tick()
        time.pass_(10)
    node = shown(collector, "node_energy_joules_total")
    assert sum(node.values()) == pytest.approx(3000 + 5000 + 5000 + 3000)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.data())
def test_whatever_the_state_says_is_taken_or_refused(data):
    ledger = Ledger(Idle())
    job = JobUsage(name(1), 5.0, 2.0, None, None)
    holding = GpuHolding(name(1), 1.0)
    for at in (0.0, 10.0):
        ledger.book(
            Look(
                at,
                1e9 + at,
                Reading(at, joules=at * 100),
                Processors(at, 4),
                {key_of(job.name): job},
                {"GPU-1": GpuReading("GPU-1", at, at * 50, 0, (holding,))},
            )
        )
    with tempfile.TemporaryDirectory() as directory:
        state.save(directory, BOOT_ID, "cray", ["cray"], ledger)
        document = state.load(directory)
        same = Ledger(Idle())
        assert state.restore(document, BOOT_ID, "cray", same)
        assert same.jobs.keys() == ledger.jobs.keys()
        assert (same.node, same.since, same.gpus_since) == (
            ledger.node,
            ledger.since,
            ledger.gpus_since,
        )
        changed = data.draw(st.sampled_from(sorted(document.keys() - {"version"})))
        document[changed] = data.draw(values)
        Path(directory, "energy.json").write_text(json.dumps(document))
        with contextlib.suppress(ValueError):
            state.restore(state.load(directory), BOOT_ID, "cray", Ledger(Idle()))


def test_threads_start_and_stop(host, time, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        collector = energy(host, {"rapl": Source(counter("rapl", steady(time, 100)))})
        collector.start()
        collector.stop()
        collector.stop()
    assert "energy is taken from rapl" in caplog.text


def test_jobs_are_named_as_the_jobs_collector_names_them():
    assert name(5).labels == 'manager="slurm",jobid="5",user="alice"'

"""Whole nodes: processors, a Cray's counters, a power meter of ACPI."""

import pytest

from collectors.power import cray, hwmon, rapl
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare
from tests.collectors.energy.bench import Gpus, energy, shown
from tests.simulated.cray import Controller
from tests.simulated.node import Job, Jobs, write_stat
from tests.simulated.powercap import AMD_RANGE_UJ, INTEL_DRAM_RANGE_UJ, Powercap


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
        self.rapl = rapl.build(host, rapl.RaplOptions(), {})
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
    hour.rapl.read_totals()
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
        "cray": cray.build(host, cray.CrayOptions(), {}),
        "gpu": gpus,
    }
    collector = energy(host, built, idle_watts=100.0)
    joules = 0.0
    for tick in range(61):
        held = (GpuEnergyShare(job.name, 1.0),)
        gpus.readings = (GpuEnergyReading("GPU-1", time.now, joules, 0, held),)
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
    sensors = hwmon.build(host, hwmon.HwmonOptions(), {})
    collector = energy(host, {"hwmon": sensors})
    for watts in [200, 400, 600, 400, 200]:
        (chip / "power1_average").write_text(f"{watts}000000\n")
        sensors.refresher.refresh()
        collector.tick()
        time.pass_(10)
    node = shown(collector, "node_energy_joules_total")
    assert sum(node.values()) == pytest.approx(3000 + 5000 + 5000 + 3000)

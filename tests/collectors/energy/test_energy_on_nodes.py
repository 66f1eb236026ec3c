"""Energy accounting on simulated nodes: RAPL, Cray pm_counters, ACPI power meter."""

import pytest

from collectors.power import cray, hwmon, rapl
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare
from tests.collectors.energy.fake_collectors import FakeGpus, energy_collector, samples
from tests.simulated.cray import Controller
from tests.simulated.node import Job, Jobs, write_stat
from tests.simulated.powercap import AMD_RANGE_UJ, INTEL_DRAM_RANGE_UJ, Powercap


class EightJobNode:
    """Eight jobs within an hour, on two AMD sockets or two Intel ones with memory and psys."""

    def __init__(self, tmp_path, host, time, vendor):
        self.time, self.procfs = time, tmp_path / "proc"
        tree = Powercap(tmp_path, vendor)
        if vendor == "AuthenticAMD":
            self.metered_zones = [
                tree.zone(f"intel-rapl:{n}", f"package-{n}", AMD_RANGE_UJ, (n + 1) * 10**9)
                for n in range(2)
            ]
            tree.zone("intel-rapl:0:0", "core", AMD_RANGE_UJ)
        else:
            self.metered_zones = [
                tree.zone("intel-rapl:0", "package-0"),
                tree.zone("intel-rapl:1", "package-1", energy_uj=262_000_000_000),
                tree.zone("intel-rapl:0:0", "dram", INTEL_DRAM_RANGE_UJ),
                tree.zone("intel-rapl:1:0", "dram", INTEL_DRAM_RANGE_UJ, 65_000_000_000),
            ]
            tree.zone("intel-rapl:2", "psys")
        self.metered_joules = 0.0
        self.busy_seconds = 0.0
        start = time.clock()
        self.jobs = [
            Job(
                n, cpus=8, load=n % 4 * 2.0, start=start + 60 + n * 211.3, end=start + 1800 + n * 97
            )
            for n in range(7)
        ]
        self.jobs.append(Job(7, cpus=16, load=12.0, start=start + 3003.1, end=start + 3006.2))
        self.rapl = rapl.Rapl(host, rapl.RaplOptions())
        self.collector = energy_collector(
            host, {"jobs": Jobs(time, self.jobs), "rapl": self.rapl}, idle_watts=120.0
        )

    def advance(self, seconds):
        """Let time pass: power follows the load, and the RAPL counters follow the power."""
        joules = 0.0
        for _ in range(seconds):
            self.time.pass_(1)
            now = self.time.clock()
            cpu_seconds_used = sum(
                job.cpu_seconds(now) - job.cpu_seconds(now - 1) for job in self.jobs
            )
            self.busy_seconds += cpu_seconds_used + 0.5
            joules += 150 + 14 * cpu_seconds_used
        for zone in self.metered_zones:
            zone.run(joules / len(self.metered_zones))
        self.metered_joules += joules
        write_stat(self.procfs, self.busy_seconds, 10000, 64)


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD"])
def test_energy_of_eight_jobs_over_an_hour_adds_up_to_the_meter(tmp_path, host, time, vendor):
    node = EightJobNode(tmp_path, host, time, vendor)
    job_joules = {}
    node.rapl.read_totals()
    node.collector.tick()
    for _ in range(360):
        node.advance(10)
        node.collector.tick()
        for labels, joules in samples(node.collector, "job_energy_joules_total").items():
            assert joules >= job_joules.get(labels, 0.0)
            job_joules[labels] = joules
    node_joules = samples(node.collector, "node_energy_joules_total")
    assert sum(node_joules.values()) == pytest.approx(node.metered_joules, rel=1e-6)
    assert sum(job_joules.values()) == pytest.approx(
        node_joules['component="host",consumer="jobs"'], rel=1e-9
    )
    assert sum(job_joules.values()) + node_joules[
        'component="host",consumer="system"'
    ] + node_joules['component="host",consumer="unallocated"'] == pytest.approx(
        node.metered_joules, rel=1e-6
    )
    assert {f'jobid="{n}"' for n in range(8)} == {labels.split(",")[1] for labels in job_joules}
    assert min(joules for labels, joules in job_joules.items() if "idle" in labels) > 0
    assert samples(node.collector, "meter_seconds_without_data_total") == {'meter="rapl"': 0}
    (deviation,) = samples(node.collector, "node_energy_deviation_ratio").values()
    assert deviation < 1e-6


def test_cray_node_energy_is_split_into_host_and_gpu(host, time, tmp_path):
    controller = Controller(tmp_path / "sys")
    gpus = FakeGpus()
    job = Job(1, 64, 32, time.clock(), float("inf"))
    collectors = {
        "jobs": Jobs(time, [job]),
        "cray": cray.Cray(host),
        "gpu": gpus,
    }
    collector = energy_collector(host, collectors, idle_watts=100.0)
    joules = 0.0
    for tick in range(61):
        shares = (GpuEnergyShare(job.name, 1.0),)
        gpus.readings = (GpuEnergyReading("GPU-1", time.now, joules, 0, shares),)
        collector.tick()
        time.pass_(10)
        joules += 300 * 10
        controller.update(watts=900, seconds=10)
        write_stat(tmp_path / "proc", tick * 320 + 320, 10000, 64)
    node_joules = samples(collector, "node_energy_joules_total")
    assert sum(node_joules.values()) == pytest.approx(900 * 600)
    joules_by_job = samples(collector, "job_energy_joules_total")
    labels = 'manager="slurm",jobid="1",user="alice",component='
    assert joules_by_job == {
        f'{labels}"host",kind="active"': pytest.approx(500 * 600),
        f'{labels}"host",kind="idle"': pytest.approx(100 * 600),
        f'{labels}"gpu",kind="active"': pytest.approx(300 * 600),
        f'{labels}"gpu",kind="idle"': 0,
    }


def test_acpi_power_readings_are_integrated(host, time, tmp_path):
    chip_directory = tmp_path / "sys/class/hwmon/hwmon0"
    chip_directory.mkdir(parents=True)
    (chip_directory / "name").write_text("power_meter\n")
    hwmon_collector = hwmon.Hwmon(host, hwmon.HwmonOptions())
    collector = energy_collector(host, {"hwmon": hwmon_collector})
    for watts in [200, 400, 600, 400, 200]:
        (chip_directory / "power1_average").write_text(f"{watts}000000\n")
        hwmon_collector.refresher.refresh()
        collector.tick()
        time.pass_(10)
    node_joules = samples(collector, "node_energy_joules_total")
    assert sum(node_joules.values()) == pytest.approx(3000 + 5000 + 5000 + 3000)

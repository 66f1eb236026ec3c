"""An exporter that is replaced by a newer one in the middle of a job: no total falls or doubles."""

import contextlib
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.collectors.jobs.nodes import Node, overwrite
from tests.fake_nvml.library import FakeNvml, compile_into
from tests.helpers.checkout import REPOSITORY
from tests.helpers.processes import free_ports, served
from tests.helpers.waiting import scaled, until
from tests.simulated.powercap import Powercap

MEGABYTE = 10**6
WATTS = 50
WITHOUT_SUMS = "742d08ff"  # kept energy alone
VERSIONS = (WITHOUT_SUMS, "1d151743", "53102104")
"""Commits after each of which the form of the state files, or of what writes them, changed."""
WITH_GPUS = "6ed1642d"  # counts GPU seconds, which those before it do not


class Machine:
    """A node of files, with a job on two of four CPUs; its counters go on with the real time.

    With a GPU's `driver`, the job has the GPU, which is busy for 40 % of the time.
    """

    def __init__(self, top, driver=None):
        self.driver, self.samples = driver, []
        self.is_off = threading.Event()
        self.top, self.begin, self.energy_at = top, time.monotonic(), time.monotonic()
        self.node = Node(top)
        boot = self.node.proc / "sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("0b0e1f2c-6f3f-4a39-9a44-8a3b0c6f1d2e\n")
        self.job = self.node.add_job(pids=[10, 11])
        self.package = Powercap(top).zone("intel-rapl:0", "package-0")
        if driver:
            (self.node.proc / "driver/nvidia").mkdir(parents=True)
            (self.node.proc / "driver/nvidia/version").touch()
            driver.add_gpus(1, **{"gpu0.process0": "11 500000000 COMPUTE"})
        self.node.add_process(10, io=(0, 5 * MEGABYTE, 0, 0), environ=GPU_OF_JOB)
        (top / "state").mkdir()
        self.go_on()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while not self.is_off.wait(0.1):
            self.go_on()

    def go_on(self):
        """Two CPUs are busy, a megabyte is written each second; 50 W are drawn."""
        now = time.monotonic()
        used = now - self.begin
        self.node.set_cpu(self.job, (round(used * 1_500_000), round(used * 500_000)))
        written = round((300 + used) * MEGABYTE)
        self.node.add_process(11, io=(0, written, 0, 0), environ=GPU_OF_JOB)
        if self.driver:  # it remembers 14 s
            self.samples = [*self.samples[-140:], f"{time.time_ns() // 1000}:40"]
            self.driver.set({"gpu0.samples": " ".join(self.samples)})
        busy = " ".join((f"{round(used * 200)} 0 0 {round(used * 200)}", *"000000"))
        cpus = "".join(f"cpu{number} {busy}\n" for number in range(4))
        boot = int(time.time() - now)
        overwrite(self.node.proc / "stat", f"cpu  {busy}\n{cpus}btime {boot}\n")
        self.package.run(WATTS * (now - self.energy_at))
        self.energy_at = now

    def end_process(self):
        self.node.remove_process(10)
        (self.job / "step_batch/user/task_0/cgroup.procs").write_text("11\n")


@pytest.fixture(scope="module")
def source_of(tmp_path_factory):
    """The folder with the sources of a version, from the history of this checkout."""

    def unpack(version):
        folder = tmp_path_factory.mktemp(version)
        archive = ["git", "archive", version, "batchjob", "batchjob_exporter", "collectors"]
        tree = subprocess.run(archive, cwd=REPOSITORY, capture_output=True, check=False)
        if tree.returncode:
            pytest.skip(f"this checkout has no {version}")
        subprocess.run(["tar", "-x", "-C", folder], input=tree.stdout, check=True)
        return folder

    return unpack


@contextlib.contextmanager
def exporting(machine, sources, environment=()):
    """Runs the exporter of these sources; yields a function that scrapes the job's and node's."""
    (port,) = free_ports(1)
    host = machine.node.host
    argv = [
        "env", f"PYTHONPATH={sources}", f"STATE_DIRECTORY={machine.top / 'state'}", *environment,
        sys.executable, "-m", "batchjob_exporter", f"--web.listen-address=127.0.0.1:{port}",
        f"--path.procfs={host.procfs}", f"--path.sysfs={host.sysfs}", f"--path.dev={host.dev}",
        f"--path.cgroupfs={host.cgroupfs}", "--collector.rapl", "--collector.energy",
        "--collector.energy.source=rapl", "--collector.energy.interval=1s",
        "--collector.gpu.interval=1s",
    ]  # fmt: skip

    def scrape():
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=scaled(10)) as answer:
            text = answer.read().decode()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0) + sample.value
        return {name.removeprefix("batchjob_"): value for name, value in found.items()}

    with served(argv, "/metrics", port, machine.top / "log"):
        yield scrape


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    machine.is_off.set()


WRITTEN, CPU, RAPL = (
    "job_process_io_written_bytes_total", "job_cpu_seconds_total", "rapl_energy_joules_total"
)  # fmt: skip
GPU_OF_JOB = b"SLURM_JOB_ID=1\0SLURM_JOB_GPUS=0\0SLURM_JOB_NUM_NODES=1\0"
GPU_SECONDS = {
    "job_gpu_busy_seconds_total": 0.4, "job_gpu_observed_seconds_total": 1,
    "gpu_busy_seconds_total": 0.4, "gpu_observed_seconds_total": 1,
}  # fmt: skip
ENERGY = ("job_energy_joules_total", "node_energy_joules_total")


def whole(scrape, names):
    """A scrape with all names: a file that is written just now is read empty, and absent."""
    return until(lambda: (now := scrape()).keys() >= names and now)


@pytest.mark.parametrize("version", VERSIONS)
def test_totals_go_on_over_an_upgrade_of_the_exporter(version, source_of, machine):
    kept = {CPU, *ENERGY} | (set() if version == WITHOUT_SUMS else {WRITTEN, RAPL})
    with exporting(machine, source_of(version)) as scrape:
        until(lambda: scrape().get(WRITTEN, 0) > 305 * MEGABYTE)
        machine.end_process()
        until(lambda: all(scrape().get(name, 0) > WATTS for name in ENERGY))
        before, at = whole(scrape, kept), time.monotonic()
    time.sleep(2)  # while no exporter runs
    with exporting(machine, REPOSITORY) as scrape:
        first = whole(scrape, {WRITTEN, CPU, RAPL, *ENERGY})
        until(lambda: scrape().get(ENERGY[0], 0) > first[ENERGY[0]] + 2 * WATTS)
        after, seconds = whole(scrape, kept), time.monotonic() - at
    assert {name: first[name] >= before[name] for name in kept} == dict.fromkeys(kept, True)
    # All of the outage, and nothing twice; a process, and a meter, is read every few seconds.
    grown = {name: after[name] - before[name] for name in kept}
    rates = {CPU: 2, WRITTEN: MEGABYTE, **dict.fromkeys((RAPL, *ENERGY), WATTS)}
    for name in kept:
        assert grown[name] == pytest.approx(rates[name] * seconds, abs=rates[name] * scaled(3)), (
            name
        )


def test_gpu_seconds_go_on_over_an_upgrade_of_the_exporter(source_of, tmp_path):
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    library = compile_into(tmp_path)
    environment = (f"FAKE_NVML={tmp_path / 'nvml'}", f"LD_LIBRARY_PATH={library.parent}")
    machine = Machine(tmp_path, FakeNvml(tmp_path / "nvml"))
    try:
        with exporting(machine, source_of(WITH_GPUS), environment) as scrape:
            # What a job used is counted half a minute later, when its process is surely known.
            until(lambda: all(scrape().get(name, 0) > 1 for name in GPU_SECONDS), timeout=60)
            before, at = whole(scrape, GPU_SECONDS.keys()), time.monotonic()
        time.sleep(2)  # while no exporter runs
        with exporting(machine, REPOSITORY, environment) as scrape:
            first = whole(scrape, GPU_SECONDS.keys())
            until(lambda: all(scrape().get(name, 0) > first[name] + 1 for name in GPU_SECONDS))
            after, seconds = whole(scrape, GPU_SECONDS.keys()), time.monotonic() - at
    finally:
        machine.is_off.set()
    for name, rate in GPU_SECONDS.items():
        assert first[name] >= before[name]
        assert after[name] - before[name] == pytest.approx(rate * seconds, abs=rate * scaled(3))

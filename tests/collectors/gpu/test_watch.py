"""What ten readings a second see that no reading after it does."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from collectors.gpu import nvidia_watch
from collectors.gpu.collector import GpuCollector, GpuOptions
from collectors.jobs.view import JobHolder, JobLifetime, make_name

GIB = 1 << 30
JOB = make_name("slurm", "5", "alice")
CGROUPS = "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n"
NO_INSTANCE = 0xFFFFFFFF


class OneJob:
    """A job whose processes have not been scanned yet."""

    ended_at = None

    def usage(self):
        return []

    def lifetimes(self):
        return {JOB: JobLifetime(None, self.ended_at)}

    def holders(self):
        directory = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_5"
        return [] if self.ended_at else [JobHolder(JOB, 1000, (), (), (directory,))]


@pytest.fixture
def collector(fake_nvml, host):
    fake_nvml.add_gpus(1)
    found = GpuCollector(host, GpuOptions(interval=10), OneJob())
    yield found
    found.stop()


@pytest.fixture
def run_process(fake_nvml, host):
    """Start a process of the job with a context on the GPU."""

    def run(pid, memory_bytes, cgroups=CGROUPS):
        directory = Path(host.procfs, str(pid))
        directory.mkdir(exist_ok=True)
        (directory / "cgroup").write_text(cgroups)
        place = f"COMPUTE {NO_INSTANCE} {NO_INSTANCE} 0"
        fake_nvml.set({"gpu0.process0": f"{pid} {memory_bytes} {place}"})

    return run


def memory_peak(collector):
    """The peaks that are exposed."""
    collector.refresh_map()
    name = "batchjob_job_gpu_memory_peak_bytes"
    found = [each for each in collector.collect() if each.metric.name == name]
    return [peak for family in found for _, peak in family.samples]


def test_peak_between_two_readings_is_kept(fake_nvml, collector, run_process, eventually):
    collector.start()
    eventually(lambda: collector.gpu_energy())
    run_process(77, 5 * GIB)
    eventually(lambda: memory_peak(collector) == [5 * GIB])
    run_process(77, 65 * GIB)
    eventually(lambda: memory_peak(collector) == [65 * GIB])
    run_process(77, 5 * GIB)
    fake_nvml.drop("gpu0.process0")
    assert memory_peak(collector) == [65 * GIB]


def test_process_is_its_jobs_at_first_sight(collector, run_process, eventually):
    """Neither the scan of processes, every 15 s, nor the next reading has come."""
    collector.start()
    eventually(lambda: collector.gpu_energy())
    run_process(78, GIB)
    (found,) = eventually(lambda: collector.refresh_map().holdings)
    assert (found.job, found.source, found.confirmed) == (JOB, "process", True)
    assert found.memory_bytes == GIB


def test_process_of_no_job_is_nobodys(collector, run_process, eventually):
    collector.start()
    eventually(lambda: collector.gpu_energy())
    run_process(79, GIB, "0::/user.slice/user-1000.slice/session-2.scope\n")
    eventually(lambda: collector.gpu_energy())
    assert collector.refresh_map().holdings == ()


def test_power_between_readings_is_integrated(fake_nvml, collector, eventually):
    fake_nvml.set({"gpu0.field186": 500_000})
    collector.start()

    def power():
        readings = collector.gpu_energy()
        return readings[0].power if readings and len(readings[0].power) > 3 else ()

    points = eventually(power)
    (began, before), (ended, after) = points[0], points[-1]
    assert (after - before) / (ended - began) == pytest.approx(500)


def test_gpu_without_instant_power_has_none(collector, eventually):
    collector.start()
    (reading,) = eventually(lambda: collector.gpu_energy())
    assert reading.power == ()


def test_lost_gpu_keeps_the_peak_of_a_job(fake_nvml, collector, run_process, eventually):
    collector.start()
    eventually(lambda: collector.gpu_energy())
    run_process(77, 65 * GIB)
    eventually(lambda: memory_peak(collector) == [65 * GIB])
    fake_nvml.set({"gpu0.returns": 15})
    eventually(lambda: not any(each.processes for each in collector.refresh_map().holdings))
    assert memory_peak(collector) == [65 * GIB]


def test_hanging_call_delays_no_scrape_and_no_other_gpu(fake_nvml, host, eventually):
    fake_nvml.add_gpus(2, **{"gpu0.field186": 500_000, "gpu1.field186": 300_000})
    collector = GpuCollector(host, GpuOptions(interval=0.1), OneJob())
    collector.start()
    try:
        eventually(lambda: len(collector.gpu_energy()) == 2)
        fake_nvml.set({"gpu0.nvmlDeviceGetComputeRunningProcesses_v3.hangs": 1})
        newest = {each.uuid: each.power[-1] for each in collector.gpu_energy() if each.power}
        eventually(
            lambda: any(
                each.power and each.power[-1] > newest.get(each.uuid, (0, 0))
                for each in collector.gpu_energy()
                if each.uuid.endswith("1")
            )
        )
        assert collector.collect()
    finally:
        fake_nvml.drop("gpu0.nvmlDeviceGetComputeRunningProcesses_v3.hangs")
        collector.stop()


def test_watch_of_a_gpu_that_got_another_number_is_not_taken_for_its_successor(
    fake_nvml, host, eventually
):
    fake_nvml.add_gpus(2, **{"gpu0.field186": 500_000, "gpu1.field186": 300_000})
    fake_nvml.set({"driver.generation": 1, "driver.error": 1})
    uuids = [fake_nvml.keys[f"gpu{n}.uuid"] for n in range(2)]
    collector = GpuCollector(host, GpuOptions(interval=0.1), OneJob())
    collector.start()

    def watts():
        found = {}
        for each in collector.gpu_energy():
            if len(each.power) > 2:
                (began, before), (ended, after) = each.power[0], each.power[-1]
                found[each.uuid] = round((after - before) / (ended - began))
        return found

    try:
        eventually(lambda: watts() == {uuids[0]: 500, uuids[1]: 300})
        fake_nvml.set(
            {"driver.generation": 2, "gpu0.uuid": uuids[1], "gpu1.uuid": uuids[0]}
            | {"gpu0.field186": 310_000, "gpu1.field186": 510_000}
        )
        eventually(lambda: watts() == {uuids[0]: 510, uuids[1]: 310})
    finally:
        collector.stop()


def test_energy_is_also_of_a_job_between_two_readings(fake_nvml, host, run_process, eventually):
    fake_nvml.add_gpus(1)
    job = OneJob()
    collector = GpuCollector(host, GpuOptions(interval=2), job)
    collector.start()
    try:
        (first,) = eventually(collector.gpu_energy)
        run_process(79, GIB)
        eventually(lambda: collector.refresh_map().holdings)
        fake_nvml.drop("gpu0.process0")
        job.ended_at = 1000.0
        eventually(lambda: not collector.refresh_map().holdings)
        assert collector.gpu_energy()[0].at == first.at, "the test was too slow"
        eventually(lambda: collector.gpu_energy()[0].at > first.at)
        assert [share.job for share in collector.gpu_energy()[0].shares] == [JOB]
    finally:
        collector.stop()


def test_power_is_integrated_from_the_drivers_samples(fake_nvml, collector, eventually):
    """A load of 500 W for 40 of each 100 ms, which ten readings a second may not see."""
    first = int((time.time() - 2) * 1e6)
    watts = [500 if step % 5 < 2 else 100 for step in range(100)]
    samples = " ".join(f"{first + 20_000 * n}:{each * 1000}" for n, each in enumerate(watts))
    fake_nvml.set({"gpu0.power_samples": samples})
    collector.start()
    power = eventually(lambda: [each.power for each in collector.gpu_energy() if each.power])[0]
    (began, before), (ended, later) = power[0], power[-2]
    assert (later - before) / (ended - began) == pytest.approx(260, rel=0.05)


def test_power_is_known_up_to_each_reading_of_the_energy(fake_nvml, host, eventually):
    """A load of the last 0.4 s was divided by the power before it, up to 1.5 s earlier."""

    def draw(*watts):
        first = int((time.time() - 0.02 * len(watts)) * 1e6)
        samples = (f"{first + 20_000 * n}:{each * 1000}" for n, each in enumerate(watts))
        fake_nvml.set({"gpu0.power_samples": " ".join(samples)})

    fake_nvml.add_gpus(1)
    collector = GpuCollector(host, GpuOptions(interval=0.3), OneJob())
    draw(*[100] * 100)
    collector.start()
    try:
        (before,) = eventually(lambda: [each for each in collector.gpu_energy() if each.power])
        time.sleep(0.5)
        draw(*[100] * 80, *[500] * 20)
        drawn = time.monotonic()
        eventually(lambda: collector.gpu_energy()[0].at > max(drawn, before.at))
        points = collector.gpu_energy()[0].power
        watts = [(later - before) / (to - at) for (at, before), (to, later) in pairwise(points)]
        assert max(watts) == pytest.approx(500, rel=0.05)
    finally:
        collector.stop()


def test_gpu_whose_call_hangs_does_not_stop_the_others(fake_nvml, driver, eventually, monkeypatch):
    monkeypatch.setattr(nvidia_watch, "HANGS_AFTER_SECONDS", 0.2)
    fake_nvml.add_gpus(2)
    driver.start()
    eventually(lambda: len([gpu for gpu in driver.known_gpus() if gpu.observed]) == 2)
    hang = "gpu0.nvmlDeviceGetMemoryInfo_v2.hangs"
    fake_nvml.set({hang: 1, "gpu1.process0": f"77 {GIB} COMPUTE {NO_INSTANCE} {NO_INSTANCE} 0"})
    try:
        listed = eventually(driver.process_changes)
        assert [process.pid for _, processes in listed for process in processes] == [77]
    finally:
        fake_nvml.drop(hang)

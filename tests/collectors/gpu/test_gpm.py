"""How well GPUs were used: GPM's values of a GPU, of its instances, and of the jobs on them."""

import time
from collections import Counter
from dataclasses import replace

import pytest

from collectors.gpu import nvml_gpm
from collectors.gpu.collector import GpuCollector, GpuOptions
from collectors.gpu.devices import Gpu, Instance, Unit
from collectors.gpu.holders import Holding
from collectors.gpu.job_busy import JobBusyCounters
from collectors.gpu.metrics import UTILIZATION
from collectors.gpu.reading import GpuReading, ProfileSample
from collectors.jobs.view import JobLifetime, make_name

ONE_BLOCK = "1:100 2:0.757576 3:0.05 10:0.1"  # of one of 132 multiprocessors
COPIES = "1:0 2:0 10:2.5 20:3363 21:56286"
GPU = Gpu("nvidia", 0, "GPU-0", 0, "", "NVIDIA H200")
ALICE, BOB = make_name("slurm", "1", "alice"), make_name("slurm", "2", "bob")


@pytest.fixture(autouse=True)
def seconds_pass_quickly(monkeypatch):
    monkeypatch.setattr(nvml_gpm, "STEP_SECONDS", 0.005)
    monkeypatch.setattr(nvml_gpm, "PAUSE_SECONDS", 0.05)


@pytest.fixture
def means(driver, eventually):
    """The means of a GPU or instance: each sum over the time that it covers."""

    def ask(uuid="GPU-aaaaaaaa-0000-4000-8000-000000000000", instance=""):
        sums = eventually(lambda: driver.profiles.get((uuid, instance)))
        return {name: value / sums["profiled_seconds"] for name, value in sums.items()}

    return ask


def test_one_block_uses_a_hundredth_of_the_multiprocessors(fake_nvml, driver, means):
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.gpm": ONE_BLOCK})
    driver.start()
    found = means()
    assert found["sm_active_seconds"] == pytest.approx(1 / 132, rel=1e-4)
    assert found["sm_occupancy_seconds"] == pytest.approx(0.0005)
    assert found["dram_active_seconds"] == pytest.approx(0.001)
    assert found["tensor_active_seconds"] == 0


def test_copies_move_bytes_and_use_no_multiprocessor(fake_nvml, driver, means):
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.gpm": COPIES})
    driver.start()
    found = means()
    assert found["sm_active_seconds"] == 0
    assert found["pcie_receive_bytes"] == pytest.approx(56286 * 2**20)


def test_two_samples_of_one_snapshot_are_no_pair(fake_nvml, driver, eventually):
    """The driver then says that the memory was used for `nan` per cent, and 0 of the rest."""
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.gpm": "2:0 10:nan"})
    driver.start()
    eventually(driver.known_gpus)
    assert not driver.profiles
    fake_nvml.set({"gpu0.gpm": "2:50 10:5"})
    sums = eventually(lambda: driver.profiles.values())
    (found,) = sums
    assert found["sm_active_seconds"] == pytest.approx(found["profiled_seconds"] / 2)


@pytest.mark.parametrize("impossible", ["2:-5 10:0", "2:inf 10:0"])
def test_impossible_values_are_not_counted(fake_nvml, driver, eventually, impossible):
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.gpm": impossible})
    driver.start()
    eventually(driver.known_gpus)
    assert not driver.profiles


@pytest.mark.parametrize("refusal", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet"])
def test_gpu_that_cannot_be_measured_has_no_values(fake_nvml, driver, eventually, refusal):
    """Before Hopper; and with RmProfilingAdminOnly, which asks for a right."""
    fake_nvml.add_gpus(1)
    no_permission = 4
    fake_nvml.set({"gpu0.gpm": ONE_BLOCK, f"gpu0.{refusal}.returns": no_permission})
    driver.start()
    eventually(lambda: driver.errors().get(("0", "no_permission")))
    assert not driver.profiles


def test_instances_take_turns(fake_nvml, driver, eventually, means):
    fake_nvml.add_gpus(1)
    fake_nvml.create_mig_instances(0, {0: {}, 1: {}})
    fake_nvml.set({"gpu0.gpm1": "1:40 2:30 10:1", "gpu0.gpm2": "1:90 2:80 10:1"})
    driver.start()
    assert means(instance="1")["sm_active_seconds"] == pytest.approx(0.3)
    assert means(instance="2")["sm_active_seconds"] == pytest.approx(0.8)
    seconds = Counter({key: sums["profiled_seconds"] for key, sums in driver.profiles.items()})
    assert len(seconds) == 2, "nothing of the whole GPU"


def test_instance_of_several_compute_instances_is_not_measured(fake_nvml, driver, eventually):
    fake_nvml.add_gpus(1)
    halves = {"gpu_instance": 1}
    fake_nvml.create_mig_instances(0, {0: halves, 1: halves | {"compute_instance": 1}})
    fake_nvml.set({"gpu0.gpm1": "1:40 10:1"})
    driver.start()
    eventually(driver.known_gpus)
    assert not driver.profiles


def test_instance_has_none_of_the_use_of_an_earlier_one_with_its_number(
    fake_nvml, driver, eventually
):
    """MIG is reconfigured while a job runs: numbers of instances are given again."""
    fake_nvml.add_gpus(1)
    fake_nvml.create_mig_instances(0, {0: {"uuid": "MIG-old"}})
    fake_nvml.set({"gpu0.gpm1": "1:90 2:90 10:1"})
    driver.start()

    def reading():
        ((known,), found) = driver.known_gpus() or [None], {}
        if known and known.observed:
            found = {x: y.get(UTILIZATION) for x, y in known.observed.value.instances.items()}
        return found, known and known.observed and known.observed.value.profile

    eventually(lambda: reading()[0].get("MIG-old"))
    fake_nvml.set({"gpu0.gpm1": "1:10 2:10 10:1"})
    fake_nvml.create_mig_instances(0, {0: {"uuid": "MIG-new"}})
    first = eventually(lambda: reading()[0].get("MIG-new"))
    assert first == pytest.approx(0.1)
    _, profile = reading()
    assert all(x.values["sm_active_seconds"] < 0.2 * x.values["profiled_seconds"] for x in profile)


def test_profiler_beside_delays_no_scrape_and_leaves_no_gap(fake_nvml, host, eventually):
    """On an H200, a call took 0.33 s while `ncu` attached; other boards refuse for its time."""
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.gpm": ONE_BLOCK})
    collector = GpuCollector(host, GpuOptions(interval=0.02), None)
    collector.start()

    def exposed(name):
        collector.refresh_map()
        samples = {x.metric.name: x.samples for x in collector.collect()}
        return samples.get(f"batchjob_gpu_{name}_total", ())

    def profiled():
        return sum(value for _, value in exposed("profiled_seconds"))

    begun = time.monotonic()
    eventually(profiled)
    fake_nvml.set({"gpu0.nvmlGpmSampleGet.hangs": 1})
    time.sleep(0.33)
    before = profiled()  # answers, although the call goes on
    fake_nvml.drop("gpu0.nvmlGpmSampleGet.hangs")
    eventually(lambda: profiled() > before + 0.3)
    fake_nvml.set({"gpu0.nvmlGpmSampleGet.returns": 19})
    eventually(lambda: any('error="in_use"' in labels for labels, _ in exposed("errors")))
    before = profiled()
    fake_nvml.drop("gpu0.nvmlGpmSampleGet.returns")
    after = eventually(lambda: (now := profiled()) > before and now)
    assert after <= time.monotonic() - begun
    ((_, active),) = exposed("sm_active_seconds")
    assert active == pytest.approx(profiled() / 132, rel=0.05)
    collector.stop()


def second(began, instance="", **values):
    """A second of GPM, in which the GPU did nothing else."""
    activities = ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
    zeros = dict.fromkeys((f"{each}_seconds" for each in activities), 0.0)
    return ProfileSample(began, began + 1, instance, {"profiled_seconds": 1.0, **zeros, **values})


def divided(samples, held, gpu=GPU, lifetimes=None):
    """The sums of jobs; `held` are holdings by time, and jobs that ended."""
    counters = JobBusyCounters()
    reading = GpuReading(gpu, {}, {}, (), profile=tuple(samples))
    for now, holdings, lives in held:
        counters.update([reading], holdings, lives, now)
    return counters.sums


def holding(job, instance=None, gpu=GPU):
    return Holding(job, Unit(gpu, instance), "devices", 1.0, 1, confirmed=True)


def test_only_holder_gets_the_seconds_and_the_peak():
    lives = {ALICE: JobLifetime(100.0, None)}
    samples = [second(100.0, sm_active_seconds=0.25), second(101.0, sm_active_seconds=0.75)]
    held = [(102.0, [holding(ALICE)], lives), (140.0, [holding(ALICE)], lives)]
    (sums,) = divided(samples, held).values()
    assert sums["sm_active_seconds"] == 1.0
    assert sums["profiled_seconds"] == 2.0
    assert sums["sm_active_peak_ratio"] == 0.75


def test_several_holders_get_nothing():
    lives = {ALICE: JobLifetime(100.0, None), BOB: JobLifetime(100.0, None)}
    both = [holding(ALICE), holding(BOB)]
    assert not divided([second(100.0)], [(102.0, both, lives), (140.0, both, lives)])


def test_successor_gets_its_part_of_a_second_and_no_peak_of_it():
    lives = {ALICE: JobLifetime(90.0, 100.25), BOB: JobLifetime(100.25, None)}
    samples = [second(100.0, sm_active_seconds=1.0)]
    held = [
        (99.0, [holding(ALICE)], {ALICE: JobLifetime(90.0, None)}),
        (101.5, [holding(BOB)], lives),
        (140.0, [holding(BOB)], lives),
    ]
    found = divided(samples, held)
    assert found[ALICE, "GPU-0", ""]["profiled_seconds"] == 0.25
    assert found[BOB, "GPU-0", ""]["sm_active_seconds"] == 0.75
    assert "sm_active_peak_ratio" not in found[BOB, "GPU-0", ""]


def test_holder_of_an_instance_gets_its_seconds():
    instances = tuple(Instance(f"MIG-{n}", n, 0, "3g.40gb", 3.0) for n in (1, 2))
    gpu = Gpu("nvidia", 0, "GPU-0", 0, "", "H200", partitioned=True, instances=instances)
    lives = {ALICE: JobLifetime(100.0, None), BOB: JobLifetime(100.0, None)}
    held = [holding(ALICE, instances[0], gpu), holding(BOB, instances[1], gpu)]
    samples = [second(100.0, "1", sm_active_seconds=0.5), second(101.0, "2")]
    found = divided(samples, [(102.0, held, lives), (140.0, held, lives)], gpu)
    assert found[ALICE, "GPU-0", "1"]["sm_active_seconds"] == 0.5
    assert found[BOB, "GPU-0", "2"]["profiled_seconds"] == 1.0


def test_counters_go_on_after_a_restart(fake_nvml, host, tmp_path, eventually):
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot\n")
    host = replace(host, state=str(tmp_path))
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.gpm": ONE_BLOCK})

    def exposed(collector):
        collector.refresh_map()
        name = "batchjob_gpu_profiled_seconds_total"
        return [x for each in collector.collect() if each.metric.name == name for x in each.samples]

    first = GpuCollector(host, GpuOptions(interval=0.02), None)
    first.start()
    ((_, before),) = eventually(lambda: exposed(first))
    first.stop()
    second_run = GpuCollector(host, GpuOptions(interval=0.02), None)
    second_run.start()
    ((_, after),) = eventually(lambda: exposed(second_run))
    second_run.stop()
    assert after >= before

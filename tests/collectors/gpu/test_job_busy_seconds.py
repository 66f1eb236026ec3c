"""Busy seconds of jobs: who held the GPU in each sample of the driver."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.gpu.busy import BusyCounter, BusySample, UtilizationSample
from collectors.gpu.collector import GpuCollector, GpuOptions
from collectors.gpu.devices import Gpu, Unit
from collectors.gpu.holders import Holding
from collectors.gpu.job_busy import JobBusyCounters
from collectors.gpu.reading import GpuProcess, GpuReading
from collectors.jobs.view import JobHolder, JobLifetime, make_name
from tests.collectors.gpu.test_busy_seconds import NOW, recorded_samples
from tests.helpers.clock import Clock

FIXTURES = Path(__file__).parents[2] / "fixtures"
GPU = Gpu("nvidia", 0, "GPU-0", 0, "00000000:0B:00.0", "NVIDIA H200")

# Processes of known load that had the GPU for themselves: begin, end, seconds of kernels.
RECORDED_JOBS = {
    "0.2 s": (1795745440.627, 1795745441.075, 0.231),
    "1 s": (1795745444.667, 1795745446.008, 1.030),
    "40 of each 100 ms": (1795745264.939, 1795745273.178, 3.234),
    "one kernel": (1795745233.398, 1795745247.643, 14.031),
}


class Node:
    """A GPU that is busy all the time, and the jobs of a test on it."""

    def __init__(self):
        self.counters = JobBusyCounters()
        self.lifetimes = {}
        self.samples = ()
        self.mps = False
        self.confirmed = False

    def run(self, job, begin, end=None):
        self.lifetimes[make_name("slurm", job, "alice")] = JobLifetime(begin, end)

    def update(self, now, *holders, share=1.0):
        holdings = [
            Holding(
                make_name("slurm", each, "alice"),
                Unit(GPU),
                "prolog",
                share,
                confirmed=self.confirmed,
            )
            for each in holders
        ]
        processes = (GpuProcess(1, mps=self.mps),)
        reading = GpuReading(GPU, {}, {}, processes, busy_samples=tuple(self.samples))
        self.counters.update([reading], holdings, self.lifetimes, now)

    def sums(self, job):
        """Busy, observed, shared seconds, and those under MPS."""
        return pytest.approx(self.exact_sums(job))

    def exact_sums(self, job):
        sums = self.counters.sums[make_name("slurm", job, "alice"), GPU.uuid, ""]
        return [sums.get(f"{x}_seconds", 0) for x in ("busy", "observed", "shared", "mps")]

    def free(self, job):
        """Busy and observed seconds of the GPUs that nobody verifiably holds."""
        return pytest.approx(self.counters.free[make_name("slurm", job, "alice")])


@pytest.fixture
def node():
    """It is busy for 0.1 s of each 0.2 s from 100 to 110 s."""
    node = Node()
    node.samples = [BusySample(100 + n / 5, 100 + (n + 1) / 5, 0.1) for n in range(50)]
    return node


@pytest.mark.parametrize("name", RECORDED_JOBS)
def test_recorded_jobs_have_the_busy_seconds_of_their_load(node, name):
    begin, end, truth = RECORDED_JOBS[name]
    counter = BusyCounter()
    used = [
        UtilizationSample(at, (value + 0.5 * (0 < value < 100)) / 100)
        for at, value in recorded_samples()
        if begin - 10 < at / 1e6 < end + 10
    ]
    counter.add(used[:1], 1, end + 10)
    counter.add(used, 1, end + 10)
    node.samples = counter.recent
    node.run("1", begin)
    node.update(begin + 3, "1")
    node.run("1", begin, end)
    node.update(end + 1)
    node.update(end + 45)
    busy, observed, *rest = node.exact_sums("1")
    assert busy / (end - begin) == pytest.approx(truth / (end - begin), abs=0.02)
    assert observed == pytest.approx(end - begin, abs=0.4)
    assert rest == [0, 0]


def test_sample_at_the_border_of_a_lone_job_is_its_own(node):
    node.run("1", 102.1)
    node.update(104.0, "1")
    node.run("1", 102.1, 105.1)
    node.update(106.0)
    node.update(150.0)
    assert node.sums("1") == (1.6, 3.0, 0, 0)


def test_sample_of_two_jobs_in_turn_is_divided_by_time(node):
    node.run("1", 102.0)
    node.update(104.0, "1")
    node.run("1", 102.0, 105.1)
    node.run("2", 105.15)
    node.update(106.0, "2")
    node.update(150.0, "2")
    assert node.sums("1") == (1.55, 3.1, 0, 0)
    assert node.sums("2") == (2.425, 4.85, 0, 0)


def test_no_job_has_busy_seconds_of_a_time_that_it_shares(node):
    node.confirmed = True
    node.run("1", 100.0)
    node.update(104.0, "1")
    node.run("2", 106.0)
    node.update(109.0, "1", "2", share=0.5)
    node.update(150.0, "1", "2", share=0.5)
    assert node.sums("1") == (3.0, 6.0, 4.0, 0)
    assert node.sums("2") == (0, 0, 4.0, 0)


def test_processes_under_mps_have_no_busy_seconds(node):
    node.mps = True
    node.run("1", 100.0)
    for now in range(104, 151, 2):
        node.update(float(now), "1")
    assert node.sums("1") == (0, 0, 0, 10.0)


def test_job_found_late_has_its_own_seconds(node):
    node.run("1", 103.0)
    node.update(108.0)
    node.update(115.0, "1")
    node.update(150.0, "1")
    assert node.sums("1") == (3.5, 7.0, 0, 0)


def test_claim_that_others_contradict_takes_nothing_from_the_holder(node):
    node.run("1", 100.0)
    node.run("2", 100.0)
    node.update(104.0, "1")
    claim = Holding(make_name("slurm", "2", "eve"), Unit(GPU), "SLURM_JOB_GPUS", None, 0)
    holder = Holding(make_name("slurm", "1", "alice"), Unit(GPU), "prolog", 1.0)
    reading = GpuReading(GPU, {}, {}, (), busy_samples=tuple(node.samples))
    node.counters.update([reading], [holder, claim], node.lifetimes, 150.0)
    assert node.sums("1") == (5.0, 10.0, 0, 0)


def test_jobs_that_only_claim_a_gpu_have_no_busy_seconds_of_that_time(node):
    node.run("1", 100.0)
    node.run("2", 106.0)
    node.update(109.0, "1", "2", share=0.5)
    node.update(150.0, "1", "2", share=0.5)
    assert node.sums("1") == (3.0, 6.0, 0, 0)
    claimed = node.counters.sums[make_name("slurm", "1", "alice"), GPU.uuid, ""]["claimed_seconds"]
    assert claimed == pytest.approx(4.0)
    assert node.free("1") == (5.0, 10.0)


def test_who_only_names_a_gpu_takes_nothing_from_who_verifiably_holds_it(node):
    """The environment of job 2 names the GPU too, and job 1 is confirmed after five seconds."""
    node.run("1", 100.0)
    node.run("2", 100.0)
    node.update(104.0, "1", "2", share=0.5)
    owner = Holding(make_name("slurm", "1", "alice"), Unit(GPU), "prolog", 1.0, confirmed=True)
    reading = GpuReading(GPU, {}, {}, (), busy_samples=tuple(node.samples))
    for now in (105.0, 150.0):
        node.counters.update([reading], [owner], node.lifetimes, now)
    assert node.sums("1") == (5.0, 10.0, 0, 0)
    assert node.sums("2") == (0, 0, 5.0, 0)


def test_each_sample_is_given_once_and_a_removed_job_forgotten(node):
    node.run("1", 100.0)
    for second in range(104, 160):
        node.update(float(second), "1")
    assert node.sums("1") == (5.0, 10.0, 0, 0)
    node.lifetimes.clear()
    node.update(161.0)
    assert not node.counters.sums


class OneJob:
    """The holder of GPU 0, which ends when it is told to."""

    def __init__(self, started):
        self.name, self.started, self.ended = make_name("slurm", "7", "alice"), started, None

    def holders(self):
        environ = {"SLURM_JOB_GPUS": "0", "SLURM_JOB_NUM_NODES": "1"}
        return [] if self.ended else [JobHolder(self.name, 1000, (10,), (environ,), ())]

    def lifetimes(self):
        return {self.name: JobLifetime(self.started, self.ended)}


def test_ended_job_keeps_its_busy_seconds(fake_nvml, host, eventually):
    clock = Clock(NOW)  # also of the samples, which are thus never too old
    jobs = OneJob(NOW)
    fake_nvml.add_gpus(1)
    first = int(NOW * 1e6)
    fake_nvml.set({"gpu0.samples": f"{first}:0", "gpu0.process0": "10 5000 COMPUTE"})
    node = replace(host, clock=clock)
    collector = GpuCollector(node, GpuOptions(interval=0.02), jobs)

    def shown(name):
        found = [each for each in collector.collect() if each.metric.name == f"batchjob_{name}"]
        return [value for family in found for _, value in family.samples]

    collector.start()
    try:
        eventually(lambda: shown("gpu_observed_seconds_total") == [0])
        eventually(lambda: shown("job_gpu_observed_seconds_total") == [0])
        fake_nvml.set({"gpu0.samples": f"{first + 200_000}:49 {first + 400_000}:100"})
        eventually(lambda: shown("gpu_observed_seconds_total") == pytest.approx([0.4]))
        jobs.ended = NOW + 2
        eventually(lambda: shown("job_gpu_info") == [])
        clock.now = NOW + 40
        eventually(lambda: shown("job_gpu_observed_seconds_total") == pytest.approx([0.4]))
        assert shown("job_gpu_busy_seconds_total") == pytest.approx([0.299])
        assert shown("job_gpu_unobserved_seconds_total") == []
    finally:
        collector.stop()


def test_free_gpus_bound_the_use_of_those_that_cannot_be_identified(node):
    node.run("1", 102.0)
    node.run("2", 104.0, 106.0)
    node.update(103.0)
    node.update(131.9)  # nothing of job 1 is divided yet
    assert node.counters.free == {}
    for now in (132.1, 133.9, 134.1, 136.1, 150.0):
        node.update(now)
    assert node.free("1") == (4.1, 8.2)  # with the sample before its begin
    assert node.free("2") == (1.1, 2.2)


def test_gpu_that_another_job_verifiably_holds_is_not_free(node):
    node.run("1", 100.0)
    node.run("2", 100.0)
    node.update(104.0, "1")
    node.update(150.0, "1")
    assert node.free("2") == (5.0, 10.0)  # its environment alone names the GPU
    node = Node()
    node.samples = [BusySample(100 + n / 5, 100 + (n + 1) / 5, 0.1) for n in range(50)]
    node.confirmed = True
    node.run("1", 100.0)
    node.run("2", 100.0)
    node.update(104.0, "1")
    node.update(150.0, "1")
    assert node.free("2") == (0, 0)


def test_clock_that_is_set_back_takes_no_gpu_from_its_holder(node):
    later, node.confirmed = Node(), True
    later.counters, later.lifetimes, later.confirmed = node.counters, node.lifetimes, True
    node.run("1", 4000.0)
    node.run("2", 4000.0, 4010.0)
    later.update(4005.0, "1", "2")
    later.update(4015.0, "1")
    for now in (100.0, 105.0, 150.0):
        node.update(now, "1")
    assert node.sums("1") == (5.0, 10.0, 0, 0)
    assert node.counters.free_on_node == (0, 0)
    # In the hour that comes again, nobody holds the GPU that the other had then.
    later.samples = [BusySample(4005 + n / 5, 4005 + (n + 1) / 5, 0.1) for n in range(25)]
    later.update(4050.0, "1")
    assert node.sums("1") == (7.5, 15.0, 0, 0)


H100 = json.loads((FIXTURES / "nvml_samples" / "h100_loads.json").read_text())


@pytest.fixture(scope="module")
def h100():
    """The loads of a run on an H100, one after the other, as the exporter follows them."""
    node, counter, samples = Node(), BusyCounter(), H100["samples"]
    node.confirmed = True
    for now in range(int(samples[0][0] / 1e6) + 10, int(samples[-1][0] / 1e6) + 45, 2):
        new = [
            UtilizationSample(at, (percent + 0.5 if 1 <= percent <= 99 else percent) / 100)
            for at, percent in samples
            if (counter.last_stamp or 0) < at <= now * 1e6
        ]
        counter.add(new, 1, now)
        node.samples = counter.recent
        began = {name: load for name, load in H100["loads"].items() if load["began"] < now}
        holders = [name for name, load in began.items() if load["ended"] > now]
        node.mps = any(name.startswith("mps") for name in holders)
        for name, load in began.items():
            node.run(name, load["began"], None if name in holders else load["ended"])
        node.update(now, *holders)
    return node


@pytest.mark.parametrize(
    "name",
    # Not those of which the recording lacks half a second.
    ["duty33", "one_block", "loop", "fp16", "fp64", "duty82", "duty97",
     "dram", "three_seconds"],
)  # fmt: skip
def test_utilization_on_an_h100_is_that_of_the_load(h100, name):
    load = H100["loads"][name]
    busy, observed, *_ = h100.exact_sums(name)
    truth = load["busy"] / (load["ended"] - load["began"])
    assert busy / observed == pytest.approx(truth, abs=0.02)


def test_jobs_on_one_h100_at_a_time_have_no_utilization(h100):
    for name in ("shared_a", "shared_b", "mps_a", "mps_b"):
        load, (busy, _, shared, mps) = H100["loads"][name], h100.exact_sums(name)
        assert shared + mps == pytest.approx(load["ended"] - load["began"], abs=0.6)
        assert bool(shared) == name.startswith("shared")
        assert busy < 0.6, "at its border"

"""The collector as a whole: a driver, jobs, families, energy, files for dcgm-exporter."""

import pytest

from batchjob.runtime.settings import SettingsError, build_section
from collectors.gpu.collector import METRICS, GpuCollector, GpuOptions, build
from collectors.gpu.devices import GpuTable
from collectors.host import Host
from collectors.jobs.view import JobHolder, JobName
from collectors.metric import labels
from tests.helpers.waiting import scaled

GPU0 = "GPU-aaaaaaaa-0000-4000-8000-000000000000"


class SomeJobs:
    """A jobs collector with the holders that the test sets."""

    def __init__(self, *holders):
        self.current = list(holders)

    def usage(self):
        return []

    def lifetimes(self):
        return {}

    def holders(self):
        return list(self.current)


def job(jobid, user="alice", pids=(), **environ):
    name = JobName("slurm", jobid, user, labels(manager="slurm", jobid=jobid, user=user))
    return JobHolder(name, 1000, pids, (environ | {"SLURM_JOB_NUM_NODES": "1"},), ())


@pytest.fixture
def jobs():
    return SomeJobs(job("1", pids=(10,), SLURM_JOB_GPUS="0"))


@pytest.fixture
def start_collector(fake_nvml, host, jobs):
    collectors = []

    def build_and_start(interval=0.02, **options):
        collector = GpuCollector(host, GpuOptions(interval, **options), jobs)
        collectors.append(collector)
        collector.start()
        return collector

    yield build_and_start
    for each in collectors:
        each.stop()


def samples(collector, name):
    """Labels → value of one family."""
    found = [f for f in collector.collect() if f.metric.name == f"batchjob_{name}"]
    return {text: value for family in found for text, value in family.samples}


UNIT0 = f'gpu="0",uuid="{GPU0}",gpu_instance=""'
JOB1 = 'manager="slurm",jobid="1",user="alice"'


def test_metrics_of_a_gpu_and_its_job(fake_nvml, start_collector, eventually):
    fake_nvml.add_gpus(2)
    fake_nvml.set({"gpu0.process0": "10 5000 COMPUTE 4294967295 4294967295 40"})
    collector = start_collector()
    eventually(lambda: samples(collector, "job_gpu_memory_bytes"))
    assert samples(collector, "gpu_power_watts")[UNIT0] == 250
    assert samples(collector, "gpu_clock_hertz")[UNIT0 + ',clock="memory"'] == 2.619e9
    assert samples(collector, "gpu_processes")[UNIT0] == 1
    assert samples(collector, "gpu_driver_info") == {'vendor="nvidia",version="570.86.15"': 1}
    info = f'{UNIT0},pci_bus_id="00000000:0B:00.0",minor="0",name="NVIDIA H100 80GB HBM3"'
    assert samples(collector, "gpu_info")[f'{info},vendor="nvidia",profile="",mig_uuid=""'] == 1
    assert samples(collector, "job_gpu_info") == {
        f'{JOB1},gpu="0",uuid="{GPU0}",pci_bus_id="00000000:0B:00.0",minor="0",gpu_instance="",'
        'source="SLURM_JOB_GPUS",confirmed="true"': 1
    }
    assert samples(collector, "job_gpu_share_ratio") == {f"{JOB1},{UNIT0}": 1}
    assert samples(collector, "job_gpu_utilization_ratio") == {f"{JOB1},{UNIT0}": 0.5}
    assert samples(collector, "job_gpu_memory_bytes") == {f"{JOB1},{UNIT0}": 5000}
    assert samples(collector, "job_gpu_processes") == {f"{JOB1},{UNIT0}": 1}
    assert samples(collector, "gpu_reading_age_seconds")[f'gpu="0",uuid="{GPU0}"'] < scaled(5)


def test_energy_shares_follow_the_reading(fake_nvml, start_collector, jobs, eventually):
    fake_nvml.add_gpus(1)
    jobs.current = [job("2", pids=(20,))]
    collector = start_collector()
    eventually(collector.gpu_energy)
    collector.mapper.stop()
    fake_nvml.set({"gpu0.process0": "20 5000 COMPUTE"})
    eventually(lambda: [each.shares for each in collector.gpu_energy()] != [()])
    ((holding,),) = [each.shares for each in collector.gpu_energy()]
    assert (holding.job.jobid, holding.share) == ("2", 1)


def test_energy_shares_include_a_job_ended_after_the_reading(
    fake_nvml, start_collector, jobs, eventually
):
    fake_nvml.add_gpus(1)
    collector = start_collector(interval=60.0)
    (before,) = eventually(collector.gpu_energy)
    jobs.current = [job("3", pids=(30,), SLURM_JOB_GPUS="0")]
    collector.mapper.refresh()
    (after,) = collector.gpu_energy()
    assert after.at == before.at
    assert [each.job.jobid for each in after.shares] == ["1", "3"]
    assert samples(collector, "job_gpu_share_ratio") == {
        f'manager="slurm",jobid="3",user="alice",{UNIT0}': 1
    }


def test_collected_families_and_labels_are_declared(fake_nvml, start_collector, eventually):
    fake_nvml.add_gpus(1)
    fake_nvml.create_mig_instances(0, {0: {}})
    collector = start_collector()
    eventually(lambda: samples(collector, "gpu_power_watts"))
    for family in collector.collect():
        assert family.metric in METRICS
        for text, _ in family.samples:
            names = tuple(pair.split("=")[0] for pair in text.split(",") if "=" in pair)
            assert set(names) == set(family.metric.labels)


def test_ended_job_disappears_at_once(fake_nvml, start_collector, eventually, jobs):
    fake_nvml.add_gpus(1)
    collector = start_collector()
    eventually(lambda: samples(collector, "job_gpu_info"))
    jobs.current = []
    assert samples(collector, "job_gpu_info") == {}


def test_hanging_gpu_keeps_its_info_but_shows_no_old_values(
    fake_nvml, start_collector, eventually, clock
):
    fake_nvml.add_gpus(2)
    gpu0 = f'gpu="0",uuid="{GPU0}"'
    collector = start_collector()
    eventually(lambda: len(samples(collector, "gpu_power_watts")) == 2)
    eventually(lambda: samples(collector, "job_gpu_utilization_ratio"))
    fake_nvml.set({"gpu0.nvmlDeviceGetName.hangs": 1})
    eventually(lambda: samples(collector, "gpu_reading_age_seconds")[gpu0] > 0.5)  # it hangs
    clock.offset_seconds += 10
    eventually(lambda: len(samples(collector, "gpu_power_watts")) == 1)
    assert len(samples(collector, "gpu_info")) == 2
    eventually(lambda: not samples(collector, "job_gpu_utilization_ratio"))
    eventually(lambda: len(samples(collector, "job_gpu_info")) == 1)
    assert samples(collector, "gpu_reading_age_seconds")[gpu0] > 9
    fake_nvml.drop("gpu0.nvmlDeviceGetName.hangs")
    eventually(lambda: len(samples(collector, "gpu_power_watts")) == 2)


def test_recreated_mig_instances_are_found(fake_nvml, start_collector, eventually, jobs):
    fake_nvml.add_gpus(1)
    fake_nvml.create_mig_instances(0, {0: {"uuid": "MIG-a1"}})
    jobs.current = [job("1", CUDA_VISIBLE_DEVICES="MIG-a1")]
    collector = start_collector()
    eventually(lambda: samples(collector, "job_gpu_info"))
    fake_nvml.create_mig_instances(
        0, {0: {"uuid": "MIG-b1", "gpu_instance": 5}, 1: {"uuid": "MIG-b2"}}
    )
    jobs.current = [job("2", CUDA_VISIBLE_DEVICES="MIG-b1,MIG-b2")]
    both = {'gpu_instance="5"', 'gpu_instance="2"'}
    eventually(
        lambda: both == {at.split(",")[-1] for at in samples(collector, "job_gpu_share_ratio")}
    )


def test_gpu_table_is_rebuilt_only_when_devices_change(fake_nvml, start_collector, eventually):
    fake_nvml.add_gpus(1)
    collector = start_collector()
    eventually(lambda: samples(collector, "job_gpu_info"))
    table = collector.table
    collector.refresh_map()
    assert collector.table is table
    fake_nvml.create_mig_instances(0, {0: {}})
    eventually(lambda: collector.table is not table)


def test_lasting_disagreement_is_counted_once(fake_nvml, start_collector, eventually, jobs):
    fake_nvml.add_gpus(1)
    jobs.current = [job("1", SLURM_JOB_GPUS="0,8,9")]
    collector = start_collector()
    eventually(lambda: samples(collector, "job_gpu_info"))
    for _ in range(3):
        collector.refresh_map()
    counts = samples(collector, "gpu_map_disagreements_total")
    assert counts['kind="unknown_gpu"'] == 1
    assert counts['kind="overlap"'] == 0


def test_energy_is_attributed_to_the_holder(fake_nvml, start_collector, eventually):
    fake_nvml.add_gpus(2)
    collector = start_collector()
    eventually(lambda: len(collector.gpu_energy()) == 2 and samples(collector, "job_gpu_info"))
    first, second = collector.gpu_energy()
    assert (first.uuid, first.joules) == (GPU0, 5000)
    (holding,) = first.shares
    assert (holding.job.jobid, holding.share, holding.activity) == ("1", 1.0, 0.5)
    assert second.shares == ()


def test_energy_of_mig_instances_is_shared_by_slices(fake_nvml, start_collector, eventually, jobs):
    fake_nvml.add_gpus(1)
    fake_nvml.create_mig_instances(0, {0: {"uuid": "MIG-a1"}, 1: {"uuid": "MIG-a2"}})
    jobs.current = [
        job("1", CUDA_VISIBLE_DEVICES="MIG-a1"),
        job("2", CUDA_VISIBLE_DEVICES="MIG-a2"),
    ]
    collector = start_collector()
    eventually(lambda: samples(collector, "job_gpu_info"))
    (reading,) = collector.gpu_energy()
    assert [(h.job.jobid, h.share) for h in reading.shares] == [("1", 3 / 7), ("2", 3 / 7)]


def test_energy_is_integrated_from_power_without_a_counter(fake_nvml, start_collector, eventually):
    fake_nvml.add_gpus(1)
    fake_nvml.drop("gpu0.energy")
    collector = start_collector()
    eventually(lambda: collector.gpu_energy() and collector.gpu_energy()[0].joules > 1)
    assert samples(collector, "gpu_energy_joules_total")[UNIT0] > 1


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("job-files", "jobs", "absolute path"),
        ("slurm-numbers", "pci", "one of index, minor"),
        ("interval", "often", "duration"),
    ],
)
def test_invalid_options_are_reported(name, value, expected):
    with pytest.raises(SettingsError, match=rf"collector\.gpu\.{name}: .*{expected}"):
        build_section(GpuOptions, "collector.gpu", {f"collector.gpu.{name}": value})


def test_node_without_gpus_shows_nothing(tmp_path):
    collector = build(Host(procfs=str(tmp_path), sysfs=str(tmp_path)), GpuOptions(), {})
    collector.start()
    try:
        assert collector.collect() == []
        assert collector.gpu_energy() == []
    finally:
        collector.stop()


def test_empty_gpu_table_finds_nothing():
    assert GpuTable(()).by_name("GPU-1") == ()

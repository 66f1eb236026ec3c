"""The collector as a whole: a driver, jobs, families, energy, files for dcgm-exporter."""

import time

import pytest

from batchjob.runtime.settings import SettingsError, build_section
from collectors.gpu.collector import METRICS, GpuCollector, GpuOptions, build
from collectors.gpu.dcgm_files import JobFiles
from collectors.gpu.devices import Gpu, GpuTable, Unit
from collectors.gpu.holders import Holding
from collectors.host import Host
from collectors.jobs.view import JobHolder, JobName
from collectors.metric import labels
from collectors.power.meter import GpuEnergySource

GPU0 = "GPU-aaaaaaaa-0000-4000-8000-000000000000"


class SomeJobs:
    """A jobs collector that says what the test tells it."""

    def __init__(self, *holders):
        self.now = list(holders)

    def usage(self):
        return []

    def holders(self):
        return list(self.now)


def job(jobid, user="alice", pids=(), **environ):
    name = JobName("slurm", jobid, user, labels(manager="slurm", jobid=jobid, user=user))
    return JobHolder(name, 1000, pids, (environ | {"SLURM_JOB_NUM_NODES": "1"},), ())


@pytest.fixture
def jobs():
    return SomeJobs(job("1", pids=(10,), SLURM_JOB_GPUS="0"))


@pytest.fixture
def start(fake, host, jobs):
    running = []

    def begin(interval=0.02, **options):
        collector = GpuCollector(host, GpuOptions(interval, **options), jobs)
        running.append(collector)
        collector.start()
        return collector

    yield begin
    for each in running:
        each.stop()


def samples(collector, name):
    """Labels → value of one family."""
    found = [f for f in collector.collect() if f.metric.name == f"batchjob_{name}"]
    return {text: value for family in found for text, value in family.samples}


UNIT0 = f'gpu="0",uuid="{GPU0}",gpu_instance=""'
JOB1 = 'manager="slurm",jobid="1",user="alice"'


def test_families_of_a_gpu_and_its_job(fake, start, eventually):
    fake.gpus(2)
    fake.set({"gpu0.process0": "10 5000 COMPUTE 4294967295 4294967295 40"})
    collector = start()
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
    assert samples(collector, "gpu_reading_age_seconds")[f'gpu="0",uuid="{GPU0}"'] < 5


def test_energy_has_the_holders_of_the_moment_of_its_reading(fake, start, jobs, eventually):
    fake.gpus(1)
    jobs.now = [job("2", pids=(20,))]
    collector = start()
    eventually(collector.gpu_energy)
    collector.mapper.stop()
    fake.set({"gpu0.process0": "20 5000 COMPUTE"})
    eventually(lambda: [each.shares for each in collector.gpu_energy()] != [()])
    ((holding,),) = [each.shares for each in collector.gpu_energy()]
    assert (holding.job.jobid, holding.share) == ("2", 1)


def test_a_job_that_ends_after_the_reading_held_the_gpu_until_then(fake, start, jobs, eventually):
    fake.gpus(1)
    collector = start(interval=60.0)
    (before,) = eventually(collector.gpu_energy)
    jobs.now = [job("3", pids=(30,), SLURM_JOB_GPUS="0")]
    collector.mapper.refresh()
    (after,) = collector.gpu_energy()
    assert after.at == before.at
    assert [each.job.jobid for each in after.shares] == ["3", "1"]
    assert samples(collector, "job_gpu_share_ratio") == {
        f'manager="slurm",jobid="3",user="alice",{UNIT0}': 1
    }


def test_what_is_shown_is_in_the_table(fake, start, eventually):
    fake.gpus(1)
    fake.mig(0, {0: {}})
    collector = start()
    eventually(lambda: samples(collector, "gpu_power_watts"))
    for family in collector.collect():
        assert family.metric in METRICS
        for text, _ in family.samples:
            names = tuple(pair.split("=")[0] for pair in text.split(",") if "=" in pair)
            assert set(names) == set(family.metric.labels)


def test_a_job_that_has_ended_is_gone_at_once(fake, start, eventually, jobs):
    fake.gpus(1)
    collector = start()
    eventually(lambda: samples(collector, "job_gpu_info"))
    jobs.now = []
    assert samples(collector, "job_gpu_info") == {}


def test_a_gpu_that_hangs_keeps_its_names_and_shows_no_old_values(fake, start, eventually, clock):
    fake.gpus(2)
    collector = start()
    eventually(lambda: len(samples(collector, "gpu_power_watts")) == 2)
    eventually(lambda: samples(collector, "job_gpu_utilization_ratio"))
    fake.set({"gpu0.nvmlDeviceGetName.hangs": 1})
    time.sleep(0.1)
    clock.ahead += 10
    eventually(lambda: len(samples(collector, "gpu_power_watts")) == 1)
    assert len(samples(collector, "gpu_info")) == 2
    eventually(lambda: not samples(collector, "job_gpu_utilization_ratio"))
    eventually(lambda: len(samples(collector, "job_gpu_info")) == 1)
    assert samples(collector, "gpu_reading_age_seconds")[f'gpu="0",uuid="{GPU0}"'] > 9
    fake.drop("gpu0.nvmlDeviceGetName.hangs")
    eventually(lambda: len(samples(collector, "gpu_power_watts")) == 2)


def test_instances_made_anew_under_way(fake, start, eventually, jobs):
    fake.gpus(1)
    fake.mig(0, {0: {"uuid": "MIG-a1"}})
    jobs.now = [job("1", CUDA_VISIBLE_DEVICES="MIG-a1")]
    collector = start()
    eventually(lambda: samples(collector, "job_gpu_info"))
    fake.mig(0, {0: {"uuid": "MIG-b1", "gpu_instance": 5}, 1: {"uuid": "MIG-b2"}})
    jobs.now = [job("2", CUDA_VISIBLE_DEVICES="MIG-b1,MIG-b2")]
    held = eventually(lambda: samples(collector, "job_gpu_share_ratio"))
    assert {text.split(",")[-1] for text in held} == {'gpu_instance="5"', 'gpu_instance="2"'}


def test_the_table_is_made_anew_only_when_devices_change(fake, start, eventually):
    fake.gpus(1)
    collector = start()
    eventually(lambda: samples(collector, "job_gpu_info"))
    table = collector.table
    collector.refresh_map()
    assert collector.table is table
    fake.mig(0, {0: {}})
    eventually(lambda: collector.table is not table)


def test_a_disagreement_is_counted_once_while_it_lasts(fake, start, eventually, jobs):
    fake.gpus(1)
    jobs.now = [job("1", SLURM_JOB_GPUS="0,8,9")]
    collector = start()
    eventually(lambda: samples(collector, "job_gpu_info"))
    for _ in range(3):
        collector.refresh_map()
    counts = samples(collector, "gpu_map_disagreements_total")
    assert counts['kind="unknown_gpu"'] == 1
    assert counts['kind="overlap"'] == 0


def test_the_energy_collector_knows_it(host):
    assert isinstance(build(host, GpuOptions(), {}), GpuEnergySource)


def test_energy_goes_to_the_holder(fake, start, eventually):
    fake.gpus(2)
    collector = start()
    eventually(lambda: len(collector.gpu_energy()) == 2 and samples(collector, "job_gpu_info"))
    first, second = collector.gpu_energy()
    assert (first.uuid, first.joules) == (GPU0, 5000)
    (holding,) = first.shares
    assert (holding.job.jobid, holding.share, holding.activity) == ("1", 1.0, 0.5)
    assert second.shares == ()


def test_energy_of_instances_is_held_by_slices(fake, start, eventually, jobs):
    fake.gpus(1)
    fake.mig(0, {0: {"uuid": "MIG-a1"}, 1: {"uuid": "MIG-a2"}})
    jobs.now = [job("1", CUDA_VISIBLE_DEVICES="MIG-a1"), job("2", CUDA_VISIBLE_DEVICES="MIG-a2")]
    collector = start()
    eventually(lambda: samples(collector, "job_gpu_info"))
    (reading,) = collector.gpu_energy()
    assert [(h.job.jobid, h.share) for h in reading.shares] == [("1", 3 / 7), ("2", 3 / 7)]


def test_energy_is_integrated_where_it_is_not_counted(fake, start, eventually):
    fake.gpus(1)
    fake.drop("gpu0.energy")
    collector = start()
    eventually(lambda: collector.gpu_energy() and collector.gpu_energy()[0].joules > 1)
    assert samples(collector, "gpu_energy_joules_total")[UNIT0] > 1


def test_files_for_dcgm_exporter(fake, start, eventually, jobs, tmp_path):
    fake.gpus(2)
    fake.mig(1, {0: {"uuid": "MIG-a1"}})
    jobs.now = [
        job("1", SLURM_SHARDS_ON_NODE="1", CUDA_VISIBLE_DEVICES=GPU0),
        job("2", CUDA_VISIBLE_DEVICES=f"{GPU0},MIG-a1"),
    ]
    directory = tmp_path / "jobs"
    directory.mkdir()
    (directory / "7").write_text("somebody else's\n")
    collector = start(write_job_files=str(directory))

    def contents():
        return {p.name: p.read_text() for p in directory.iterdir() if not p.name.startswith(".")}

    full = {"0": "1\n2\n", "1.1": "2\n", "7": "somebody else's\n"}
    eventually(lambda: contents() == full)
    jobs.now = jobs.now[:1]
    eventually(lambda: contents() == full | {"0": "1\n", "1.1": ""})
    collector.stop()
    assert contents() == {"7": "somebody else's\n"}
    assert [path.name for path in directory.iterdir()] == ["7"]


def test_a_prolog_s_file_for_the_same_gpu_is_left_alone(fake, start, eventually, jobs, tmp_path):
    fake.gpus(2)
    (tmp_path / "0").write_text("prolog's\n")
    jobs.now = [job("1", SLURM_JOB_GPUS="0,1")]
    collector = start(write_job_files=str(tmp_path))
    eventually(lambda: (tmp_path / "1").exists() and (tmp_path / "1").read_text() == "1\n")
    collector.stop()
    assert (tmp_path / "0").read_text() == "prolog's\n"
    assert not (tmp_path / "1").exists()


def test_files_of_an_exporter_that_was_killed_are_its_own(fake, start, eventually, tmp_path):
    fake.gpus(2)
    killed = JobFiles(str(tmp_path))
    unit = Unit(Gpu("nvidia", 1, "GPU-1", 1, "", ""))
    killed.write([Holding(job("77").name, unit, "process", 1.0)])
    assert (tmp_path / "1").read_text() == "77\n"
    start(write_job_files=str(tmp_path))
    eventually(lambda: (tmp_path / "1").read_text() == "")


def test_what_a_prolog_wrote_meanwhile_is_left_alone(fake, start, eventually, tmp_path):
    fake.gpus(1)
    collector = start(write_job_files=str(tmp_path / "jobs"))
    eventually((tmp_path / "jobs/0").exists)
    collector.mapper.stop()
    (tmp_path / "jobs/0").write_text("prolog's\n")
    collector.stop()
    assert (tmp_path / "jobs/0").read_text() == "prolog's\n"


def test_a_directory_that_cannot_be_written_costs_nothing_else(fake, start, eventually, tmp_path):
    fake.gpus(1)
    (tmp_path / "file").write_text("")
    collector = start(write_job_files=str(tmp_path / "file"))
    eventually(lambda: samples(collector, "job_gpu_info"))


def test_own_files_are_not_read_as_a_prolog_s(host):
    options = GpuOptions(job_files="/run/jobs", write_job_files="/run/../run/jobs")
    with pytest.raises(SettingsError, match="expected another directory"):
        build(host, options, {})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("position", ["first"], "index:N"),
        ("job-files", "jobs", "absolute path"),
        ("slurm-numbers", "pci", "one of index, minor"),
        ("interval", "often", "duration"),
    ],
)
def test_wrong_options_are_named(name, value, expected):
    with pytest.raises(SettingsError, match=rf"collector\.gpu\.{name}: .*{expected}"):
        build_section(GpuOptions, "collector.gpu", {f"collector.gpu.{name}": value})


@pytest.mark.parametrize("given", ["index:0", "minor:12", GPU0, "MIG-GPU-1a/2/0", "0000:3b:00.0"])
def test_gpus_as_sites_write_them(given):
    options = build_section(GpuOptions, "collector.gpu", {"collector.gpu.position": [given]})
    assert options.position == (given,)


def test_a_node_without_gpus(tmp_path):
    collector = build(Host(procfs=str(tmp_path), sysfs=str(tmp_path)), GpuOptions(), {})
    collector.start()
    try:
        assert collector.collect() == []
        assert collector.gpu_energy() == []
    finally:
        collector.stop()


def test_an_empty_table():
    assert GpuTable(()).by_name("GPU-1") == ()

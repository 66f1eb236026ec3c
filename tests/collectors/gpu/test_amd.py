"""AMD GPUs from a sysfs as the amdgpu driver lays it out."""

from pathlib import Path

import pytest

from collectors.gpu import amd
from collectors.gpu.collector import GpuCollector, GpuOptions
from collectors.gpu.metrics import (
    CLOCK,
    ECC,
    ENERGY,
    MEMORY_TEMPERATURE,
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    POWER_LIMIT,
    TEMPERATURE,
    UTILIZATION,
)
from collectors.gpu.reading import GpuProcess
from collectors.host import Host
from collectors.jobs.view import JobHolder, JobName
from collectors.metric import labels

CARD = {
    "vendor": "0x1002",
    "unique_id": "9f1c2a4b5d6e7f80",
    "product_name": "AMD Instinct MI210",
    "gpu_busy_percent": "73",
    "mem_info_vram_used": "1073741824",
    "mem_info_vram_total": "68702699520",
    "hwmon/hwmon5/power1_average": "215000000",
    "hwmon/hwmon5/power1_cap": "300000000",
    "hwmon/hwmon5/energy1_input": "5000000",
    "hwmon/hwmon5/temp1_label": "edge",
    "hwmon/hwmon5/temp1_input": "45000",
    "hwmon/hwmon5/temp2_label": "junction",
    "hwmon/hwmon5/temp2_input": "52000",
    "hwmon/hwmon5/temp3_label": "mem",
    "hwmon/hwmon5/temp3_input": "60000",
    "hwmon/hwmon5/freq1_label": "sclk",
    "hwmon/hwmon5/freq1_input": "1700000000",
    "hwmon/hwmon5/freq2_label": "mclk",
    "hwmon/hwmon5/freq2_input": "1600000000",
    "ras/umc_err_count": "ue: 1\nce: 12",
}


class AmdSysfs:
    """A sysfs tree to which AMD cards are added."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add_card(self, number, address, render, files=CARD):
        device = self.root / "devices/pci0000:c0" / address
        driver = self.root / "bus/pci/drivers/amdgpu"
        driver.mkdir(parents=True, exist_ok=True)
        (device / "drm" / f"renderD{render}").mkdir(parents=True)
        (device / "driver").symlink_to(driver)
        for name, text in files.items():
            (device / name).parent.mkdir(parents=True, exist_ok=True)
            (device / name).write_text(text + "\n")
        (self.root / "class/drm" / f"card{number}").mkdir(parents=True)
        (self.root / "class/drm" / f"card{number}" / "device").symlink_to(device)
        (self.root / "class/drm" / f"card{number}-DP-1").mkdir()
        return device

    def add_kfd_node(self, node, gpu_id, location, vram):
        root = self.root / "class/kfd/kfd"
        (root / "topology/nodes" / str(node)).mkdir(parents=True)
        (root / "topology/nodes" / str(node) / "gpu_id").write_text(f"{gpu_id}\n")
        text = f"cpu_cores_count 0\nlocation_id {location}\ndomain 0\n"
        (root / "topology/nodes" / str(node) / "properties").write_text(text)
        (root / "proc").mkdir(exist_ok=True)
        for pid, used in vram.items():
            (root / "proc" / str(pid)).mkdir(exist_ok=True)
            (root / "proc" / str(pid) / f"vram_{gpu_id}").write_text(f"{used}\n")


@pytest.fixture
def amd_sysfs(tmp_path):
    return AmdSysfs(tmp_path / "sys")


@pytest.fixture
def host(tmp_path):
    return Host(procfs=str(tmp_path / "proc"), sysfs=str(tmp_path / "sys"))


def read(host, index=0):
    return amd.read(host, amd.find_cards(host)[index], index)


def test_card_is_identified(amd_sysfs, host):
    amd_sysfs.add_card(1, "0000:c1:00.0", 129)
    gpu = read(host).gpu
    assert (gpu.vendor, gpu.index, gpu.minor) == ("amd", 0, 129)
    assert (gpu.uuid, gpu.pci_bus_id) == ("GPU-9f1c2a4b5d6e7f80", "00000000:C1:00.0")
    assert gpu.name == "AMD Instinct MI210"


def test_values_are_in_base_units(amd_sysfs, host):
    amd_sysfs.add_card(0, "0000:c1:00.0", 128)
    assert read(host).values == pytest.approx(
        {
            UTILIZATION: 0.73,
            MEMORY_USED: 2**30,
            MEMORY_TOTAL: 68702699520,
            POWER: 215,
            POWER_LIMIT: 300,
            ENERGY: 5,
            TEMPERATURE: 45,
            MEMORY_TEMPERATURE: 60,
            CLOCK["graphics"]: 1.7e9,
            CLOCK["memory"]: 1.6e9,
            ECC["corrected"]: 12,
            ECC["uncorrected"]: 1,
        }
    )


@pytest.mark.parametrize("name", CARD)
@pytest.mark.parametrize("text", [None, "", "N/A"])
def test_any_file_may_be_missing_or_empty(amd_sysfs, host, name, text):
    device = amd_sysfs.add_card(0, "0000:c1:00.0", 128)
    if text is None:
        (device / name).unlink()
    else:
        (device / name).write_text(text)
    found = amd.find_cards(host)
    if name == "vendor":
        assert found == []
    else:
        all_values = 12
        assert all_values - 2 <= len(amd.read(host, found[0], 0).values) <= all_values


def test_card_without_unique_id_is_identified_by_its_address(amd_sysfs, host):
    amd_sysfs.add_card(0, "0000:c1:00.0", 128, CARD | {"unique_id": "0"})
    assert read(host).gpu.uuid == "0000:c1:00.0"


def test_amd_cards_are_ordered_by_pci_address(amd_sysfs, host):
    amd_sysfs.add_card(2, "0000:41:00.0", 130)
    amd_sysfs.add_card(0, "0000:c1:00.0", 128)
    amd_sysfs.add_card(1, "0000:05:00.0", 129, {"vendor": "0x10de"})
    assert [card.address for card in amd.find_cards(host)] == ["0000:41:00.0", "0000:c1:00.0"]


def test_processes_are_read_from_kfd(amd_sysfs, host):
    amd_sysfs.add_card(0, "0000:c1:00.0", 128)
    assert read(host).processes is None
    amd_sysfs.add_kfd_node(1, 4711, 0xC1 << 8, {10: 2**20, 11: 0})
    assert read(host).processes == (GpuProcess(10, 2**20), GpuProcess(11, 0))


def test_removed_card_raises_os_error(amd_sysfs, host):
    device = amd_sysfs.add_card(0, "0000:c1:00.0", 128)
    (card,) = amd.find_cards(host)
    device.rename(device.with_name("gone"))
    with pytest.raises(OSError, match="No such file"):
        amd.read(host, card, 0)


def energies_once_held(collector):
    """Energies of both GPUs once one is held; on a slow machine, a reading may be too old."""
    energies = collector.gpu_energy()
    return energies if len(energies) == 2 and any(each.shares for each in energies) else None


def test_job_holds_its_amd_gpu(amd_sysfs, host, eventually):
    amd_sysfs.add_card(0, "0000:c1:00.0", 128)
    amd_sysfs.add_card(1, "0000:c5:00.0", 129, CARD | {"unique_id": "1f1c2a4b5d6e7f81"})
    amd_sysfs.add_kfd_node(1, 4711, 0xC5 << 8, {10: 2**20})
    name = JobName("slurm", "1", "alice", labels(manager="slurm", jobid="1", user="alice"))
    environ = {"SLURM_JOB_GPUS": "1", "SLURM_JOB_NUM_NODES": "1", "ROCR_VISIBLE_DEVICES": "0"}

    class OneJob:
        def lifetimes(self):
            return {}

        def holders(self):
            return [JobHolder(name, 1000, (10,), (environ,), ())]

    collector = GpuCollector(host, GpuOptions(interval=0.02), OneJob())
    collector.start()
    try:
        shown = eventually(
            lambda: {
                f.metric.name: f.samples
                for f in collector.collect()
                if f.metric.name.startswith("batchjob_job_gpu")
            }
        )
        first, second = eventually(lambda: energies_once_held(collector))
    finally:
        collector.stop()
    assert 'gpu="1",uuid="GPU-1f1c2a4b5d6e7f81"' in shown["batchjob_job_gpu_info"][0][0]
    assert (first.joules, first.shares) == (5.0, ())
    assert [(h.job.jobid, h.share) for h in second.shares] == [("1", 1.0)]


class JobsOnGpus:
    """Jobs of Slurm, each with the numbers of its GPUs."""

    def __init__(self, **numbers):
        self.numbers = numbers

    def lifetimes(self):
        return {}

    def holders(self):
        return [
            JobHolder(
                JobName("slurm", job, "alice", labels(manager="slurm", jobid=job, user="alice")),
                1000,
                (),
                ({"SLURM_JOB_GPUS": gpus, "SLURM_JOB_NUM_NODES": "1"},),
                (),
            )
            for job, gpus in self.numbers.items()
        ]


def die(watts, unique_id):
    """A die of an MI250 without a counter of energy."""
    files = CARD | {"unique_id": unique_id, "product_name": "AMD Instinct MI250X"}
    del files["hwmon/hwmon5/energy1_input"]
    return files | {"hwmon/hwmon5/power1_average": f"{watts}000000"}


@pytest.fixture
def started(host):
    """Starts a collector for jobs and stops it at the end."""
    collectors = []

    def start(jobs):
        collectors.append(GpuCollector(host, GpuOptions(interval=0.02), jobs))
        collectors[-1].start()
        return collectors[-1]

    yield start
    for each in collectors:
        each.stop()


@pytest.mark.parametrize("watts", [(400, 0), (0, 400)])
def test_two_dies_share_the_meter_of_their_card(amd_sysfs, started, eventually, watts):
    for number, each in enumerate(watts):
        amd_sysfs.add_card(
            number, f"0000:c{number}:00.0", 128 + number, die(each, f"aaaa{number + 1}")
        )
    collector = started(JobsOnGpus(a="0", b="1"))
    energies = eventually(
        lambda: [each for each in collector.gpu_energy() if len(each.shares) == 2]
    )
    (energy,) = energies
    assert {each.job.jobid: each.share for each in energy.shares} == {"a": 0.5, "b": 0.5}
    power = {
        labels
        for family in collector.collect()
        if family.metric.name == "batchjob_gpu_power_watts"
        for labels, _ in family.samples
    }
    assert len(power) == 1  # 0 W is not a reading


def test_die_without_a_meter_has_no_energy_if_its_card_is_not_known(amd_sysfs, host):
    for number, watts in enumerate((300, 0, 310, 320)):
        amd_sysfs.add_card(
            number, f"0000:c{number}:00.0", 128 + number, die(watts, f"aaaa{number + 1}")
        )
    readings = [read(host, index) for index in range(4)]
    assert amd.shared_meters(readings) == {}
    assert amd.shared_meters(readings[:2]) == {"GPU-aaaa2": "GPU-aaaa1"}
    assert POWER not in readings[1].values


def add_partitioned_card(amd_sysfs, number, address, unique_id, partitions):
    """An MI300 in CPX mode: a card of its own, and one of a platform device for each partition."""
    files = CARD | {"unique_id": unique_id, "current_compute_partition": "CPX"}
    amd_sysfs.add_card(number, address, 128 + number, files)
    for other in range(number + 1, number + partitions):
        device = amd_sysfs.root / "devices/platform" / f"amdgpu_xcp_{other}"
        device.mkdir(parents=True)
        (amd_sysfs.root / "class/drm" / f"card{other}").mkdir(parents=True)
        (amd_sysfs.root / "class/drm" / f"card{other}" / "device").symlink_to(device)


def test_number_of_a_partition_is_not_that_of_a_card(amd_sysfs, host, started, eventually):
    add_partitioned_card(amd_sysfs, 1, "0000:05:00.0", "bbbb1", 8)
    add_partitioned_card(amd_sysfs, 9, "0000:26:00.0", "bbbb2", 8)
    assert [card.partitions for card in amd.find_cards(host)] == [8, 8]
    collector = started(JobsOnGpus(a="1", b="9", c="16"))
    held = eventually(
        lambda: {
            each.job.jobid: (each.unit.gpu.uuid, each.unit.gpu_instance, each.unit.fraction)
            for each, _ in collector.holdings()
        }
    )
    assert held == {"a": ("GPU-bbbb1", "1", 1 / 8), "b": ("GPU-bbbb2", "1", 1 / 8)}
    expected = {"a": 1 / 8, "b": 1 / 8}  # once both cards have been read
    eventually(
        lambda: (
            {s.job.jobid: s.share for each in collector.gpu_energy() for s in each.shares}
            == expected
        )
    )
    assert UTILIZATION not in read(host).values  # of which partition it is, is not known

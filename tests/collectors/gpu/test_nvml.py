"""Reading NVIDIA GPUs through pynvml and a fake NVML library."""

from collections import Counter

import pytest

from collectors.gpu import nvml
from collectors.gpu.metrics import (
    CLOCK,
    ECC,
    ENERGY,
    MEMORY_TEMPERATURE,
    MEMORY_TOTAL,
    MEMORY_USED,
    NVLINK,
    POWER,
    POWER_LIMIT,
    QUANTITIES,
    TEMPERATURE,
    THROTTLED,
    UTILIZATION,
)
from collectors.gpu.nvml_errors import GONE
from collectors.gpu.reading import GpuProcess


@pytest.fixture
def pynvml(fake_nvml):
    import pynvml

    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


@pytest.fixture
def errors():
    return Counter()


@pytest.fixture
def read(pynvml, errors):
    return lambda index=0: nvml.read(pynvml, index, 0, errors)


def test_gpu_is_identified(fake_nvml, read):
    fake_nvml.add_gpus(2)
    gpu = read(1).gpu
    assert (gpu.index, gpu.minor, gpu.name) == (1, 1, "NVIDIA H100 80GB HBM3")
    assert gpu.uuid == "GPU-aaaaaaaa-0000-4000-8000-000000000001"
    assert gpu.pci_bus_id == "00000000:1B:00.0"


def test_quantities_are_in_base_units(fake_nvml, read, errors):
    fake_nvml.add_gpus(1)
    values = read().values
    assert values[UTILIZATION] == 0.5
    assert values[MEMORY_USED] == 1e9
    assert values[MEMORY_TOTAL] == 80e9
    assert values[POWER] == 250
    assert values[POWER_LIMIT] == 700
    assert values[ENERGY] == 5000
    assert values[TEMPERATURE] == 40
    assert values[MEMORY_TEMPERATURE] == 45
    assert values[CLOCK["sm"]] == 1.98e9
    assert values[CLOCK["memory"]] == 2.619e9
    assert values[ECC["corrected"]] == 3
    assert values[ECC["uncorrected"]] == 0
    assert values[THROTTLED["power"]] == 2.5
    assert values[NVLINK["transmit"]] == 10 * 1024
    assert not errors


def test_utilization_is_the_mean_of_samples_since_the_last_reading(fake_nvml, pynvml, errors):
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.samples": "1000000:80 1200000:0 1400000:10 1600000:50 1800000:101"})
    assert nvml.read(pynvml, 0, 1_100_000, errors).values[UTILIZATION] == pytest.approx(0.2)
    assert nvml.read(pynvml, 0, 2_000_000, errors).values[UTILIZATION] == 0.5, "the momentary one"
    assert not errors


_KEYS = {
    UTILIZATION: ("utilization",),
    MEMORY_USED: ("memory.used",),
    MEMORY_TOTAL: ("memory.total",),
    POWER: ("power",),
    POWER_LIMIT: ("power_limit",),
    ENERGY: ("energy",),
    TEMPERATURE: ("temperature",),
    MEMORY_TEMPERATURE: ("field82",),
    CLOCK["sm"]: ("clock1",),
    ECC["corrected"]: ("ecc0.1",),
    THROTTLED["power"]: ("field74",),
    NVLINK["receive"]: ("field139",),
}


@pytest.mark.parametrize("quantity", _KEYS, ids=lambda quantity: quantity.metric.name)
def test_any_single_quantity_may_be_unsupported(fake_nvml, read, errors, quantity):
    fake_nvml.add_gpus(1)
    everything = set(read().values)
    fake_nvml.drop(*(f"gpu0.{key}" for key in _KEYS[quantity]))
    missing = everything - set(read().values)
    assert quantity in missing
    assert missing <= {quantity, MEMORY_USED, MEMORY_TOTAL}
    assert not errors


def test_gpu_with_only_a_uuid_is_read(fake_nvml, read):
    fake_nvml.set({"count": 1, "gpu0.uuid": "GPU-1"})
    reading = read()
    assert reading.gpu.uuid == "GPU-1"
    assert reading.gpu.minor is None
    assert dict(reading.values) == {}


@pytest.mark.parametrize(
    ("code", "name"), [(4, "no_permission"), (999, "unknown"), (10, "timeout")]
)
def test_failed_call_omits_its_value_and_is_counted(fake_nvml, read, errors, code, name):
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.nvmlDeviceGetPowerUsage.returns": code})
    values = read().values
    assert POWER not in values
    assert ENERGY in values
    assert errors == {("0", name): 1}


@pytest.mark.parametrize("code", sorted(GONE))
def test_lost_gpu_or_driver_raises_nvml_error(fake_nvml, read, pynvml, code):
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.nvmlDeviceGetPowerUsage.returns": code})
    with pytest.raises(pynvml.NVMLError) as caught:
        read()
    assert caught.value.value == code


def test_processes_of_all_kinds_are_listed(fake_nvml, read):
    fake_nvml.add_gpus(1)
    none = 0xFFFFFFFF
    fake_nvml.set(
        {
            "gpu0.process0": f"100 5000 COMPUTE {none} {none} 30",
            "gpu0.process1": f"101 7000 GRAPHICS {none} {none} 0",
            "gpu0.process2": f"102 9000 MPS {none} {none} 20",
        }
    )
    assert read().processes == (
        GpuProcess(100, 5000),
        GpuProcess(101, 7000),
        GpuProcess(102, 9000, mps=True),
    )


def test_unknown_processes_differ_from_no_processes(fake_nvml, read):
    fake_nvml.add_gpus(1)
    assert read().processes == ()
    for kind in ("Compute", "Graphics", "MPSCompute"):
        fake_nvml.set({f"gpu0.nvmlDeviceGet{kind}RunningProcesses_v3.returns": 4})
    assert read().processes is None


def test_unavailable_process_memory_is_none(fake_nvml, read):
    fake_nvml.add_gpus(1)
    fake_nvml.set({"gpu0.process0": f"100 {2**64 - 1} COMPUTE"})
    assert read().processes[0].memory_bytes is None


def test_mig_instances(fake_nvml, read):
    fake_nvml.add_gpus(1)
    fake_nvml.create_mig_instances(
        0, {0: {}, 1: {"slices": 2, "compute_slices": 2, "name": "H100 MIG 2g.20gb"}}
    )
    fake_nvml.set({"gpu0.process0": "100 5000 COMPUTE 2 0"})
    reading = read()
    assert reading.gpu.partitioned
    assert reading.gpu.slices == 7
    assert [i.profile for i in reading.gpu.instances] == ["3g.40gb", "2g.20gb"]
    assert [(i.gpu_instance, i.slices) for i in reading.gpu.instances] == [(1, 3), (2, 2)]
    instance = reading.gpu.instances[0]
    assert reading.instances[instance.uuid] == {MEMORY_USED: 5e8, MEMORY_TOTAL: 40e9}
    assert UTILIZATION not in reading.values
    assert reading.processes == (GpuProcess(100, 5000, 2, 0),)


def test_compute_instances_split_the_slices_of_their_gpu_instance(fake_nvml, read):
    fake_nvml.add_gpus(1)
    halves = {"gpu_instance": 1, "slices": 4}
    fake_nvml.create_mig_instances(
        0,
        {
            0: halves | {"compute_instance": 0, "compute_slices": 3},
            1: halves | {"compute_instance": 1, "compute_slices": 1},
        },
    )
    assert [i.slices for i in read().gpu.instances] == [3, 1]


def test_mig_instance_removed_while_read_is_omitted(fake_nvml, read):
    fake_nvml.add_gpus(1)
    fake_nvml.create_mig_instances(0, {0: {}, 2: {}})
    fake_nvml.set({"gpu0.mig0.nvmlDeviceGetGpuInstanceId.returns": 6})
    assert [i.gpu_instance for i in read().gpu.instances] == [3]


def test_functions_missing_in_an_old_driver_are_skipped(fake_nvml, read, monkeypatch, pynvml):
    fake_nvml.add_gpus(1)

    def missing(name):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    known = pynvml._nvmlGetFunctionPointer
    lacking = {"nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode"}
    monkeypatch.setattr(
        pynvml,
        "_nvmlGetFunctionPointer",
        lambda name: missing(name) if name in lacking else known(name),
    )
    values = read().values
    assert values[MEMORY_USED] == 1e9
    assert MEMORY_TEMPERATURE not in values


def test_quantities_are_unique():
    assert len(set(QUANTITIES)) == len(QUANTITIES)

"""NVIDIA GPUs through NVML: one call reads one GPU with its MIG instances and processes.

Everything but a GPU's UUID is optional: values that a board, a driver or a permission does not
provide are absent. Source: NVIDIA's NVML reference, through nvidia-ml-py (module `pynvml`).
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from collectors.gpu import metrics
from collectors.gpu.busy import UtilizationSample
from collectors.gpu.devices import Gpu, Instance
from collectors.gpu.nvml_errors import OptionalCalls
from collectors.gpu.reading import GpuProcess, GpuReading

_NO_INSTANCE = 0xFFFFFFFF

_Field = tuple[metrics.GpuMetric, Callable[[Any, Any], float]]
"""A quantity, and the call that returns it in its unit, from pynvml and the device handle."""


def _clock(name: str, kind: int) -> _Field:
    return metrics.CLOCK[name], lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, kind) * 1e6


def _ecc(name: str, kind: int) -> _Field:
    # 1 is NVML_AGGREGATE_ECC: errors over the lifetime of the board, across reboots.
    return metrics.ECC[name], lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, 1)


_BOARD: tuple[_Field, ...] = (
    (metrics.POWER, lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
    (metrics.POWER_LIMIT, lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
    (metrics.ENERGY, lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3),
    (metrics.TEMPERATURE, lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0)),
    _clock("graphics", 0),
    _clock("sm", 1),
    _clock("memory", 2),
    _clock("video", 3),
    _ecc("corrected", 0),
    _ecc("uncorrected", 1),
)

# Field values, fetched in one call: (quantity, field id, scope, factor). Only ids below 200 are
# used: NVIDIA renumbered later ones (CLOCKS_EVENT_REASON_* was 251 and is 269), so a library and a
# driver of different versions disagree on their meaning. The throttled times (nanoseconds) cost a
# tenth of what nvmlDeviceGetViolationStatus takes for the same. PCIe's bytes (197, 198) are not
# read: they have 32 bits and wrap within a tenth of a second at full rate.
_ALL_LINKS = 0xFFFFFFFF
FIELD_VALUES = (
    (metrics.THROTTLED["power"], 74, 0, 1e-9),
    (metrics.THROTTLED["thermal"], 75, 0, 1e-9),
    (metrics.THROTTLED["sync_boost"], 76, 0, 1e-9),
    (metrics.THROTTLED["board_limit"], 77, 0, 1e-9),
    (metrics.LOW_UTILIZATION, 78, 0, 1e-9),
    (metrics.THROTTLED["reliability"], 79, 0, 1e-9),
    (metrics.MEMORY_TEMPERATURE, 82, 0, 1.0),
    (metrics.NVLINK["transmit"], 138, _ALL_LINKS, 1024.0),
    (metrics.NVLINK["receive"], 139, _ALL_LINKS, 1024.0),
)

_POWER_INSTANT = 186  # milliwatts

# nvmlValueType_t → member of the union nvmlValue_t.
VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def read(nvml: Any, index: int, since: int, errors: Counter[tuple[str, str]]) -> GpuReading:
    """Read GPU `index` with an initialised pynvml, counting failed calls in `errors`.

    The utilisation is that since `since` (epoch microseconds).
    Raises NVMLError if the GPU or the driver is gone, or the GPU has no UUID.
    """
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    optional = OptionalCalls(nvml, errors, str(index))
    partitioned = optional(nvml.nvmlDeviceGetMigMode, handle, default=[0])[0] == 1
    mig_instances = _read_mig_instances(optional, handle) if partitioned else ()
    busy = samples(optional, handle, _GPU_UTILIZATION, since)
    values = {
        **_utilization(optional, handle, busy),
        **_memory(optional, handle),
        **_fields(optional, handle),
        **_field_values(optional, handle),
    }
    instances = tuple(mig.instance for mig in mig_instances)
    return GpuReading(
        _describe(optional, handle, index, partitioned, instances),
        values,
        {mig.instance.uuid: _memory(optional, mig.handle) for mig in mig_instances},
        processes(compute_processes(optional, handle), other_processes(optional, handle)),
        None if busy is None else tuple(map(_utilization_sample, busy)),
    )


def identify(nvml: Any, index: int, errors: Counter[tuple[str, str]]) -> Gpu:
    """GPU `index` without its instances; raises NVMLError if it is gone."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    optional = OptionalCalls(nvml, errors, str(index))
    partitioned = optional(nvml.nvmlDeviceGetMigMode, handle, default=[0])[0] == 1
    return _describe(optional, handle, index, partitioned, ())


def text(value: Any) -> str:
    """A string; bindings before 11.515 returned bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _describe(
    optional: OptionalCalls,
    handle: Any,
    index: int,
    partitioned: bool,
    instances: tuple[Instance, ...],
) -> Gpu:
    nvml = optional.nvml
    pci = optional(nvml.nvmlDeviceGetPciInfo, handle)
    return Gpu(
        vendor="nvidia",
        index=index,
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        minor=optional(nvml.nvmlDeviceGetMinorNumber, handle),
        pci_bus_id=text(pci.busId).upper() if pci else "",
        name=text(optional(nvml.nvmlDeviceGetName, handle, default="")),
        partitioned=partitioned,
        slices=_slices(optional, handle) if partitioned else None,
        instances=instances,
    )


def _slices(optional: OptionalCalls, handle: Any) -> float | None:
    """Compute slices of the whole GPU: those of its largest instance profile (8, 7, 6 or 4)."""
    nvml = optional.nvml
    for profile in (
        nvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE,
        nvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE,
        nvml.NVML_GPU_INSTANCE_PROFILE_6_SLICE,
        nvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE,
    ):
        info = optional(nvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, profile, 1)
        if info is not None and info.sliceCount:
            return float(info.sliceCount)
    return None


class _MigInstance(NamedTuple):
    instance: Instance
    handle: Any
    compute_slices: int


def _read_mig_instances(optional: OptionalCalls, handle: Any) -> tuple[_MigInstance, ...]:
    """The MIG devices; one that is created or destroyed at this moment is left out."""
    nvml = optional.nvml
    count = optional(nvml.nvmlDeviceGetMaxMigDeviceCount, handle, default=0)
    handles = [optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i) for i in range(count)]
    found = [
        mig for each in handles if each is not None and (mig := _read_mig_instance(optional, each))
    ]
    compute_slices: Counter[int] = Counter()
    for mig in found:
        compute_slices[mig.instance.gpu_instance] += mig.compute_slices
    return tuple(_with_slices(mig, compute_slices[mig.instance.gpu_instance]) for mig in found)


def _with_slices(mig: _MigInstance, compute_slices: int) -> _MigInstance:
    """Assign a compute instance its share of the slices of its GPU instance."""
    slices = mig.instance.slices * mig.compute_slices / compute_slices
    return mig._replace(instance=mig.instance._replace(slices=slices))


def _read_mig_instance(optional: OptionalCalls, handle: Any) -> _MigInstance | None:
    nvml = optional.nvml
    uuid = optional(nvml.nvmlDeviceGetUUID, handle)
    gpu_instance = optional(nvml.nvmlDeviceGetGpuInstanceId, handle)
    compute_instance = optional(nvml.nvmlDeviceGetComputeInstanceId, handle)
    attributes = optional(nvml.nvmlDeviceGetAttributes, handle)
    if None in (uuid, gpu_instance, compute_instance) or not attributes:
        return None
    name = text(optional(nvml.nvmlDeviceGetName, handle, default=""))
    profile = name.rpartition(" MIG ")[2] if " MIG " in name else ""
    slices = float(attributes.gpuInstanceSliceCount)
    instance = Instance(text(uuid), gpu_instance, compute_instance, profile, slices)
    return _MigInstance(instance, handle, max(1, attributes.computeInstanceSliceCount))


def _memory(optional: OptionalCalls, handle: Any) -> dict[metrics.GpuMetric, float]:
    nvml = optional.nvml
    # Version 2 does not count memory reserved by the driver as used; old drivers lack it.
    memory = optional(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2) or optional(
        nvml.nvmlDeviceGetMemoryInfo, handle
    )
    return {metrics.MEMORY_USED: memory.used, metrics.MEMORY_TOTAL: memory.total} if memory else {}


def memory_used(optional: OptionalCalls, handle: Any) -> int | None:
    """Bytes in use, in the cheapest way; None where a board or driver lacks it."""
    nvml = optional.nvml
    memory = optional(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    return None if memory is None else int(memory.used)


_Samples = list[tuple[int, float]]
"""Epoch microseconds, and what was measured since the sample before."""

TOTAL_POWER, _GPU_UTILIZATION = 0, 1  # of nvmlSamplingType_t


def samples(optional: OptionalCalls, handle: Any, kind: int, since: int) -> _Samples | None:
    """The driver's samples after `since`; None if it takes none.

    On an H100 or H200 it takes one of the utilisation (per cent) every 200 ms and of the power
    (milliwatts) every 20 ms, and keeps those of 14 and of 2.4 s.
    """
    nvml = optional.nvml
    nothing_new = 0, ()

    def ask() -> Any:
        try:
            return nvml.nvmlDeviceGetSamples(handle, kind, since)
        except nvml.NVMLError_NotFound:
            return nothing_new

    answer = optional(ask)
    if answer is None or answer[0] >= len(VALUE_TYPES):
        return None
    type_ = VALUE_TYPES[answer[0]]
    return [(each.timeStamp, getattr(each.sampleValue, type_)) for each in answer[1]]


def _utilization_sample(sample: tuple[int, float]) -> UtilizationSample:
    """The sample as a fraction. The driver rounds down, so its value is half a per cent more."""
    at, percent = sample
    if not 0 <= percent <= 100:
        return UtilizationSample(at, None)
    return UtilizationSample(at, (percent + 0.5 if 1 <= percent <= 99 else percent) / 100)


def _utilization(
    optional: OptionalCalls, handle: Any, busy: _Samples | None
) -> dict[metrics.GpuMetric, float]:
    """The mean of the driver's samples, or else its newest value."""
    valid = [percent for _, percent in busy or () if 0 <= percent <= 100]
    if valid:
        return {metrics.UTILIZATION: sum(valid) / len(valid) / 100}
    rates = optional(optional.nvml.nvmlDeviceGetUtilizationRates, handle)
    return {metrics.UTILIZATION: rates.gpu / 100} if rates else {}


def _fields(optional: OptionalCalls, handle: Any) -> dict[metrics.GpuMetric, float]:
    values = {quantity: optional(read, optional.nvml, handle) for quantity, read in _BOARD}
    return {quantity: value for quantity, value in values.items() if value is not None}


def _field_values(optional: OptionalCalls, handle: Any) -> dict[metrics.GpuMetric, float]:
    wanted = [(field, scope) for _, field, scope, _ in FIELD_VALUES]
    answers = optional(optional.nvml.nvmlDeviceGetFieldValues, handle, wanted) or ()
    return {
        quantity: getattr(answer.value, VALUE_TYPES[answer.valueType]) * factor
        for (quantity, _, _, factor), answer in zip(FIELD_VALUES, answers, strict=False)
        if answer.nvmlReturn == 0 and answer.valueType < len(VALUE_TYPES)
    }


def power_now(optional: OptionalCalls, handle: Any) -> float | None:
    """Watts at this moment, not over the last second; None where a board or driver lacks it."""
    answers = optional(optional.nvml.nvmlDeviceGetFieldValues, handle, [_POWER_INSTANT]) or ()
    for answer in answers:
        if answer.nvmlReturn == 0 and answer.valueType < len(VALUE_TYPES):
            return float(getattr(answer.value, VALUE_TYPES[answer.valueType])) / 1e3
    return None


OtherProcesses = tuple[Any, Any]
"""NVML's answers about graphics processes and MPS clients; None: not available."""


def other_processes(optional: OptionalCalls, handle: Any) -> OtherProcesses:
    """The two lists that compute processes are not in, or are in as well (MPS clients)."""
    nvml = optional.nvml
    return (
        optional(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle),
        optional(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle),
    )


def compute_processes(optional: OptionalCalls, handle: Any) -> Any:
    """NVML's answer about processes with a CUDA context; None: not available."""
    return optional(optional.nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)


def processes(compute: Any, others: OtherProcesses) -> tuple[GpuProcess, ...] | None:
    """Compute, graphics and MPS client processes; None if none of the lists is available.

    Their utilisation is not read. The driver gives each of its samples whole to one process, gives
    a new process those of one that has ended, and under MPS gives all of them to the server.
    """
    lists = (compute, *others)
    if all(each is None for each in lists):
        return None
    under_mps = {info.pid for info in others[1] or ()}
    found = {info.pid: info for infos in lists for info in infos or ()}
    return tuple(
        GpuProcess(
            pid,
            info.usedGpuMemory,
            _instance_number(info.gpuInstanceId),
            _instance_number(info.computeInstanceId),
            pid in under_mps,
        )
        for pid, info in sorted(found.items())
    )


def _instance_number(number: int) -> int | None:
    return None if number == _NO_INSTANCE else number

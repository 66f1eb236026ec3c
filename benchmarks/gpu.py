"""A real GPU node, measured and recorded.

    python -m benchmarks.gpu measure [READINGS]
    python -m benchmarks.gpu record FILE
    python -m benchmarks.gpu_cost [SECONDS]

`gpu_cost` needs no GPU: it runs the collector on eight GPUs with 100 jobs, on whole GPUs and on
seven MIG instances each, with calls that answer at once, and prints the CPU time of its own code
and what the calls that it made took on an H200. `measure` prints what readings of each GPU cost.
`record` writes what NVML answers as keys of
tests/fake_nvml/nvml.c, so that the answers of a real driver can be replayed without it: put the
file into tests/fixtures/nvml/ and tests/collectors/gpu/test_replayed_nvml.py reads it. For
processes in the record, run something on the GPUs meanwhile. UUIDs and pids are recorded as they
are.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from collectors.gpu import nvml

Call = Callable[[Any, Any], Any]

NUMBERS: dict[str, Call] = {
    "minor": lambda n, gpu: n.nvmlDeviceGetMinorNumber(gpu),
    "utilization": lambda n, gpu: n.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "power": lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu),
    "power_limit": lambda n, gpu: n.nvmlDeviceGetEnforcedPowerLimit(gpu),
    "energy": lambda n, gpu: n.nvmlDeviceGetTotalEnergyConsumption(gpu),
    "temperature": lambda n, gpu: n.nvmlDeviceGetTemperature(gpu, 0),
    "mig": lambda n, gpu: n.nvmlDeviceGetMigMode(gpu)[0],
    **{f"clock{k}": lambda n, gpu, k=k: n.nvmlDeviceGetClockInfo(gpu, k) for k in range(4)},
    **{f"ecc{k}.1": lambda n, gpu, k=k: n.nvmlDeviceGetTotalEccErrors(gpu, k, 1) for k in (0, 1)},
    **{
        f"profile{k}": lambda n, gpu, k=k: (
            n.nvmlDeviceGetGpuInstanceProfileInfo(gpu, k, 1).sliceCount
        )
        for k in (3, 4, 5, 6)
    },
}
INSTANCE_NUMBERS: dict[str, Call] = {
    "gpu_instance": lambda n, mig: n.nvmlDeviceGetGpuInstanceId(mig),
    "compute_instance": lambda n, mig: n.nvmlDeviceGetComputeInstanceId(mig),
    "slices": lambda n, mig: n.nvmlDeviceGetAttributes(mig).gpuInstanceSliceCount,
    "compute_slices": lambda n, mig: n.nvmlDeviceGetAttributes(mig).computeInstanceSliceCount,
}
TEXTS: dict[str, Call] = {
    "uuid": lambda n, gpu: nvml.text(n.nvmlDeviceGetUUID(gpu)),
    "name": lambda n, gpu: nvml.text(n.nvmlDeviceGetName(gpu)),
}
LISTS: dict[str, Call] = {
    "COMPUTE": lambda n, gpu: n.nvmlDeviceGetComputeRunningProcesses_v3(gpu),
    "GRAPHICS": lambda n, gpu: n.nvmlDeviceGetGraphicsRunningProcesses_v3(gpu),
    "MPS": lambda n, gpu: n.nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu),
}

# Activity of its units; PCIe; all NVLinks. The driver answers 0 to what the board does not have.
GPM_IDS = (*range(1, 14), 20, 21, 60, 61)

Keys = Iterator[tuple[str, object]]


def asked(pynvml: Any, calls: dict[str, Call], handle: Any, prefix: str) -> Keys:
    """The keys of the calls that have an answer."""
    for key, call in calls.items():
        try:
            yield f"{prefix}.{key}", call(pynvml, handle)
        except pynvml.NVMLError as error:
            print(f"{prefix}.{key}: {error}", file=sys.stderr)


def memory(pynvml: Any, handle: Any, prefix: str) -> Keys:
    """Memory without what the driver keeps for itself, where NVML tells that apart."""
    for version in (pynvml.nvmlMemory_v2, None):
        try:
            answer = pynvml.nvmlDeviceGetMemoryInfo(handle, version)
        except pynvml.NVMLError:
            continue
        yield f"{prefix}.memory.total", answer.total
        yield f"{prefix}.memory.used", answer.used
        return


def between(pynvml: Any, handle: Any, prefix: str) -> Keys:
    """What is read of the time between two readings: the last seconds here."""
    try:
        yield f"{prefix}.gpm", " ".join(gpm_means(pynvml, handle))
    except pynvml.NVMLError as error:
        print(f"{prefix}.gpm: {error}", file=sys.stderr)
    try:
        since = int((time.time() - 10) * 1e6)
        _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since)
    except pynvml.NVMLError as error:
        print(f"{prefix}.samples: {error}", file=sys.stderr)
        return
    words = [f"{each.timeStamp}:{each.sampleValue.uiVal}" for each in samples]
    yield f"{prefix}.samples", " ".join(words)


def gpm_means(pynvml: Any, handle: Any) -> Iterator[str]:
    """`ID:VALUE` of the metrics of GPM that have an answer, over one second."""
    samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
    for sample in samples:
        pynvml.nvmlGpmSampleGet(handle, sample)
        time.sleep(1)
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(GPM_IDS)
    request.sample1, request.sample2 = samples
    for index, number in enumerate(GPM_IDS):
        request.metrics[index].metricId = number
    for each in pynvml.nvmlGpmMetricsGet(request).metrics[: len(GPM_IDS)]:
        if each.nvmlReturn == 0:
            yield f"{each.metricId}:{each.value:.6g}"


def fields(pynvml: Any, handle: Any, prefix: str) -> Keys:
    """The field values that the collector reads."""
    wanted = [(field, scope) for _, field, scope, _ in nvml.FIELD_VALUES]
    try:
        answers = pynvml.nvmlDeviceGetFieldValues(handle, wanted)
    except pynvml.NVMLError:
        return
    for answer in answers:
        if answer.nvmlReturn == 0:
            value = getattr(answer.value, nvml.VALUE_TYPES[answer.valueType])
            yield f"{prefix}.field{answer.fieldId}", int(value)


def processes(pynvml: Any, handle: Any, prefix: str) -> Keys:
    """`PID BYTES KIND GPU_INSTANCE COMPUTE_INSTANCE SM_PERCENT` for each process."""
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except pynvml.NVMLError:
        samples = ()
    busy = {sample.pid: sample.smUtil for sample in samples}
    number = 0
    for kind, infos in asked(pynvml, LISTS, handle, ""):
        for info in infos:
            used = 2**64 - 1 if info.usedGpuMemory is None else info.usedGpuMemory
            words = (info.pid, used, kind.lstrip("."), info.gpuInstanceId, info.computeInstanceId)
            yield f"{prefix}.process{number}", " ".join(map(str, (*words, busy.get(info.pid, 0))))
            number += 1


def of_gpu(pynvml: Any, index: int) -> Keys:
    """All keys of one GPU and its instances."""
    handle, prefix = pynvml.nvmlDeviceGetHandleByIndex(index), f"gpu{index}"
    yield from asked(pynvml, TEXTS | NUMBERS, handle, prefix)
    yield f"{prefix}.pci", nvml.text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    yield from memory(pynvml, handle, prefix)
    yield from fields(pynvml, handle, prefix)
    yield from between(pynvml, handle, prefix)
    yield from processes(pynvml, handle, prefix)
    try:
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:
        count = 0
    for number in range(count):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError:
            continue
        part = f"{prefix}.mig{number}"
        yield from asked(pynvml, TEXTS | INSTANCE_NUMBERS, device, part)
        yield from memory(pynvml, device, part)


def record(pynvml: Any) -> str:
    """The text of the file."""
    count = pynvml.nvmlDeviceGetCount()
    lines = [
        f"driver.version {nvml.text(pynvml.nvmlSystemGetDriverVersion())}",
        f"count {count}",
    ]
    for index in range(count):
        lines += [f"{key} {value}" for key, value in of_gpu(pynvml, index)]
    return "".join(f"{line}\n" for line in lines)


def measure(pynvml: Any, readings: int) -> None:
    """Print wall and CPU time per reading, and what was read."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        errors: Counter[tuple[str, str]] = Counter()
        nvml.read(pynvml, index, 0, errors)  # the first call of each kind is slower
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(readings):
            reading = nvml.read(pynvml, index, int((time.time() - 10) * 1e6), errors)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            f"GPU {index} {reading.gpu.name} {reading.gpu.uuid}: {wall / readings * 1e3:.2f} ms, "
            f"{cpu / readings * 1e3:.2f} ms CPU per reading; {len(reading.values)} quantities, "
            f"{len(reading.gpu.instances)} MIG instances, {len(reading.processes or ())} "
            f"processes; errors {dict(errors)}"
        )


def main(arguments: list[str]) -> int:
    """Run one of the two."""
    if not arguments or arguments[0] not in ("measure", "record"):
        print(__doc__, file=sys.stderr)
        return 2
    import pynvml

    pynvml.nvmlInit()
    try:
        if arguments[0] == "record":
            Path(arguments[1]).write_text(record(pynvml), encoding="utf-8")
        else:
            measure(pynvml, int(arguments[1]) if len(arguments) > 1 else 100)
    finally:
        pynvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# ruff: noqa: N802, N815
"""CPU time of the GPU collector: its own code, measured, and the calls, as recorded."""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GPUS, INSTANCES, JOBS = 8, 7, 100
NO_INSTANCE = 0xFFFFFFFF
TOTAL_POWER = 0

# Milliseconds of CPU under load on an H200 with driver 580; 0.004 for what is not listed.
RECORDED = {
    "nvmlDeviceGetTotalEnergyConsumption": 3.497,
    "nvmlDeviceGetSamples": 1.427,
    "power samples": 0.31,
    "nvmlDeviceGetProcessUtilization": 1.399,
    "nvmlGpmMetricsGet": 1.145,
    "nvmlGpmSampleGet": 0.057,
    "nvmlGpmMigSampleGet": 0.057,
    "nvmlDeviceGetFieldValues": 0.753,
    "field186": 0.011,
    "nvmlDeviceGetMigMode": 0.111,
    "nvmlDeviceGetComputeRunningProcesses_v3": 0.049,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 0.019,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": 0.019,
    "nvmlDeviceGetMemoryInfo": 0.011,
}


class Driver:
    """The calls of pynvml that the collector makes, with answers that cost next to nothing."""

    def __init__(self, pynvml: Any, mig: bool, gpm: bool) -> None:
        self._pynvml, self.mig, self.gpm = pynvml, mig, gpm
        self.calls = Counter[str]()
        self._processes = [
            [
                SimpleNamespace(
                    pid=1000 + job,
                    usedGpuMemory=(job + 1) << 30,
                    gpuInstanceId=1 + job // GPUS % INSTANCES if mig else NO_INSTANCE,
                    computeInstanceId=0 if mig else NO_INSTANCE,
                )
                for job in range(JOBS)
                if job % GPUS == gpu
            ]
            for gpu in range(GPUS)
        ]

    def __getattr__(self, name: str) -> Any:
        own = getattr(type(self), f"call_{name}", None)
        if own is None and not name.startswith(("nvmlDevice", "nvmlGpm", "nvmlInit", "nvmlSh")):
            return getattr(self._pynvml, name)

        def call(*arguments: Any) -> Any:
            fields = arguments[1] if name == "nvmlDeviceGetFieldValues" else ()
            if name == "nvmlDeviceGetSamples" and arguments[1] == TOTAL_POWER:
                self.calls["power samples"] += 1
            else:
                self.calls["field186" if list(fields) == [186] else name] += 1
            return 0 if own is None else own(self, *arguments)

        return call

    def call_nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def call_nvmlDeviceGetCount(self) -> int:
        return GPUS

    def call_nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def call_nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"{'MIG' if handle >= GPUS else 'GPU'}-{handle:08d}-0000-4000-8000-000000000000"

    def call_nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200" + (" MIG 1g.18gb" if handle >= GPUS else "")

    def call_nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return handle

    def call_nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0")

    def call_nvmlDeviceGetMigMode(self, _: int) -> list[int]:
        return [int(self.mig), int(self.mig)]

    def call_nvmlDeviceGetMaxMigDeviceCount(self, _: int) -> int:
        return INSTANCES

    def call_nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:
        return GPUS * (index + 1) + handle

    def call_nvmlDeviceGetGpuInstanceId(self, handle: int) -> int:
        return handle // GPUS

    def call_nvmlDeviceGetComputeInstanceId(self, _: int) -> int:
        return 0

    def call_nvmlDeviceGetAttributes(self, _: int) -> Any:
        return SimpleNamespace(gpuInstanceSliceCount=1, computeInstanceSliceCount=1)

    def call_nvmlDeviceGetGpuInstanceProfileInfo(self, *_: int) -> Any:
        return SimpleNamespace(sliceCount=7)

    def call_nvmlDeviceGetMemoryInfo(self, *_: Any) -> Any:
        return SimpleNamespace(total=141 << 30, used=8 << 30, free=133 << 30)

    def call_nvmlDeviceGetUtilizationRates(self, _: int) -> Any:
        return SimpleNamespace(gpu=50, memory=5)

    def call_nvmlDeviceGetSamples(self, _: int, kind: int, since: int) -> tuple[int, list[Any]]:
        is_power = kind == TOTAL_POWER
        if self.mig and not is_power:
            raise self._pynvml.NVMLError(self._pynvml.NVML_ERROR_NOT_SUPPORTED)
        now = time.time_ns() // 1000
        step, kept = (20_000, 2_400_000) if is_power else (200_000, 14_000_000)
        first = max(since, now - kept)
        value = SimpleNamespace(uiVal=250_000 if is_power else 50)
        times = range(first + step, now, step)
        return 1, [SimpleNamespace(timeStamp=at, sampleValue=value) for at in times]

    def call_nvmlDeviceGetFieldValues(self, _: int, fields: list[Any]) -> list[Any]:
        value = SimpleNamespace(ullVal=250_000)
        return [SimpleNamespace(nvmlReturn=0, valueType=3, value=value) for _ in fields]

    def call_nvmlDeviceGetComputeRunningProcesses_v3(self, handle: int) -> list[Any]:
        return self._processes[handle]

    def call_nvmlDeviceGetGraphicsRunningProcesses_v3(self, _: int) -> list[Any]:
        return []

    call_nvmlDeviceGetMPSComputeRunningProcesses_v3 = call_nvmlDeviceGetGraphicsRunningProcesses_v3

    def call_nvmlGpmQueryDeviceSupport(self, _: int) -> Any:
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def call_nvmlGpmSampleAlloc(self) -> Any:
        return self._pynvml.c_nvmlGpmSample_t()

    def call_nvmlGpmMetricsGet(self, request: Any) -> Any:
        return request


class Jobs:
    """A process of each job on one GPU, of which its environment names none."""

    def __init__(self) -> None:
        from collectors.jobs.view import JobHolder, JobLifetime, make_name

        names = [make_name("slurm", str(job), "alice") for job in range(JOBS)]
        root = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_"
        self._holders = [
            JobHolder(name, 1000, (1000 + job,), (), (f"{root}{job}",))
            for job, name in enumerate(names)
        ]
        self._lifetimes = {name: JobLifetime(time.time(), None) for name in names}

    def usage(self) -> list[Any]:
        return []

    def holders(self) -> list[Any]:
        return self._holders

    def lifetimes(self) -> dict[Any, Any]:
        return self._lifetimes


def measure(mig: bool, gpm: bool, seconds: float) -> None:
    """Print the shares of a core."""
    import pynvml

    from collectors.gpu.collector import GpuCollector, GpuOptions
    from collectors.host import Host

    driver = Driver(pynvml, mig, gpm)
    sys.modules["pynvml"] = driver  # type: ignore[assignment]
    try:
        with tempfile.TemporaryDirectory() as root:
            version = Path(root, "proc/driver/nvidia/version")
            version.parent.mkdir(parents=True)
            version.touch()
            host = Host(procfs=f"{root}/proc", sysfs=f"{root}/sys")
            collector = GpuCollector(host, GpuOptions(), Jobs())
            collector.start()
            time.sleep(12)
            begun, cpu, calls = time.monotonic(), time.process_time(), Counter(driver.calls)
            time.sleep(seconds)
            wall = time.monotonic() - begun
            own = (time.process_time() - cpu) / wall
            made = driver.calls - calls
            scrape = time.process_time()
            samples = sum(len(each.samples) for each in collector.collect())
            scrape = time.process_time() - scrape
            collector.stop()
    finally:
        sys.modules["pynvml"] = pynvml
    recorded = sum(RECORDED.get(name, 0.004) * number for name, number in made.items()) / 1e3 / wall
    kind = f"{GPUS} GPUs with {INSTANCES} instances each" if mig else f"{GPUS} GPUs"
    kind += ", with GPM" if gpm else ""
    print(
        f"{kind}, {JOBS} jobs: own code {own:.2%} of a core, calls {recorded:.2%} as recorded, "
        f"together {own + recorded:.2%}; a scrape {scrape * 1e3:.1f} ms for {samples} samples"
    )
    for name, number in made.most_common(8):
        print(f"    {name} {number / wall:.1f}/s")


if __name__ == "__main__":
    duration = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    for partitioned, profiled in ((False, False), (False, True), (True, True)):
        measure(partitioned, profiled, duration)

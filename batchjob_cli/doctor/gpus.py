"""GPUs, the library that reads them, and what maps them to jobs."""

import ctypes
import glob
import importlib
import importlib.util
import os
import threading
from collections import Counter
from typing import Any

from batchjob_cli.doctor.finding import (
    Checks,
    ExaminedNode,
    Finding,
    missing,
    ok,
    warning,
)
from collectors.gpu import amd, nvml
from collectors.gpu.metrics import ENERGY
from collectors.gpu.nvml_errors import error_name
from collectors.gpu.reading import GpuReading
from collectors.host import read_text

_TIMEOUT_SECONDS = 10.0  # timeout, in case the driver hangs


def _device_files(node: ExaminedNode) -> list[str]:
    return sorted(glob.glob(f"{glob.escape(node.host.dev)}/nvidia[0-9]*"))


def _check_devices(node: ExaminedNode) -> Finding | None:
    devices = _device_files(node)
    version = read_text(f"{node.host.procfs}/driver/nvidia/version")
    if not devices and not version:
        return None  # the node has no GPUs, so nothing is missing
    if not version:
        return missing(f"{len(devices)} devices, no driver", "modprobe nvidia")
    return ok(f"{len(devices)} devices; {version.splitlines()[0]}")


def _check_permission(node: ExaminedNode) -> Finding | None:
    """NVML opens the device files for reading and writing, whatever it is used for."""
    files = [*_device_files(node), f"{node.host.dev}/nvidiactl"]
    refused = [
        path for path in files if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)
    ]
    if len(files) == 1:
        return None
    if not refused:
        return ok("the device files can be opened")
    return missing(
        f"no permission to open {', '.join(refused)}",
        "set NVreg_DeviceFileMode=0666 (the driver's default), or add the exporter to the "
        "group of the device files and list them in DeviceAllow= of its service",
    )


def _check_library(node: ExaminedNode) -> Finding | None:
    if _check_devices(node) is None:
        return None
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return missing(
            "libnvidia-ml.so.1 cannot be loaded",
            "install the driver's libraries (libnvidia-ml1, nvidia-driver-cuda-libs); in a "
            "container, use the NVIDIA runtime",
        )
    if importlib.util.find_spec("pynvml") is None:
        return missing(
            "the Python module pynvml is not installed", "pip install 'batchjob-monitoring[gpu]'"
        )
    return ok("libnvidia-ml.so.1 and pynvml")


def _check_readings(node: ExaminedNode) -> Finding | None:
    """Query NVML like the exporter, but with a time-out."""
    library = _check_library(node)
    if library is None or library.result != "ok":
        return None
    findings: list[Finding] = []
    thread = threading.Thread(target=lambda: findings.append(_query_nvml()), daemon=True)
    thread.start()
    thread.join(_TIMEOUT_SECONDS)
    if findings:
        return findings[0]
    return missing(
        f"the driver did not answer within {_TIMEOUT_SECONDS:.0f} s",
        "look for NVRM and Xid in the kernel log (dmesg)",
    )


def _query_nvml() -> Finding:
    pynvml = importlib.import_module("pynvml")
    errors: Counter[tuple[str, str]] = Counter()
    try:
        pynvml.nvmlInit()
        try:
            count = pynvml.nvmlDeviceGetCount()
            gpus = [_read_gpu(pynvml, index, errors) for index in range(count)]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return missing(
            f"NVML error: {error}",
            "on a version mismatch, reload the driver or reboot; otherwise run nvidia-smi",
        )
    readings = [gpu for gpu in gpus if gpu is not None]
    return _assess_readings(count, readings, errors)


def _read_gpu(pynvml: Any, index: int, errors: Counter[tuple[str, str]]) -> GpuReading | None:
    try:
        return nvml.read(pynvml, index, 0, errors)
    except pynvml.NVMLError as error:
        errors[str(index), error_name(pynvml, error.value)] += 1
        return None


def _assess_readings(
    count: int, readings: list[GpuReading], errors: Counter[tuple[str, str]]
) -> Finding:
    partitioned_gpus = [each.gpu for each in readings if each.gpu.partitioned]
    instances = sum(len(gpu.instances) for gpu in partitioned_gpus)
    seen = f"{len(readings)} of {count} GPUs answer"
    if partitioned_gpus:
        seen += f"; {len(partitioned_gpus)} in MIG mode with {instances} instances"
    if errors:
        words = sorted({f"GPU {gpu}: {error}" for gpu, error in errors})
        return Finding(
            "missing" if not readings else "warning",
            f"{seen}; {', '.join(words)}",
            "look for NVRM and Xid in the kernel log (dmesg)",
        )
    if any(ENERGY not in each.values for each in readings):
        return ok(f"{seen}; no energy counter, so energy is integrated from power")
    return ok(seen)


def _check_profiling(node: ExaminedNode) -> Finding | None:
    """Whether GPM may be read; see NVIDIA's page on the error ERR_NVGPUCTRPERM."""
    parameters = read_text(f"{node.host.procfs}/driver/nvidia/params")
    if not parameters:
        return None
    if "RmProfilingAdminOnly: 1" not in parameters.splitlines():
        return ok("all users may profile GPUs")
    return warning(
        "only CAP_SYS_ADMIN may profile GPUs, so how well jobs use theirs is not known",
        "set NVreg_RestrictProfilingToAdminUsers=0 for the driver; see docs/gpu.md",
    )


def _check_order(node: ExaminedNode) -> Finding | None:
    """Whether Slurm's GPU numbers are the same by index and by device file."""
    known = sorted(glob.glob(f"{glob.escape(node.host.procfs)}/driver/nvidia/gpus/*/information"))
    minors = []
    for path in known:
        lines = dict(line.partition(":")[::2] for line in read_text(path).splitlines())
        minors.append(lines.get("Device Minor", "").strip())
    if len(minors) < 2 or not all(minors):
        return None
    if minors == [str(number) for number in range(len(minors))]:
        return ok("indexes and device files are in the same order")
    return warning(
        f"in PCI order the GPUs' device files are {', '.join(minors)}",
        "if gres.conf names device files (File=), set --collector.gpu.slurm-numbers=minor; see "
        "docs/gpu.md",
    )


def _check_amd(node: ExaminedNode) -> Finding | None:
    cards = amd.find_cards(node.host)
    if not cards:
        return None
    names = sorted({amd.describe(card, index).name for index, card in enumerate(cards)})
    return ok(f"{len(cards)} with the amdgpu driver: {', '.join(names)}")


CHECKS: Checks = {
    "nvidia": _check_devices,
    "permission": _check_permission,
    "nvml": _check_library,
    "readings": _check_readings,
    "profiling": _check_profiling,
    "order": _check_order,
    "amd": _check_amd,
}

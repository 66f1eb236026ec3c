"""GPUs and the library that reads them."""

import ctypes
import glob
import importlib.util

from batchjob_cli.doctor.check import Check, Finding, Node, read


def _devices(node: Node) -> Finding | None:
    devices = glob.glob(f"{glob.escape(node.host.dev)}/nvidia[0-9]*")
    version = read(f"{node.host.procfs}/driver/nvidia/version")
    if not devices and version is None:
        return None  # a node without GPUs lacks nothing
    if version is None:
        return Finding("missing", f"{len(devices)} devices, no driver", "modprobe nvidia")
    return Finding("ok", f"{len(devices)} devices; {version.splitlines()[0].strip()}")


def _nvml(node: Node) -> Finding | None:
    if _devices(node) is None:
        return None
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return Finding(
            "missing",
            "libnvidia-ml.so.1 cannot be loaded",
            "install the driver's libraries (libnvidia-ml1, nvidia-driver-cuda-libs); in a "
            "container, use the NVIDIA runtime",
        )
    if importlib.util.find_spec("pynvml") is None:
        return Finding(
            "missing",
            "the Python module pynvml is not installed",
            "pip install 'batchjob-monitoring[gpu]'",
        )
    return Finding("ok", "libnvidia-ml.so.1 and pynvml")


CHECKS = (
    Check("nvidia", _devices),
    Check("nvml", _nvml),
)

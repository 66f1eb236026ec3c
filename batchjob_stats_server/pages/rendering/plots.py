"""Which curves of a job are drawn together, and against which limit."""

from typing import NamedTuple


class Plot(NamedTuple):
    """One plot: names of curves (`curves.py`)."""

    title: str
    curves: tuple[str, ...]
    limit: str = ""  # a curve that bounds them
    ceiling: float | None = None  # or a number
    gpu: bool = False  # only of jobs with GPUs


PLOTS = (
    Plot("CPUs in use", ("cpu",), limit="cpus"),
    Plot("Memory", ("memory", "memory_working_set"), limit="memory_limit"),
    Plot("GPU use", ("gpu_utilization",), ceiling=1.0, gpu=True),
    Plot("GPU memory", ("gpu_memory",), limit="gpu_memory_total", gpu=True),
    Plot("GPU power", ("gpu_power",), gpu=True),
    Plot("Power", ("power",)),
    Plot("Files, network file systems included", ("file_read", "file_write")),
    Plot("Block devices", ("io_read", "io_write")),
    Plot(
        "Pressure (time waiting for resources)",
        ("pressure_cpu", "pressure_memory", "pressure_io"),
        ceiling=1.0,
    ),
    Plot("Throttled by the CPU quota", ("cpu_throttled",)),
    Plot("Network of its own", ("network_receive", "network_transmit")),
    Plot("Processes and threads", ("processes", "threads")),
)
COMPARED = ("cpu", "memory", "gpu_utilization", "power", "file_read", "file_write")


def plots_for(gpus: int | None) -> tuple[Plot, ...]:
    """Those that such a job may have."""
    return tuple(plot for plot in PLOTS if gpus or not plot.gpu)

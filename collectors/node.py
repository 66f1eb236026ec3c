"""The node itself: CPU time, memory and boot time, with which jobs are compared.

Source: Linux Documentation/filesystems/proc.rst (stat, meminfo). node_exporter has the rest.
"""

import os
from typing import NamedTuple

from collectors.collector import Collector, CollectorModule, NoOptions
from collectors.host import Host, read_path
from collectors.metric import NO_LABELS, Labels, Metric, MetricFamily, labels

# The columns of a `cpu` line. guest and guest_nice follow, and are included in user and nice.
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

# fmt: off
CPU_SECONDS = Metric("batchjob_node_cpu_seconds_total", "counter",
    "CPU time of the node by mode, summed over all CPUs; guests count as user or nice.", ("mode",))
CPUS = Metric("batchjob_node_cpus", "gauge", "Online CPUs (hardware threads).")
MEMORY_TOTAL = Metric("batchjob_node_memory_total_bytes", "gauge",
    "Total usable memory: MemTotal in /proc/meminfo.")
MEMORY_AVAILABLE = Metric("batchjob_node_memory_available_bytes", "gauge",
    "Memory available to programs without swapping, estimated by the kernel: MemAvailable in "
    "/proc/meminfo.")
BOOT_TIME = Metric("batchjob_node_boot_time_seconds", "gauge",
    "Boot time of the node, in Unix time.")
INFO = Metric("batchjob_node_info", "gauge",
    "Host name and kernel of the node, from uname(2); always 1.", ("nodename", "release",
    "machine"))
# fmt: on
METRICS = (CPU_SECONDS, CPUS, MEMORY_TOTAL, MEMORY_AVAILABLE, BOOT_TIME, INFO)

_IDLE_MODES = tuple(MODES.index(mode) for mode in ("idle", "iowait", "steal"))
_MODE_LABELS: tuple[Labels, ...] = tuple(labels(mode=mode) for mode in MODES)


class CpuTimes(NamedTuple):
    """The first part of /proc/stat in seconds; `modes` in the order of `MODES`."""

    modes: tuple[float, ...]
    cpus: int
    boot_time: float  # Unix time

    @property
    def busy_seconds(self) -> float:
        """CPU time neither idle, nor waiting for disks, nor stolen by the hypervisor."""
        return sum(self.modes) - sum(self.modes[each] for each in _IDLE_MODES)


Memory = tuple[float, float | None]
"""Total and available bytes; None: the kernel is older than 3.14."""


class NodeCollector(Collector):
    def __init__(self, host: Host) -> None:
        self._procfs = host.procfs
        name = os.uname()
        self._info = labels(nodename=name.nodename, release=name.release, machine=name.machine)

    def collect(self) -> list[MetricFamily]:
        cpu, (total, available) = read_stat(self._procfs), read_memory(self._procfs)
        return [
            MetricFamily(CPU_SECONDS, list(zip(_MODE_LABELS, cpu.modes, strict=False))),
            MetricFamily(CPUS, [(NO_LABELS, float(cpu.cpus))]),
            MetricFamily(MEMORY_TOTAL, [(NO_LABELS, total)]),
            MetricFamily(MEMORY_AVAILABLE, [] if available is None else [(NO_LABELS, available)]),
            MetricFamily(BOOT_TIME, [(NO_LABELS, cpu.boot_time)]),
            MetricFamily(INFO, [(self._info, 1.0)]),
        ]


def read_stat(procfs: str) -> CpuTimes:
    """Read /proc/stat once. Raises OSError, and ValueError for an unexpected format."""
    return parse_stat(read_path(f"{procfs}/stat"), os.sysconf("SC_CLK_TCK"))


def parse_stat(text: bytes, ticks_per_second: int) -> CpuTimes:
    """Parse /proc/stat. Raises ValueError for anything else."""
    modes: tuple[float, ...] = ()
    cpus, boot_time = 0, None
    for line in text.splitlines():
        key, _, rest = line.partition(b" ")
        if key == b"cpu":
            modes = tuple(int(value) / ticks_per_second for value in rest.split()[: len(MODES)])
        elif key.startswith(b"cpu"):
            cpus += 1
        elif key == b"btime":
            boot_time = float(int(rest))
    if len(modes) != len(MODES) or not cpus or boot_time is None:
        raise ValueError("/proc/stat: no line cpu, cpuN or btime")
    return CpuTimes(modes, cpus, boot_time)


def read_memory(procfs: str) -> Memory:
    """Read /proc/meminfo once. Raises OSError, and ValueError for an unexpected format."""
    return parse_meminfo(read_path(f"{procfs}/meminfo"))


def parse_meminfo(text: bytes) -> Memory:
    """Parse /proc/meminfo, which is in KiB. Raises ValueError for anything else."""
    sizes = {}
    for line in text.splitlines():
        key, _, rest = line.partition(b":")
        if key in (b"MemTotal", b"MemAvailable"):
            value, unit = rest.split()
            if unit != b"kB":
                raise ValueError(f"/proc/meminfo: unit of {key.decode()} is not kB")
            sizes[key] = int(value) * 1024.0
    if b"MemTotal" not in sizes:
        raise ValueError("/proc/meminfo: no line MemTotal")
    return sizes[b"MemTotal"], sizes.get(b"MemAvailable")


COLLECTOR = CollectorModule(NoOptions, METRICS, lambda host, *_: NodeCollector(host))

"""Metrics of the exporter's own process, as all Prometheus programs have them.

Names and meaning: Prometheus docs/instrumenting/writing_clientlibs.md, "Process metrics".
prometheus-client is not used since it lists /proc/self/fd at each scrape, which takes a millisecond
with a thousand open cgroup files, and since it takes 4 MB.
"""

import os
import resource
from collections.abc import Callable
from typing import NamedTuple

from collectors.jobs.cgroups.reader import read_path
from collectors.jobs.processes.proc import read_boot_time
from collectors.metric import NO_LABELS, Metric, MetricFamily

PROCESS_METRICS = (
    Metric("process_cpu_seconds_total", "counter", "User and system CPU time."),
    Metric("process_start_time_seconds", "gauge", "Start time of the process, in Unix time."),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory."),
    Metric("process_virtual_memory_bytes", "gauge", "Virtual memory."),
    Metric("process_open_fds", "gauge", "Open file descriptors."),
    Metric("process_max_fds", "gauge", "Maximum number of open file descriptors."),
)


class ProcessSample(NamedTuple):
    """A process at one moment; the fields are in the order of `PROCESS_METRICS`."""

    cpu_seconds: float
    started_at: float
    resident_bytes: int
    virtual_bytes: int
    open_files: int
    max_open_files: float


def process_reader(procfs: str = "/proc") -> Callable[[], list[MetricFamily]]:
    """A function that returns the families of this process."""
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    # /proc/stat has the boot time too, but systemd's ProcSubset=pid hides that file.
    boot_time = read_boot_time()
    page_bytes = os.sysconf("SC_PAGE_SIZE")

    def families() -> list[MetricFamily]:
        # proc_pid_stat(5), from the third field on: the name before it may contain anything.
        fields = read_path(f"{procfs}/self/stat").rpartition(b")")[2].split()
        process = ProcessSample(
            cpu_seconds=(int(fields[11]) + int(fields[12])) / ticks_per_second,
            started_at=boot_time + int(fields[19]) / ticks_per_second,
            resident_bytes=int(fields[21]) * page_bytes,
            virtual_bytes=int(fields[20]),
            open_files=_count_open_files(f"{procfs}/self/fd"),
            max_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        return [
            MetricFamily(metric, [(NO_LABELS, float(value))])
            for metric, value in zip(PROCESS_METRICS, process, strict=True)
        ]

    return families


def _count_open_files(folder: str) -> int:
    """The size of the directory: the count since Linux 6.2 (fs/proc/fd.c), 0 before."""
    return os.stat(folder).st_size or len(os.listdir(folder))

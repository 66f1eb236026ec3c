"""The exporter's metrics about itself: its build and its process.

Names and meaning of the latter, which all Prometheus programs have: Prometheus
docs/instrumenting/writing_clientlibs.md, "Process metrics". prometheus-client is not used since it
lists /proc/self/fd at each scrape, which takes a millisecond with a thousand open cgroup files, and
since it takes 4 MB.
"""

import os
import platform
import resource
from collections.abc import Callable

import batchjob
from collectors.host import read_path
from collectors.jobs.processes.proc import read_boot_time
from collectors.metric import NO_LABELS, Metric, MetricFamily, labels

# fmt: off
BUILD_INFO = Metric("batchjob_exporter_build_info", "gauge",
    "Versions of the exporter and of Python; always 1.", ("version", "python", "revision"))
SELF_METRICS = (BUILD_INFO,)
CPU_SECONDS = Metric("process_cpu_seconds_total", "counter", "User and system CPU time.")
START_TIME = Metric("process_start_time_seconds", "gauge",
    "Start time of the process, in Unix time.")
# fmt: on
RESIDENT_BYTES = Metric("process_resident_memory_bytes", "gauge", "Resident memory.")
VIRTUAL_BYTES = Metric("process_virtual_memory_bytes", "gauge", "Virtual memory.")
OPEN_FILES = Metric("process_open_fds", "gauge", "Open file descriptors.")
MAX_OPEN_FILES = Metric("process_max_fds", "gauge", "Maximum number of open file descriptors.")


def version_text() -> str:
    pairs = _build_labels()
    revision = f", revision {pairs['revision']}" if "revision" in pairs else ""
    return f"batchjob_exporter {pairs['version']} (Python {pairs['python']}{revision})"


def self_families_reader(process_metrics: bool) -> Callable[[], list[MetricFamily]]:
    build = MetricFamily(BUILD_INFO, [(labels(**_build_labels()), 1.0)])
    if not process_metrics:
        return lambda: [build]
    read = process_reader()
    return lambda: [build, *read()]


def _build_labels() -> dict[str, str]:
    pairs = {"version": batchjob.__version__, "python": platform.python_version()}
    # Packagers set this variable if they know the commit.
    revision = os.environ.get("BATCHJOB_REVISION", "")
    return {**pairs, "revision": revision} if revision else pairs


def process_reader(procfs: str = "/proc") -> Callable[[], list[MetricFamily]]:
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    # /proc/stat has the boot time too, but systemd's ProcSubset=pid hides that file.
    boot_time = read_boot_time()
    page_bytes = os.sysconf("SC_PAGE_SIZE")

    def families() -> list[MetricFamily]:
        # proc_pid_stat(5), from the third field on: the name before it may contain anything.
        fields = read_path(f"{procfs}/self/stat").rpartition(b")")[2].split()
        values = {
            CPU_SECONDS: (int(fields[11]) + int(fields[12])) / ticks_per_second,
            START_TIME: boot_time + int(fields[19]) / ticks_per_second,
            RESIDENT_BYTES: int(fields[21]) * page_bytes,
            VIRTUAL_BYTES: int(fields[20]),
            OPEN_FILES: _count_open_files(f"{procfs}/self/fd"),
            MAX_OPEN_FILES: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
        return [
            MetricFamily(metric, [(NO_LABELS, float(value))]) for metric, value in values.items()
        ]

    return families


def _count_open_files(folder: str) -> int:
    """The size of the directory: the count since Linux 6.2 (fs/proc/fd.c), 0 before."""
    return os.stat(folder).st_size or len(os.listdir(folder))

"""cgroup v1: controller and file → fields (Linux Documentation/admin-guide/cgroup-v1/)."""

from collections.abc import Collection, Mapping
from typing import Any

from collectors.jobs.cgroups.devices import DeviceNames
from collectors.jobs.cgroups.formats import Parse, count_list, flat_keyed, single, whole
from collectors.jobs.cgroups.reader import CgroupFile, read_path
from collectors.jobs.reading import DeviceIO

_NANOSECONDS = 1_000_000_000
_NO_LIMIT = 2**62  # memory.txt: "no limit" is LONG_MAX rounded down to a page, whose size varies


def sources(
    groups: Collection[str], devices: DeviceNames, clock_ticks: int
) -> Mapping[str, tuple[CgroupFile, ...]]:
    """For each controller the files to read for the metric groups wanted.

    Only the `total_` keys of memory.stat include the steps below a job's directory.
    """
    table: Mapping[str, tuple[CgroupFile, ...]] = {
        "cpuacct": (
            CgroupFile("cpuacct.usage", "cpu", _divided("cpu_seconds", _NANOSECONDS), brief=True),
            CgroupFile(
                "cpuacct.stat",
                "cpu",
                flat_keyed(
                    {
                        "system": ("cpu_system_seconds", clock_ticks),
                    }
                ),
                brief=True,
            ),
        ),
        "cpu": (
            CgroupFile(
                "cpu.stat",
                "cpu",
                flat_keyed(
                    {
                        "nr_periods": ("cpu_periods", 1),
                        "nr_throttled": ("cpu_throttled_periods", 1),
                        "throttled_time": ("cpu_throttled_seconds", _NANOSECONDS),
                    }
                ),
            ),
            CgroupFile("cpu.cfs_quota_us", "cpu", _quota, rare=True),
            CgroupFile("cpu.cfs_period_us", "cpu", single("cfs_period"), rare=True),
        ),
        "cpuset": (
            CgroupFile(
                "cpuset.cpus", "cpu", lambda data: {"cpuset_cpus": count_list(data)}, rare=True
            ),
            CgroupFile(
                "cpuset.effective_cpus",
                "cpu",
                lambda data: {"effective_cpus": count_list(data)},
                rare=True,
            ),
        ),
        "memory": (
            CgroupFile("memory.usage_in_bytes", "memory", single("memory_current")),
            CgroupFile("memory.max_usage_in_bytes", "memory", single("memory_peak"), brief=True),
            CgroupFile("memory.kmem.usage_in_bytes", "memory", single("memory_kernel")),
            CgroupFile("memory.failcnt", "memory", single("memory_failures")),
            CgroupFile("memory.memsw.failcnt", "memory", single("memsw_failures")),
            CgroupFile(
                "memory.stat",
                "memory",
                flat_keyed(
                    {
                        "hierarchical_memory_limit": ("memory_hierarchical_limit", 1),
                        "total_rss": ("memory_anon", 1),
                        "total_cache": ("memory_file", 1),
                        "total_shmem": ("memory_shmem", 1),
                        "total_mapped_file": ("memory_mapped", 1),
                        "total_inactive_file": ("memory_inactive_file", 1),
                        "total_swap": ("memory_swap", 1),
                        "total_pgfault": ("page_faults", 1),
                        "total_pgmajfault": ("page_faults_major", 1),
                    }
                ),
            ),
        ),
        "blkio": (
            CgroupFile(
                "blkio.throttle.io_service_bytes_recursive", "io", _blkio("io_bytes", devices)
            ),
            CgroupFile(
                "blkio.throttle.io_serviced_recursive", "io", _blkio("io_operations", devices)
            ),
        ),
        "pids": (
            CgroupFile("pids.current", "processes", single("threads")),
            CgroupFile("pids.max", "processes", single("threads_limit"), rare=True),
            CgroupFile("pids.events", "processes", flat_keyed({"max": ("threads_limit_hits", 1)})),
        ),
    }
    return {
        controller: tuple(source for source in files if source.group in groups)
        for controller, files in table.items()
    }


def oom_kills(path: str) -> int | None:
    """Processes of this very directory that the OOM killer ended (kernel 4.13).

    v1 counts a kill only in the victim's own cgroup (mm/memcontrol.c, memcg_memory_event), which
    is a task directory below the job's.
    """
    for line in read_path(f"{path}/memory.oom_control").splitlines():
        key, _, value = line.partition(b" ")
        if key == b"oom_kill":
            return whole(value)
    return None


def finish(values: dict[str, Any], user_before: float) -> dict[str, Any]:
    """Turn what single files said into the fields of a reading.

    cpuacct.stat counts in ticks of 10 ms, which is a tenth of a short job; cpuacct.usage is exact.
    So system time is the former's and user time the rest, but never less than `user_before`: the
    tick that is added to the one may not be taken from the other.
    """
    seconds, system = values.pop("cpu_seconds", None), values.get("cpu_system_seconds")
    if seconds is None or system is None:
        values.pop("cpu_system_seconds", None)
    else:
        values["cpu_user_seconds"] = max(seconds - system, user_before)
    limit = values.pop("memory_hierarchical_limit", _NO_LIMIT)
    if limit < _NO_LIMIT:
        values["memory_limit"] = limit
    memory, swap = values.pop("memory_failures", None), values.pop("memsw_failures", 0)
    if memory is not None:
        values["memory_limit_hits"] = memory + swap
    quota, period = values.pop("cfs_quota", None), values.pop("cfs_period", None)
    if quota is not None and period:
        values["cpus"] = quota / period
    transferred, operations = values.pop("io_bytes", None), values.pop("io_operations", None)
    if transferred is not None and operations is not None:
        values["io"] = _devices(transferred, operations)
    return values


def _devices(
    transferred: Mapping[str, tuple[int, int]], operations: Mapping[str, tuple[int, int]]
) -> dict[str, DeviceIO]:
    return {
        device: DeviceIO(*transferred[device], *operations[device])
        for device in transferred
        if device in operations
    }


def _divided(field: str, divisor: int) -> Parse:
    return lambda data: {field: whole(data) / divisor}


def _quota(data: bytes) -> Mapping[str, Any]:
    return {} if data == b"-1\n" else {"cfs_quota": whole(data)}


def _blkio(field: str, devices: DeviceNames) -> Parse:
    def parse(data: bytes) -> Mapping[str, Any]:
        """Lines `8:0 Read 1`, `8:0 Write 2`, ..., and a last `Total 3` (blkio-controller.rst).

        Since Linux 6.10 nothing is counted until somebody sets a throttle (block/blk-throttle.c):
        without the line of any device the job's IO is not known.
        """
        read: dict[str, dict[str, int]] = {}
        counted = False
        for line in data.decode("ascii").splitlines():
            words = line.split()
            if len(words) == 3:
                counted = True
                name = devices.name(words[0])
                if name is not None:
                    read.setdefault(name, {})[words[1]] = whole(words[2])
        if not counted:
            return {}
        return {
            field: {
                name: (ops["Read"], ops["Write"])
                for name, ops in read.items()
                if "Read" in ops and "Write" in ops
            }
        }

    return parse

"""The cgroup files and keys of each field of a reading, from the annotations of the fields."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple, get_args, get_type_hints

from batchjob.quantities.reading import (
    GAUGE,
    NANOSECONDS,
    V1,
    V2,
    CgroupReading,
    Number,
    gauges,
)
from collectors.jobs.cgroups.formats import Parse, flat_keyed, single

BytesByDevice = Mapping[str, tuple[int, int]]  # bytes, or number, of reads and writes


class CgroupParts(NamedTuple):
    """Numbers from files that fill a field of a reading only in combination."""

    cpu_seconds: Annotated[Number, V1("cpuacct.usage", "", NANOSECONDS)] = None
    cpu_system_ticks: Annotated[Number, V1("cpuacct.stat", "system")] = None
    cfs_quota: Annotated[Number, V1("cpu.cfs_quota_us"), GAUGE] = None
    cfs_period: Annotated[Number, V1("cpu.cfs_period_us"), GAUGE] = None
    quota_cpus: Annotated[Number, V2("cpu.max"), GAUGE] = None
    cpuset_cpus: Annotated[Number, V1("cpuset.cpus"), V2("cpuset.cpus"), GAUGE] = None
    effective_cpus: Annotated[
        Number, V1("cpuset.effective_cpus"), V2("cpuset.cpus.effective"), GAUGE
    ] = None
    memory_hierarchical_limit: Annotated[
        Number, V1("memory.stat", "hierarchical_memory_limit"), GAUGE
    ] = None
    memory_failures: Annotated[Number, V1("memory.failcnt")] = None
    memsw_failures: Annotated[Number, V1("memory.memsw.failcnt")] = None
    io_bytes: Annotated[BytesByDevice | None, V1("blkio.throttle.io_service_bytes_recursive")] = (
        None
    )
    io_operations: Annotated[BytesByDevice | None, V1("blkio.throttle.io_serviced_recursive")] = (
        None
    )


GAUGE_FIELDS = gauges(CgroupReading) | gauges(CgroupParts)
"""The fields that no longer apply once their directory is removed."""

FieldTargets = Mapping[str, tuple[str, int]]  # key in the file → field, and its `per_unit`


def fields_by_file(version: type[V1] | type[V2]) -> Mapping[str, FieldTargets]:
    """The fields to set from each file, by its keys."""
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for reading in (CgroupReading, CgroupParts):
        for field, hint in get_type_hints(reading, include_extras=True).items():
            for source in get_args(hint)[1:]:
                if isinstance(source, version):
                    found.setdefault(source.file, {})[source.key] = (field, source.per_unit)
    return found


def number_parser(fields: FieldTargets) -> Parse:
    """A parser of a file with one number, or with one per line."""
    return single(*fields[""]) if "" in fields else flat_keyed(fields)


def single_field(fields: FieldTargets) -> str:
    """The field of a file with one value."""
    ((field, _),) = fields.values()
    return field


def allocated_cpus(parts: CgroupParts) -> float | None:
    """CPUs by the CPU set, else by the quota; an empty CPU set is inherited, not an allocation."""
    if parts.cpuset_cpus:
        return parts.cpuset_cpus if parts.effective_cpus is None else parts.effective_cpus
    if parts.cfs_quota is not None and parts.cfs_period:
        return parts.cfs_quota / parts.cfs_period
    return parts.quota_cpus

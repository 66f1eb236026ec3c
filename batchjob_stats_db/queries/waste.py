"""What jobs were allocated and did not use, in sums over days.

The figures of single jobs are defined in efficiency.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

Row = Mapping[Any, Any]


class ResourceSums(NamedTuple):
    """Columns of the daily sums of measured jobs: what was allocated, and what of it was used."""

    allocated: str
    used: str


RESOURCES = {
    "cpu": ResourceSums("measured_cpu_allocated_seconds", "cpu_seconds"),
    "memory": ResourceSums(
        "measured_memory_peak_allocated_byte_seconds", "memory_peak_byte_seconds"
    ),
    "gpu": ResourceSums("measured_gpu_allocated_seconds", "gpu_seconds"),
}


def unused_key(resource: str) -> str:
    """The key of what was allocated and not used."""
    name = RESOURCES[resource].allocated.removeprefix("measured_").replace("allocated", "unused")
    return name.replace("_peak", "")


def efficiency(sums: Row, resource: str) -> float | None:
    """What was used of what was allocated; None if nothing was measured."""
    allocated, used = (sums[column] for column in RESOURCES[resource])
    return used / allocated if allocated else None


def with_waste(sums: Row) -> dict[Any, Any]:
    """The sums, with the efficiency and the unused amount of each resource."""
    row = dict(sums)
    for name, (allocated, used) in RESOURCES.items():
        # Around midnight, usage may exceed its allocation by a sample.
        row[unused_key(name)] = max(sums[allocated] - sums[used], 0.0)
        row[f"{name}_efficiency"] = efficiency(sums, name)
    return row

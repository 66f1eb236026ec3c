"""The node's CPU time, with which the CPU time of its jobs is compared."""

import os
from typing import NamedTuple

from collectors.node import MODES, parse_stat

_AT_REST = tuple(MODES.index(mode) for mode in ("idle", "iowait", "steal"))


class Processors(NamedTuple):
    """Busy CPU seconds since boot, and the CPUs that are online."""

    busy_seconds: float
    cpus: int


def read(procfs: str) -> Processors:
    """Read /proc/stat. Raises OSError, and ValueError for an unexpected format."""
    with open(f"{procfs}/stat", "rb") as file:
        times = parse_stat(file.read(), os.sysconf("SC_CLK_TCK"))
    at_rest = sum(times.modes[mode] for mode in _AT_REST)
    return Processors(sum(times.modes) - at_rest, times.cpus)

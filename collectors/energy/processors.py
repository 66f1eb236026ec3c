"""The node's CPU time, the measure against which that of its jobs counts."""

import os
from typing import NamedTuple

from collectors.node import MODES, parse_stat

_AT_REST = tuple(MODES.index(mode) for mode in ("idle", "iowait", "steal"))


class Processors(NamedTuple):
    """CPU seconds since boot spent at work, and the CPUs that are online."""

    busy_seconds: float
    cpus: int


def read(procfs: str) -> Processors:
    """Read /proc/stat. Raises OSError, and ValueError when it is not as expected."""
    with open(f"{procfs}/stat", "rb") as file:
        times = parse_stat(file.read(), os.sysconf("SC_CLK_TCK"))
    at_rest = sum(times.modes[mode] for mode in _AT_REST)
    return Processors(sum(times.modes) - at_rest, times.cpus)

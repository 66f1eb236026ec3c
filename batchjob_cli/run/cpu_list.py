"""The CPUs to which a run is bound, in the kernel's list format: `0-3,8` (cpuset(7))."""

import os
import re
from collections.abc import Set

from batchjob.runtime.values import with_metavar

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)


@with_metavar("LIST")
def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse CPUs that this process may use itself."""
    found: set[int] = set()
    for part in text.split(","):
        matched = _PART.fullmatch(part.strip())
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
        if first > last:
            raise ValueError(f"expected CPUs such as 0-3,8, got {text!r}")
        found.update(range(first, last + 1))
    usable = os.sched_getaffinity(0)
    if missing := found - usable:
        raise ValueError(f"CPU {min(missing)} is not usable; usable are {format_cpu_list(usable)}")
    return frozenset(found)


def format_cpu_list(cpus: Set[int]) -> str:
    """The list as text."""
    parts: list[list[int]] = []
    for each in sorted(cpus):
        if parts and parts[-1][-1] == each - 1:
            parts[-1][1:] = [each]
        else:
            parts.append([each])
    return ",".join("-".join(map(str, part)) for part in parts)

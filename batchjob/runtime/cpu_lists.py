"""Sets of CPUs in the kernel's list format, `0-3,8` (Linux cpuset(7), "List format")."""

import re
from collections.abc import Set

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_MAX_CPUS = 65536  # more than any kernel supports; a longer list would cost memory


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a list; raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        matched = _PART.fullmatch(part.strip())
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
        if not first <= last < _MAX_CPUS:
            raise ValueError(f"expected CPUs such as 0-3,8, got {text!r}")
        found.update(range(first, last + 1))
    return frozenset(found)


def format_cpu_list(cpus: Set[int]) -> str:
    parts: list[list[int]] = []
    for each in sorted(cpus):
        if parts and parts[-1][-1] == each - 1:
            parts[-1][1:] = [each]
        else:
            parts.append([each])
    return ",".join("-".join(map(str, part)) for part in parts)

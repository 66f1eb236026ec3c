"""The machine a collector reads: where its file systems are, and what time it is."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """Roots of the kernel's file systems and the clocks; tests point them at recorded trees."""

    procfs: str = "/proc"
    sysfs: str = "/sys"
    cgroupfs: str = "/sys/fs/cgroup"
    dev: str = "/dev"
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

"""The machine that a collector reads: its file systems and its clocks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Moment(NamedTuple):
    """A point in time: `epoch` is for display, `monotonic` for durations."""

    epoch: float  # Unix time; the clock may be changed
    monotonic: float  # seconds

    def at(self, epoch: float) -> "Moment":
        """The moment of another epoch time, by the current offset between the clocks."""
        return Moment(epoch, self.monotonic - (self.epoch - epoch))


@dataclass(frozen=True)
class Host:
    """Roots of the kernel's file systems and the clocks; tests point them at recorded trees."""

    procfs: str = "/proc"
    sysfs: str = "/sys"
    cgroupfs: str = "/sys/fs/cgroup"
    dev: str = "/dev"
    helper: str = "/run/batchjob_helper/socket"
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    def now(self) -> Moment:
        return Moment(self.clock(), self.monotonic())

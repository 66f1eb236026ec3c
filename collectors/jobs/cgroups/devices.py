"""Names of block devices, and which of them would count the same bytes twice."""

import os

from collectors.jobs.cgroups.directory import ReadErrors

# Linux Documentation/admin-guide/devices.txt: RAM disks and loop devices store nothing themselves.
_NO_STORAGE_MAJORS = frozenset({"1", "7"})


class DeviceNames:
    """`8:0` → `sda`, cached. Safe in several threads: at worst, a look-up is done twice."""

    def __init__(self, sysfs: str, errors: ReadErrors) -> None:
        self._sysfs = sysfs
        self._errors = errors
        self._names: dict[str, str | None] = {}

    def name(self, number: str) -> str | None:
        """The device's name, its number if sysfs has no name, or None if it is left out.

        A stacked device (LVM, md) passes its requests on to others, which count them again. What is
        not a number is counted once as malformed: the kernel writes `(unknown)` for a device
        without a disk, such as a hidden path of NVMe multipath.
        """
        if number not in self._names:
            self._names[number] = self._look_up(number)
        return self._names[number]

    def skip_row(self) -> None:
        """Count a row of a device that is not in the file's format."""
        self._errors.count("malformed")

    def _look_up(self, number: str) -> str | None:
        major, colon, minor = number.partition(":")
        if not (colon and major.isdigit() and minor.isdigit()):
            self._errors.count("malformed")
            return None
        link = f"{self._sysfs}/dev/block/{number}"
        if major in _NO_STORAGE_MAJORS:
            return None
        try:
            if os.listdir(f"{link}/slaves"):
                return None
        except OSError:
            pass  # a partition, or a device unknown to sysfs: not stacked
        return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else number

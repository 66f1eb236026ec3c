"""The devices that the device program of each job's cgroup v2 allots to it, from the helper."""

import os
import time
from collections.abc import Mapping, Sequence

from collectors.gpu.devices import GpuTable
from collectors.host import Host
from collectors.jobs.view import JobHolder, JobName
from collectors.kernel.client import HelperClient
from collectors.kernel.devices import Device

NVIDIA_MAJOR = 195  # Linux, Documentation/admin-guide/devices.txt; minors 254 and 255 are not GPUs

_FRESH_SECONDS = 60.0  # a scheduler replaces the program of a job that it resizes


class AllottedDevices:
    """Asks the helper once for each new job, and again after a while."""

    def __init__(self, host: Host) -> None:
        self._client = HelperClient(host)
        self._known: dict[str, tuple[float, list[Device] | None]] = {}  # by directory

    def of_jobs(
        self, holders: Sequence[JobHolder], table: GpuTable, capability_major: int | None
    ) -> Mapping[JobName, frozenset[Device]]:
        """The character devices of GPUs that each job has; jobs of which that is not known lack."""
        gpus = [(NVIDIA_MAJOR, gpu.minor) for gpu in table.gpus if gpu.vendor == "nvidia"]
        devices = [(major, minor) for major, minor in gpus if minor is not None]
        if capability_major is not None:
            devices += [(capability_major, minor) for minor in table.capabilities]
        now = time.monotonic()
        directories = {path for holder in holders for path in holder.directories}
        self._known = {
            path: known
            for path, known in self._known.items()
            if path in directories and known[0] > now
        }
        found = {}
        for holder in holders if devices else ():
            answers = [self._ask(path, devices, now) for path in holder.directories if _is_v2(path)]
            if answers and None not in answers:
                found[holder.name] = frozenset(each for some in answers for each in some or ())
        return found

    def _ask(self, path: str, devices: list[Device], now: float) -> list[Device] | None:
        if path not in self._known:
            answer = self._client.allotted_devices(path, devices)
            self._known[path] = now + _FRESH_SECONDS, answer
        return self._known[path][1]


def _is_v2(directory: str) -> bool:
    return os.path.exists(f"{directory}/cgroup.controllers")

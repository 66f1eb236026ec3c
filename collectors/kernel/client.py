"""The exporter's side of the helper: asks it, and goes on without it."""

import functools
import itertools
import json
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from batchjob.runtime.json_reader import parse_json
from collectors.host import Host
from collectors.kernel.devices import Device

_ANSWER_SECONDS = 5.0  # for a whole answer, and longer than the helper waits for another client
_RETRY_SECONDS = 10.0  # after a failure
_MAX_ANSWER_BYTES = 16 << 20  # of 20000 jobs


Cgroup = tuple[str, int]
"""The directory of a job's cgroup, and its inode number."""


class JobCounters(NamedTuple):
    """What the kernel has counted for jobs, by their cgroups. None: not counted."""

    instance: str  # changes when the counters start from zero
    process_io: Mapping[Cgroup, Sequence[int]] | None  # see `ProcessIo.read`
    network: Mapping[Cgroup, Sequence[Sequence[int]] | None] | None  # see `Network.read`
    earlier: frozenset[Cgroup]  # were there before their network was counted


class HelperClient:
    """Asks the helper of one host; each thread has its own."""

    def __init__(self, host: Host, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._path = host.helper
        self._cgroupfs = os.path.realpath(host.cgroupfs)
        self._answer_seconds = answer_seconds
        self._retry_at = 0.0

    def allotted_devices(self, directory: str, devices: Iterable[Device]) -> list[Device] | None:
        """The devices that a cgroup v2's own device programs allot to it; None: not known."""
        path = self._relative(directory)
        answer = self.ask({"devices": path, "numbers": [list(each) for each in devices]})
        found = answer.get("devices") if answer else None
        return None if found is None else [(int(major), int(minor)) for major, minor in found]

    def job_counters(self, cgroups: Iterable[Cgroup]) -> JobCounters | None:
        """The counters of jobs; None: no helper, or one of another version."""
        jobs: dict[str, list[Cgroup]] = {}
        relative = functools.cache(self._relative)
        for cgroup in cgroups:
            jobs.setdefault(relative(os.path.dirname(cgroup[0])), []).append(cgroup)
        ids = {parent: [inode for _, inode in of_parent] for parent, of_parent in jobs.items()}
        answer = self.ask({"jobs": ids})
        if answer is None or "numbers" not in answer:
            return None
        asked = list(itertools.chain.from_iterable(jobs.values()))
        process_io, network = (
            numbers and dict(zip(asked, numbers, strict=True))
            for numbers in map(answer["numbers"].get, ("process-io", "network"))
        )
        earlier = frozenset(asked[index] for index in answer["earlier"])
        return JobCounters(answer["instance"], process_io, network, earlier)

    def problems(self) -> Mapping[str, str] | None:
        """Why each feature of the helper does not work, "" if it does; None: no helper."""
        answer = self.ask({"check": True})
        return answer.get("problems") if answer else None

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The answer to one request; None if there is none in time."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            answer = self._exchange(json.dumps(request).encode() + b"\n")
        except (OSError, ValueError):
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            return None
        return answer if isinstance(answer, dict) and "error" not in answer else None

    def _exchange(self, line: bytes) -> Any:
        deadline = time.monotonic() + self._answer_seconds
        received = bytearray()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._answer_seconds)
            connection.connect(self._path)
            connection.sendall(line)
            while data := connection.recv(1 << 16):
                received += data
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                if len(received) > _MAX_ANSWER_BYTES:
                    raise OSError("the answer is too long")
        return parse_json(bytes(received))

    def _relative(self, directory: str) -> str:
        """The path below the mount point, where v1's controllers may be symbolic links."""
        return os.path.relpath(os.path.realpath(directory), self._cgroupfs)

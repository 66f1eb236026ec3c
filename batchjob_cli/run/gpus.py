"""The GPUs of runs: whole GPUs of this machine, of which each is held by one run at most.

A run holds a GPU by a socket with its name in the abstract namespace (unix(7)): of all processes of
the machine only one can have bound it, and it is free when that process ends, however it ends. Runs
that wait have sockets as well, named by the time since which they wait.
"""

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from batchjob.runtime.formatting import format_count
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.subprocesses import SchedulerError, call
from batchjob_cli.run.launch import WRONG_USAGE, RunStartError
from collectors.host import Host

_HELD, _WAITING = "batchjob-gpu-", "batchjob-gpus-"  # names of sockets
_PROGRAM = (sys.executable, "-P", "-m", "batchjob_cli.run.gpus")  # drivers may hang
_ANSWER_SECONDS = 10.0
_FRESH_SECONDS = 5.0  # a run may have waited for its start since the drivers answered
_ASK_SECONDS = 10.0  # interval of asking the drivers while too few GPUs are free


class RunGpu(NamedTuple):
    """A whole GPU that answers."""

    vendor: str
    number: int  # the driver's index
    uuid: str
    variable: str  # the environment variable by which a process sees only some GPUs
    word: str  # the GPU in that variable


class RunGpus:
    """What a run has of the GPUs that it asks for; to be closed when it has ended."""

    def __init__(self, count: int, jobid: str) -> None:
        """Raises RunStartError if this machine does not have so many GPUs."""
        self.gpus: tuple[RunGpu, ...] = ()
        self._count = count
        self._jobid = jobid
        self._held: list[socket.socket] = []
        self._waiting: socket.socket | None = None
        self._answering: tuple[RunGpu, ...]
        self._counts: Mapping[str, int] = {}  # by vendor, with GPUs that do not answer
        self._ask()
        most = max(self._counts.values(), default=0)
        if not most and self._problem:
            raise RunStartError(f"--gpus: {self._problem}")
        if count > most:
            text = f"--gpus: {count} asked for, this machine has {format_count(most, 'whole GPU')}"
            raise RunStartError(text, WRONG_USAGE)
        # Runs wait in one line for the same GPUs.
        known = " ".join(sorted(gpu.uuid for gpu in self._answering))
        self._line = f"{_WAITING}{hashlib.sha256(known.encode()).hexdigest()[:16]}-"

    def close(self) -> None:
        """Give up the GPUs, or the place in the line."""
        for each in (self._waiting, *self._held):
            if each is not None:
                each.close()

    @property
    def wait_reason(self) -> str:
        """Why the run waits; "" if it holds its GPUs, which it takes if possible."""
        if self.gpus:
            return ""
        if self._waiting is None:
            self._waiting = _bind(f"{self._line}{time.time_ns():020d}-{self._jobid}")
        other = "other runs have waited longer for GPUs"
        reason = self._take() if self._is_first() else other
        self._is_fresh = False
        return reason

    def environment(self) -> dict[str, str]:
        """The variables by which the command sees its GPUs, and no others."""
        return {
            variable: ",".join(gpu.word for gpu in self.gpus if gpu.variable == variable)
            for variable in self._variables
        }

    def _is_first(self) -> bool:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            names = [line.split()[-1] for line in file if f" @{self._line}" in line]
        return not names or min(names).endswith(self._jobid)

    def _take(self) -> str:
        """Take the GPUs, after a look at whether they still answer; returns why not."""
        free = {gpu: held for gpu in self._answering if (held := _bind(f"{_HELD}{gpu.uuid}"))}
        of_vendors = [[gpu for gpu in free if gpu.vendor == vendor] for vendor in self._counts]
        chosen = next((each for each in of_vendors if len(each) >= self._count), [])[: self._count]
        age = time.monotonic() - self._asked_at
        if chosen and self._is_fresh and age < _FRESH_SECONDS:
            self.gpus = tuple(chosen)
            self._held = [free.pop(gpu) for gpu in chosen]
        for each in free.values():
            each.close()
        if self.gpus and self._waiting:
            self._waiting.close()
            return ""
        if chosen or age > _ASK_SECONDS:
            self._ask()
            return self._take()
        text = f"{len(free)} of {sum(self._counts.values())} GPUs free, {self._count} asked for"
        return f"{text} ({self._problem})" if self._problem else text

    def _ask(self) -> None:
        """Ask the drivers which GPUs answer."""
        try:
            answer = call(_PROGRAM, timeout=_ANSWER_SECONDS, extra_environment=os.environ)
            answering, counts, self._variables, self._problem = parse_json(answer)
        except (SchedulerError, ValueError) as error:
            answering, counts, self._problem = [], {}, f"the GPU drivers do not answer: {error}"
        self._asked_at = time.monotonic()
        self._is_fresh = True  # until the run has waited for GPUs
        self._answering = tuple(RunGpu(*gpu) for gpu in answering)
        self._counts = {**self._counts, **counts}
        if not self._problem and (lost := sum(self._counts.values()) - len(answering)):
            self._problem = f"{lost} do{'es' if lost == 1 else ''} not answer"


def read_gpus(host: Host) -> tuple[list[RunGpu], dict[str, int], list[str], str]:
    """The GPUs that answer, how many each vendor has, the vendors' variables, and what is wrong."""
    from collectors.gpu.vendor import vendors  # which runs without GPUs do without

    found, counts, variables, problems = [], {}, [], []
    for name, vendor in vendors(host, _ASK_SECONDS).items():
        variables.append(vendor.visible_devices)
        try:
            gpus, count = vendor.list_now()
        except Exception as error:  # whatever a driver does, another vendor's GPUs are usable
            problems.append(str(error))
            continue
        whole = [gpu for gpu in gpus if not gpu.partitioned]
        if count:
            counts[name] = count - (len(gpus) - len(whole))
        for gpu in whole:
            word = str(gpu.index) if gpu.uuid == gpu.pci_bus_id[4:].lower() else gpu.uuid
            found.append(RunGpu(name, gpu.index, gpu.uuid, vendor.visible_devices, word))
    return found, counts, variables, "; ".join(problems)


def _bind(name: str) -> socket.socket | None:
    """A socket with this name; None if another process has it."""
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(f"\0{name}")
    except OSError:
        bound.close()
        return None
    return bound


if __name__ == "__main__":
    print(json.dumps(read_gpus(Host())))

"""The GPUs of runs: whole GPUs of this machine, of which each is held by one run at most.

A run holds a GPU by a socket with its name in the abstract namespace (unix(7)): of all processes of
the machine only one can have bound it, and it is free when that process ends, however it ends. Runs
that wait have sockets as well, named by the time since which they wait. The drivers are asked in a
process of its own, because they may hang.
"""

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from batchjob_cli.run.launch import WRONG_USAGE, RunStartError
from collectors.gpu.vendor import vendors
from collectors.host import Host, read_text

_HELD, _WAITING = "batchjob-gpu-", "batchjob-gpus-"  # names of sockets
_ANSWER_SECONDS = 10.0  # for the drivers
_ONLY = 3  # the descriptor of the process that asks them
_LIST_SECONDS = 10.0  # interval of asking while too few GPUs are free


class RunGpu(NamedTuple):
    """A whole GPU that answers."""

    vendor: str
    number: int  # the driver's index
    uuid: str
    variable: str  # the environment variable by which a process sees only some GPUs
    word: str  # the GPU in that variable


class MachineGpus(NamedTuple):
    """The whole GPUs of this machine."""

    gpus: tuple[RunGpu, ...] = ()  # that answer
    counts: Mapping[str, int] = {}  # by vendor, with those that do not answer
    variables: tuple[str, ...] = ()  # of all vendors
    problem: str = ""  # why GPUs are missing

    @property
    def most(self) -> int:
        """The most GPUs that a run can have, all of them of one vendor."""
        return max(self.counts.values(), default=0)


class RunGpus:
    """What a run has of the GPUs that it asks for; to be closed when it has ended."""

    def __init__(self, count: int, jobid: str, host: Host | None = None) -> None:
        """Raises RunStartError if this machine does not have so many GPUs."""
        self.gpus: tuple[RunGpu, ...] = ()
        self._count = count
        self._jobid = jobid
        self._host = host or Host()
        self._sockets: list[socket.socket] = []
        self._waiting: socket.socket | None = None
        self._hanging = 0  # process id of a question that the drivers have not answered
        self._machine = MachineGpus()
        self._is_fresh = True  # the drivers were asked since the run last waited
        self._list()
        if not self._machine.counts and self._machine.problem:
            raise RunStartError(f"--gpus: {self._machine.problem}")
        if count > self._machine.most:
            raise RunStartError(
                f"--gpus: {count} asked for, this machine has {self._machine.most} whole GPUs",
                WRONG_USAGE,
            )
        # Runs wait in one line for the same GPUs.
        known = " ".join(sorted(gpu.uuid for gpu in self._machine.gpus))
        self._line = f"{_WAITING}{hashlib.sha256(known.encode()).hexdigest()[:16]}-"

    def close(self) -> None:
        """Give up the GPUs, or the place in the line."""
        self._leave_line()
        for each in self._sockets:
            each.close()
        self._sockets = []

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
            for variable in self._machine.variables
        }

    def _is_first(self) -> bool:
        prefix = f"@{self._line}"
        words = (line.split() for line in read_text(f"{self._host.procfs}/net/unix").splitlines())
        names = [line[-1] for line in words if line and line[-1].startswith(prefix)]
        return not names or min(names).endswith(self._jobid)

    def _take(self) -> str:
        """Take the GPUs, after a look at whether they still answer; returns why not."""
        free = {gpu: lock for gpu in self._machine.gpus if (lock := _bind(f"{_HELD}{gpu.uuid}"))}
        chosen = self._choose(free)
        if chosen and self._is_fresh:
            self.gpus = chosen
            self._sockets = [free.pop(gpu) for gpu in chosen]
        for each in free.values():
            each.close()
        if self.gpus:
            self._leave_line()
            return ""
        if chosen or self._host.monotonic() - self._listed_at > _LIST_SECONDS:
            self._list()
            return self._take()
        return self._describe_shortage(free)

    def _choose(self, free: Iterable[RunGpu]) -> tuple[RunGpu, ...]:
        """So many GPUs of one vendor; none if there are too few."""
        for vendor in self._machine.counts:
            of_vendor = [gpu for gpu in free if gpu.vendor == vendor]
            if len(of_vendor) >= self._count:
                return tuple(of_vendor[: self._count])
        return ()

    def _describe_shortage(self, free: Sequence[RunGpu] | Mapping[RunGpu, Any]) -> str:
        machine = self._machine
        text = f"{len(free)} of {machine.most} GPUs free, {self._count} asked for"
        return f"{text} ({machine.problem})" if machine.problem else text

    def _leave_line(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    def _list(self) -> None:
        """Ask the drivers; what is known of the machine remains if they do not answer."""
        answer = self._ask_drivers()
        self._listed_at = self._host.monotonic()
        self._is_fresh = True
        if not answer:
            problem = f"the GPU drivers do not answer within {_ANSWER_SECONDS:g} s"
            self._machine = self._machine._replace(gpus=(), problem=problem)
            return
        gpus, counts, variables, problem = answer
        counts = {**self._machine.counts, **counts}
        lost = sum(counts.values()) - len(gpus)
        silent = f"{lost} do{'es' if lost == 1 else ''} not answer"
        problem = problem or (silent if lost > 0 else "")
        found = tuple(RunGpu(*gpu) for gpu in gpus)
        self._machine = MachineGpus(found, counts, tuple(variables), problem)

    def _ask_drivers(self) -> Any:
        """The answer; None if there is none in time, or an earlier question still hangs."""
        if self._hanging and os.waitpid(self._hanging, os.WNOHANG) == (0, 0):
            return None
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                _keep_only(writer)
                os.write(_ONLY, json.dumps(_read_gpus(self._host)).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            answered, _, _ = select.select([answer], [], [], _ANSWER_SECONDS)
            text = answer.read() if answered else b""
        if not answered:
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self._hanging = 0 if os.waitpid(pid, 0 if answered else os.WNOHANG)[0] else pid
        return json.loads(text) if text else None


def _keep_only(descriptor: int) -> None:
    """Close all else: if the process hangs, it must keep neither a lock nor somebody's pipe."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(_ONLY):
        os.dup2(null, number)
    os.dup2(descriptor, _ONLY)
    os.closerange(_ONLY + 1, 4096)


def _read_gpus(host: Host) -> tuple[list[RunGpu], dict[str, int], list[str], str]:
    """The arguments of MachineGpus, as JSON has them."""
    found, counts, variables, problems = [], {}, [], []
    for name, vendor in vendors(host, _LIST_SECONDS).items():
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

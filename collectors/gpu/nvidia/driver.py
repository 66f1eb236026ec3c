"""NVML over the life of the exporter: a thread for each GPU, and one that reloads the driver.

A call that hangs, or a GPU that fell off the bus, stops the thread of that GPU and no other. When
the driver has been reloaded or updated, NVML is shut down and initialised again.
"""

import _ctypes
import importlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from batchjob.runtime.background import Refresher
from collectors.gpu.nvidia import nvml
from collectors.gpu.nvidia.errors import DRIVER_GONE, MISMATCH, error_name
from collectors.gpu.nvidia.gpm import Gpm
from collectors.gpu.reading import EnergyCounter, GpuReading, KnownGpu, longest_age
from collectors.host import Host

log = logging.getLogger(__name__)

# Minimum time before NVML is restarted while the driver itself works: a lost GPU returns only after
# a reset, and a restart interrupts the other GPUs.
SECONDS_BETWEEN_TRIES = 300.0
_SECONDS_TO_LEAVE = 2.0


class ClosedError(Exception):
    """NVML is not open at this moment."""


class NvmlSession:
    """NVML between initialisation and shutdown, and the threads that use it."""

    def __init__(self, pynvml: Any, number: int) -> None:
        self.pynvml = pynvml
        self.number = number
        self._inside = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def use(self) -> Iterator[Any]:
        """pynvml, for calls that must return before NVML may be shut down."""
        with self._changed:
            if self._closed:
                raise ClosedError
            self._inside += 1
        try:
            yield self.pynvml
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> bool:
        """Admit nobody; returns whether all threads have left, after waiting briefly for them."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: not self._inside, _SECONDS_TO_LEAVE)


class _Board:
    """One GPU: its thread, and its last known identity."""

    def __init__(self, driver: "NvidiaGpus", index: int) -> None:
        self.seen: KnownGpu | None = None  # as of the last successful reading
        self.samples: tuple[int, Gpm] | None = None  # number of an NVML session, and its samples
        self._read_at: float | None = None  # monotonic seconds, of the last successful reading
        self._driver = driver
        self._index = index
        age = longest_age(driver.interval)
        self.refresher = Refresher(
            f"gpu{index}", self._read, driver.interval, age, driver.host.monotonic
        )

    def _read(self) -> GpuReading:
        driver = self._driver
        begun = driver.host.monotonic()
        elapsed = driver.interval if self._read_at is None else begun - self._read_at
        reading, session = driver.read(self._index, driver.host.clock() - elapsed, self)
        at = driver.host.monotonic()
        self._read_at = begun
        counter = driver.energy_counter(reading.gpu.uuid)
        values = counter.believed(reading.values)
        self.seen = KnownGpu(reading.gpu, at, None)
        return reading._replace(values=values, energy=counter.follow(values, at, session))


class NvidiaGpus:
    """All NVIDIA GPUs of the node."""

    def __init__(self, host: Host, interval: float) -> None:
        self.host = host
        self.interval = interval
        self.version = ""  # of the driver; empty while it does not respond
        self._errors: Counter[tuple[str, str]] = Counter()
        self.session: NvmlSession | None = None
        self._sessions = 0
        self._boards: dict[int, _Board] = {}
        self._count = 0
        self._energy: dict[str, EnergyCounter] = {}
        self._error_codes: frozenset[int] = frozenset()
        self._began_at = float("-inf")
        self._hangs = False
        self._scanner = Refresher(
            "gpus", self.scan, interval, longest_age(interval), host.monotonic
        )

    def start(self) -> None:
        """Start looking for GPUs."""
        self._scanner.start()

    def stop(self) -> None:
        """Stop all threads except those that hang in the driver."""
        self._scanner.stop()
        for board in self._boards.values():
            board.refresher.stop()
        self._close()

    def known(self) -> list[KnownGpu]:
        """Every GPU once; if two indexes refer to one GPU, the newer reading counts."""
        newest: dict[str, KnownGpu] = {}
        for board in list(self._boards.values()):
            if board.seen is None:
                continue
            each = board.seen._replace(observed=board.refresher.latest())
            other = newest.get(each.gpu.uuid)
            if other is None or (other.last_seen or 0.0) < (each.last_seen or 0.0):
                newest[each.gpu.uuid] = each
        return sorted(newest.values(), key=lambda each: each.gpu.index)

    @property
    def complete(self) -> bool:
        """Whether the names of all GPUs that the driver counts are known."""
        return len(self.known()) == self._count

    def errors(self) -> MappingProxyType[tuple[str, str], int]:
        """Failed calls by GPU index (empty: the driver itself) and NVML's name for the error."""
        return MappingProxyType(dict(self._errors))

    def energy_counter(self, uuid: str) -> EnergyCounter:
        """The counter of this GPU, whatever index it has after a reload."""
        return self._energy.setdefault(uuid, EnergyCounter(longest_age(self.interval)))

    def read(self, index: int, since: float, board: "_Board") -> tuple[GpuReading, int]:
        """A reading and the number of its session; raises what NVML raises."""
        session = self.session
        if session is None:
            raise ClosedError
        with session.use() as pynvml:
            if board.samples is None or board.samples[0] != session.number:
                board.samples = (session.number, Gpm(pynvml))
            gpm = board.samples[1]
            try:
                return nvml.read(pynvml, index, since, self._errors, gpm), session.number
            except pynvml.NVMLError as error:
                self._failed(pynvml, str(index), error.value)
                raise

    def scan(self) -> None:
        """Open NVML, or reopen it after errors, and start a thread for each GPU that has none."""
        if self.session is not None and self._must_begin_anew():
            self._close()
        if self.session is None and not self._open():
            return
        assert self.session is not None
        with self.session.use() as pynvml:
            try:
                self._count = pynvml.nvmlDeviceGetCount()
            except pynvml.NVMLError as error:
                self._failed(pynvml, "", error.value)
                raise
        for index in range(self._count):
            if index not in self._boards:
                self._boards[index] = _Board(self, index)
                self._boards[index].refresher.start()
        for index in [index for index in self._boards if index >= self._count]:
            self._boards.pop(index).refresher.stop()

    def _failed(self, pynvml: Any, gpu: str, code: int) -> None:
        self._errors[gpu, error_name(pynvml, code)] += 1
        self._error_codes |= {code}

    def _must_begin_anew(self) -> bool:
        if not self._error_codes:
            return False
        since = self.host.monotonic() - self._began_at
        return bool(self._error_codes & DRIVER_GONE) or since >= SECONDS_BETWEEN_TRIES

    def _open(self) -> bool:
        """Whether NVML is open; it is not tried while the driver's module is not loaded."""
        if not os.path.exists(os.path.join(self.host.procfs, "driver/nvidia/version")):
            return False
        try:
            pynvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise ImportError("to read NVIDIA GPUs, install nvidia-ml-py") from error
        try:
            pynvml.nvmlInit()
            self.version = nvml.text(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
            self._failed(pynvml, "", error.value)
            if error.value == MISMATCH and not self._hangs:
                forget_library(pynvml)
            raise
        self._sessions += 1
        self._error_codes = frozenset()
        self._began_at = self.host.monotonic()
        self.session = NvmlSession(pynvml, self._sessions)
        return True

    def _close(self) -> None:
        session, self.session = self.session, None
        self.version = ""
        if session is None:
            return
        if not session.close():
            self._hangs = True  # permanent: a library with a hung thread in it cannot be unloaded
            log.warning(
                "a call to the NVIDIA driver hangs; NVML is initialized again in another thread"
            )
            return
        try:
            session.pynvml.nvmlShutdown()
        except session.pynvml.NVMLError as error:
            log.debug("nvmlShutdown: %s", error)
        if MISMATCH in self._error_codes and not self._hangs:
            forget_library(session.pynvml)


def forget_library(pynvml: Any) -> None:
    """Unload libnvidia-ml, so that the next nvmlInit loads the one that is installed now.

    The loader returns a library that is in memory even after an update has replaced its file;
    pynvml keeps handle and function pointers in module variables.
    """
    if pynvml.nvmlLib is not None:
        _ctypes.dlclose(pynvml.nvmlLib._handle)
    importlib.reload(pynvml)


VENDOR = NvidiaGpus

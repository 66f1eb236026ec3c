"""NVML over the life of the exporter: threads for each GPU, and one that reloads the driver.

A call that hangs, or a GPU that fell off the bus, stops the threads of that GPU and no other. When
the driver has been reloaded or updated, NVML is shut down and initialised again.
"""

import _ctypes
import importlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

from batchjob.runtime.background import Observed, Refresher
from collectors.gpu import nvml
from collectors.gpu.busy import LONGEST_INTERVAL_SECONDS, BusyCounter
from collectors.gpu.devices import Gpu
from collectors.gpu.metrics import UTILIZATION
from collectors.gpu.nvidia_watch import Round, Watch
from collectors.gpu.nvml_errors import COUNTED_FROM_ZERO, DRIVER_GONE, MISMATCH, error_name
from collectors.gpu.nvml_gpm import Profiler
from collectors.gpu.reading import (
    EnergyCounter,
    GpuProcess,
    GpuReading,
    KnownGpu,
    ProfileSample,
    max_reading_age,
)
from collectors.host import Host

log = logging.getLogger(__name__)

# Minimum time before NVML is restarted while the driver itself works: a lost GPU returns only after
# a reset, and a restart interrupts the other GPUs.
RESTART_INTERVAL_SECONDS = 300.0
_CLOSE_WAIT_SECONDS = 2.0


class ClosedError(Exception):
    """NVML is not open at this moment."""


class NvmlSession:
    """NVML between initialisation and shutdown, and the threads that use it."""

    def __init__(self, pynvml: Any, number: int) -> None:
        self.pynvml = pynvml
        self.number = number
        self._active_uses = 0
        self._closed = False
        self._uses_changed = threading.Condition()

    @contextmanager
    def use(self) -> Iterator[Any]:
        """Lend pynvml to a thread; NVML is not shut down before the thread returns it."""
        with self._uses_changed:
            if self._closed:
                raise ClosedError
            self._active_uses += 1
        try:
            yield self.pynvml
        finally:
            with self._uses_changed:
                self._active_uses -= 1
                self._uses_changed.notify_all()

    def close(self) -> bool:
        """Refuse further uses; returns whether all current ones ended, after a short wait."""
        with self._uses_changed:
            self._closed = True
            return self._uses_changed.wait_for(lambda: not self._active_uses, _CLOSE_WAIT_SECONDS)


class Board:
    """One GPU: its threads, and its last known identity."""

    def __init__(self, driver: "NvidiaGpus", index: int) -> None:
        self.index = index
        self.known_gpu: KnownGpu | None = None  # as of the last successful reading
        self._driver = driver
        age = max_reading_age(driver.interval)
        self._refresher = Refresher(
            f"gpu{index}", self._read, driver.interval, age, driver.host.monotonic
        )
        self.watch = Watch(driver, index)
        self._profiler = Profiler(driver, self)

    @property
    def gpu(self) -> Gpu | None:
        return self.known_gpu.gpu if self.known_gpu else None

    def start(self) -> None:
        self._refresher.start()
        self._profiler.loop.start()

    def latest(self) -> Observed[GpuReading] | None:
        """The last reading, with the processes and the power of this moment."""
        observed, watch = self._refresher.latest(), self.watch
        if observed is None or watch.uuid != observed.value.gpu.uuid:
            return observed
        reading = observed.value._replace(
            power=watch.power_until(self._driver.host.monotonic()),
            profile=tuple(self._profiler.recent),
        )
        if watch.processes is not None:
            reading = reading._replace(processes=watch.processes)
        return observed._replace(value=reading)

    def stop(self) -> None:
        self._profiler.loop.stop()
        self._refresher.stop()

    def _read(self) -> GpuReading:
        driver = self._driver
        reading, session = driver.read(self.index, self.gpu.uuid if self.gpu else "")
        at = driver.host.monotonic()
        self.watch.update_power()
        counter = driver.energy_counter(reading.gpu.uuid)
        values = counter.drop_implausible_power(reading.values)
        self.watch.counts_rates = reading.samples is None and UTILIZATION in values
        busy = driver.busy_counter(reading.gpu.uuid)
        if reading.samples is not None:
            busy.add(reading.samples, session, driver.host.clock())
        is_measured = reading.samples is not None or self.watch.counts_rates
        since = driver.host.clock() - 2 * LONGEST_INTERVAL_SECONDS
        for each in reading.gpu.instances:
            ratio = self._profiler.kernel_ratio(each, since)
            if ratio is not None:
                reading.instances[each.uuid][UTILIZATION] = ratio
        self.known_gpu = KnownGpu(reading.gpu, at, None)
        return reading._replace(
            values=values,
            energy=counter.update(values, at, session),
            busy_samples=busy.recent if is_measured else None,
        )


class NvidiaGpus:
    """All NVIDIA GPUs of the node."""

    visible_devices = "CUDA_VISIBLE_DEVICES"

    def __init__(self, host: Host, interval: float) -> None:
        self.host = host
        self.interval = interval = min(interval, LONGEST_INTERVAL_SECONDS)
        self.version = ""  # of the driver; empty while it does not respond
        self.error_counts: Counter[tuple[str, str]] = Counter()
        self.session: NvmlSession | None = None
        self.on_new_process: Callable[[], None] = lambda: None  # called by the threads of GPUs
        self._session_number = 0
        self._boards: dict[int, Board] = {}
        self._gpu_count = 0
        self._energy_counters: dict[str, EnergyCounter] = {}
        self.busy_counters: dict[str, BusyCounter] = {}
        self.profiles: Mapping[tuple[str, str], Mapping[str, float]] = {}
        self._profiles_lock = threading.Lock()
        self._round = Round([])
        self._error_codes: frozenset[int] = frozenset()
        self._opened_at = float("-inf")
        self._has_hung_call = False
        self._scanner = Refresher(
            "gpus", self.scan, interval, max_reading_age(interval), host.monotonic
        )

    def start(self) -> None:
        self._scanner.start()

    def stop(self) -> None:
        self._scanner.stop()
        self._round.stop()
        for board in self._boards.values():
            board.stop()
        self._close()

    def list_now(self) -> tuple[list[Gpu], int]:
        """See GpuVendor; raises what NVML raises if the driver does not answer."""
        if not self._open():
            return [], 0
        assert self.session is not None
        pynvml, gpus = self.session.pynvml, []
        for index in range(count := pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):
                gpus.append(nvml.identify(pynvml, index, self.error_counts))
        self._close()
        return gpus, count

    def known_gpus(self) -> list[KnownGpu]:
        """Every GPU once; of two indexes that refer to the same GPU, the newer reading is used."""
        newest: dict[str, KnownGpu] = {}
        for board in list(self._boards.values()):
            if board.known_gpu is None:
                continue
            each = board.known_gpu._replace(observed=board.latest())
            other = newest.get(each.gpu.uuid)
            if other is None or (other.last_seen or 0.0) < (each.last_seen or 0.0):
                newest[each.gpu.uuid] = each
        return sorted(newest.values(), key=lambda each: each.gpu.index)

    @property
    def complete(self) -> bool:
        """Whether the names of all GPUs that the driver counts are known."""
        return len(self.known_gpus()) == self._gpu_count

    def errors(self) -> MappingProxyType[tuple[str, str], int]:
        """Failed calls by GPU index (empty: the driver itself) and NVML's name for the error."""
        return MappingProxyType(dict(self.error_counts))

    def process_changes(self) -> list[tuple[str, tuple[GpuProcess, ...]]]:
        """The UUID and all processes of a GPU for each change since the last call, in order."""
        changes = [board.watch.changes for board in list(self._boards.values())]
        return [each.popleft() for each in changes for _ in range(len(each))]

    def energy_counter(self, uuid: str) -> EnergyCounter:
        """The energy counter of a GPU, whose index may change when the driver is reloaded."""
        return self._energy_counters.setdefault(uuid, EnergyCounter(max_reading_age(self.interval)))

    def busy_counter(self, uuid: str) -> BusyCounter:
        return self.busy_counters.setdefault(uuid, BusyCounter())

    def add_profile(self, uuid: str, sample: ProfileSample) -> None:
        """Add to the sums of a GPU or an instance."""
        key = uuid, sample.gpu_instance
        with self._profiles_lock:
            before = self.profiles.get(key, {})
            sums = {name: value + before.get(name, 0.0) for name, value in sample.values.items()}
            self.profiles = {**self.profiles, key: {**before, **sums}}

    def read(self, index: int, last_uuid: str) -> tuple[GpuReading, int]:
        """A reading and the number of its session; raises what NVML raises.

        `last_uuid` is that of the GPU that had this index at the last reading.
        """
        with self._session_of(index) as session:
            pynvml = session.pynvml
            now = self.host.clock()
            if not last_uuid:  # an exporter before this one may have counted
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                last_uuid = nvml.text(pynvml.nvmlDeviceGetUUID(handle))
            since = self.busy_counter(last_uuid).newest(session.number, now)
            if since is None:
                since = max(0, int((now - self.interval) * 1e6))
            return nvml.read(pynvml, index, since, self.error_counts), session.number

    @contextmanager
    def _session_of(self, index: int) -> Iterator[NvmlSession]:
        """Lend the session to the thread of a GPU, and count the error that it raises."""
        session = self.session
        if session is None:
            raise ClosedError
        with session.use() as pynvml:
            try:
                yield session
            except pynvml.NVMLError as error:
                self._count_error(pynvml, str(index), error.value)
                raise

    def scan(self) -> None:
        """Open NVML, or reopen it after errors, and start a thread for each GPU that has none."""
        if self.session is not None and self._needs_restart():
            self._close()
        if self.session is None and not self._open():
            return
        assert self.session is not None
        with self.session.use() as pynvml:
            try:
                self._gpu_count = pynvml.nvmlDeviceGetCount()
            except pynvml.NVMLError as error:
                self._count_error(pynvml, "", error.value)
                raise
        for index in range(self._gpu_count):
            if index not in self._boards:
                names = (error_name(self.session.pynvml, code) for code in COUNTED_FROM_ZERO)
                self.error_counts.update({(str(index), name): 0 for name in names})
                self._boards[index] = Board(self, index)
                self._boards[index].start()
        for index in [index for index in self._boards if index >= self._gpu_count]:
            self._boards.pop(index).stop()
        watches = [each.watch for each in self._boards.values() if not each.watch.hangs]
        if watches != self._round.watches:
            self._round.stop()
            self._round = Round(watches)
            self._round.start()

    def _count_error(self, pynvml: Any, gpu: str, code: int) -> None:
        self.error_counts[gpu, error_name(pynvml, code)] += 1
        self._error_codes |= {code}

    def _needs_restart(self) -> bool:
        if not self._error_codes:
            return False
        open_seconds = self.host.monotonic() - self._opened_at
        return bool(self._error_codes & DRIVER_GONE) or open_seconds >= RESTART_INTERVAL_SECONDS

    def _open(self) -> bool:
        """Initialise NVML; returns False while the driver's kernel module is not loaded."""
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
            self._count_error(pynvml, "", error.value)
            if error.value == MISMATCH and not self._has_hung_call:
                unload_library(pynvml)
            raise
        self._session_number += 1
        self._error_codes = frozenset()
        self._opened_at = self.host.monotonic()
        self.session = NvmlSession(pynvml, self._session_number)
        return True

    def _close(self) -> None:
        session, self.session = self.session, None
        self.version = ""
        if session is None:
            return
        if not session.close():
            # Permanent: a library with a hung thread in it cannot be unloaded.
            self._has_hung_call = True
            log.warning(
                "a call to the NVIDIA driver hangs; NVML is initialized again in another thread"
            )
            return
        try:
            session.pynvml.nvmlShutdown()
        except session.pynvml.NVMLError as error:
            log.debug("nvmlShutdown: %s", error)
        if MISMATCH in self._error_codes and not self._has_hung_call:
            unload_library(session.pynvml)


def unload_library(pynvml: Any) -> None:
    """Unload libnvidia-ml, so that the next nvmlInit loads the one that is installed now.

    The loader returns a library that is in memory even after an update has replaced its file;
    pynvml keeps handle and function pointers in module variables.
    """
    if pynvml.nvmlLib is not None:
        _ctypes.dlclose(pynvml.nvmlLib._handle)
    importlib.reload(pynvml)


VENDOR = NvidiaGpus

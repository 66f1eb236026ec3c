"""What is read of an NVIDIA GPU between its readings: its processes' memory, and its power.

Ten times a second, calls that take 2 to 50 µs on an H200 see a process or a peak of 0.2 s, which no
call reports afterwards. Processes, the dearest, are listed when the GPU's memory has changed, which
a process cannot begin, end or reach a peak without; and each second. The power, by samples of 20 ms
that are read every 1.5 s and when the counter is, divides the energy that the counter, whose call
takes 4 ms, has counted in between. Power that is read ten times a second is the last resort: it was
wrong by up to 13 % for a load with a period of 0.1 s.
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from batchjob.runtime.background import PeriodicTask
from collectors.gpu import nvml
from collectors.gpu.busy import UtilizationSample
from collectors.gpu.nvml_errors import OptionalCalls
from collectors.gpu.reading import GpuProcess
from collectors.host import read_text

if TYPE_CHECKING:
    from collectors.gpu.nvidia import NvidiaGpus

STEP_SECONDS = 0.1
_LONGEST_STEP_SECONDS = 1.0  # power further apart is not interpolated
_PAUSE_AFTER_ERROR_SECONDS = 1.0
_STEPS_A_SECOND = 10
_STEPS_OF_POWER = 15  # the driver keeps its samples for 2.4 s
HANGS_AFTER_SECONDS = 5.0
_KEPT_POINTS = 700  # a minute of power, and of changes of the processes


class Watch:
    """What one thread reads of one GPU; it may be read by any."""

    def __init__(self, driver: "NvidiaGpus", index: int) -> None:
        self.power: deque[tuple[float, float]] = deque(maxlen=_KEPT_POINTS)
        self.processes: tuple[GpuProcess, ...] | None = None
        self.changes: deque[tuple[str, tuple[GpuProcess, ...]]] = deque(maxlen=_KEPT_POINTS)
        self.counts_rates = False  # the driver keeps no samples of the GPU's utilisation
        self.uuid = ""  # of the GPU that has this index now
        self._driver = driver
        self._index = index
        self._session = -1
        self._steps = 0
        self._others: nvml.OtherProcesses = (None, None)
        self._memory_used: int | None = None
        self._handle: Any = None
        self._watts: float | None = None  # the last power, its time and the integral up to then
        self._watts_at = self._joules = 0.0
        self._power_stamp = 0  # of the newest sample, in epoch microseconds
        self._has_power_samples = True
        self._power_lock = threading.Lock()
        self._cgroups: dict[int, str] = {}
        self._began_at: float | None = None  # the step that is not over
        self._rests_until = float("-inf")

    @property
    def hangs(self) -> bool:
        began, now = self._began_at, self._driver.host.monotonic()
        return began is not None and now - began > HANGS_AFTER_SECONDS

    def step(self) -> None:
        """Read once. Errors are those of the readings, which count and log them."""
        session, now = self._driver.session, self._driver.host.monotonic()
        if now < self._rests_until:
            return
        self._began_at = now
        try:
            if session is None:
                raise LookupError
            with session.use() as pynvml:
                if session.number != self._session:
                    self._open(pynvml, session.number)
                self._read(self._optional, self._handle)
            self._steps += 1
        except Exception:  # the GPU or the driver is gone
            self.processes, self._watts, self._session = None, None, -1
            self._rests_until = now + _PAUSE_AFTER_ERROR_SECONDS
        self._began_at = None

    def _read(self, optional: OptionalCalls, handle: Any) -> None:
        is_new_second = self._steps % _STEPS_A_SECOND == 0
        if self._has_power_samples and self._steps % _STEPS_OF_POWER == 0:
            self._add_power_samples(optional, handle)
        if not self._has_power_samples:
            self._add_power(nvml.power_now(optional, handle), self._driver.host.monotonic())
        before, self._memory_used = self._memory_used, nvml.memory_used(optional, handle)
        if is_new_second:
            self._others = nvml.other_processes(optional, handle)
            if self.counts_rates:
                self._add_rate(optional, handle)
        if is_new_second or self._memory_used is None or self._memory_used != before:
            compute = nvml.compute_processes(optional, handle)
            self._follow(nvml.processes(compute, self._others))

    def _open(self, pynvml: Any, session: int) -> None:
        """Look the GPU up: after a reload of the driver, another one may have its index."""
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        self._optional = OptionalCalls(pynvml, Counter(), str(self._index))
        self.uuid = nvml.text(pynvml.nvmlDeviceGetUUID(self._handle))
        self._session, self._steps = session, 0
        self.power.clear()
        self._power_stamp, self._has_power_samples = 0, True

    def _add_rate(self, optional: OptionalCalls, handle: Any) -> None:
        """Add the utilisation of the last second to the busy seconds."""
        rates = optional(optional.nvml.nvmlDeviceGetUtilizationRates, handle)
        now = self._driver.host.clock()
        fraction = rates.gpu / 100 if rates and rates.gpu <= 100 else None
        sample = UtilizationSample(int(now * 1e6), fraction)
        counter = self._driver.busy_counter(self.uuid)
        counter.add((sample,), self._session, now, STEP_SECONDS * _STEPS_A_SECOND)

    def update_power(self) -> None:
        """Read the power up to now, for a reading of the counter; by any thread."""
        session = self._driver.session
        if session is not None and session.number == self._session and self._has_power_samples:
            with suppress(Exception), session.use():  # the next step tells what is wrong
                self._add_power_samples(self._optional, self._handle)

    def _add_power_samples(self, optional: OptionalCalls, handle: Any) -> None:
        with self._power_lock:
            samples = nvml.samples(optional, handle, nvml.TOTAL_POWER, self._power_stamp)
            self._has_power_samples = samples is not None
            host = self._driver.host
            ahead = host.clock() - host.monotonic()
            for stamp, milliwatts in samples or ():
                self._add_power(milliwatts / 1e3, stamp / 1e6 - ahead)
                self._power_stamp = stamp

    def _add_power(self, watts: float | None, at: float) -> None:
        before, self._watts = self._watts, watts
        if watts is None:
            return
        seconds = at - self._watts_at
        if before is None or not 0 < seconds <= _LONGEST_STEP_SECONDS:
            self.power.clear()
        else:
            self._joules += (before + watts) / 2 * seconds
        self._watts_at = at
        if not self.power or at - self.power[-1][0] >= STEP_SECONDS * 0.9:
            self.power.append((at, self._joules))

    def power_until(self, now: float) -> tuple[tuple[float, float], ...]:
        """Moments and the integral up to each, with the last power from its sample to now."""
        points, watts, at = tuple(self.power), self._watts, self._watts_at
        if watts is None or not points or not 0 < now - at <= 2 * _LONGEST_STEP_SECONDS:
            return points
        return (*points, (now, self._joules + watts * (now - at)))

    def _follow(self, processes: tuple[GpuProcess, ...] | None) -> None:
        listed = {each.pid for each in processes or ()}
        new = listed - self._cgroups.keys()
        self._cgroups = {pid: text for pid, text in self._cgroups.items() if pid in listed}
        for pid in new:
            self._cgroups[pid] = read_text(f"{self._driver.host.procfs}/{pid}/cgroup")
        if processes:
            processes = tuple(each._replace(cgroups=self._cgroups[each.pid]) for each in processes)
            if processes != self.processes:
                self.changes.append((self.uuid, processes))
        self.processes = processes
        if new:
            self._driver.on_new_process()


class Round(PeriodicTask):
    """The thread that reads all GPUs in turn, which is cheaper than a thread for each."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        super().__init__("gpu-watch", self._read_all)
        self.watches = watches

    def _read_all(self) -> float:
        for each in self.watches:
            if not self.stopping:
                each.step()
        return STEP_SECONDS

"""How well a GPU was used: NVML's GPU performance monitoring (GPM), on Hopper and later.

The driver takes a snapshot of its counters every 100 ms, and a pair of samples gives means of the
time between two of them. Pairs are a second apart, since the means are weighted by clock cycles: on
an H200, pairs 10 s apart were wrong by up to 51 % where the clock changed in between. A call may
take 0.3 s while a profiler attaches, therefore each GPU has a thread for this.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchjob.quantities.gpu import PROFILED_SECONDS
from batchjob.runtime.background import PeriodicTask
from collectors.gpu.devices import Gpu, Instance
from collectors.gpu.nvml_errors import OptionalCalls
from collectors.gpu.reading import ProfileSample

if TYPE_CHECKING:
    from collectors.gpu.nvidia import Board, NvidiaGpus

STEP_SECONDS = 1.0
PAUSE_SECONDS = 10.0  # while the GPU cannot be measured
_LONGEST_PAIR_SECONDS = 10.0
_KEPT_SAMPLES = 60

_KERNELS = "kernel_seconds"
_DRAM = "dram_active_seconds"
# Numbers of nvmlGpmMetricId_t, whose values are per cent, or MiB/s. The driver answers 0.0 to
# numbers that the board does not have, so only those are asked that every board with GPM has.
_PERCENT = {
    _KERNELS: 1, "sm_active_seconds": 2, "sm_occupancy_seconds": 3, "tensor_active_seconds": 5,
    _DRAM: 10, "fp64_active_seconds": 11, "fp32_active_seconds": 12, "fp16_active_seconds": 13,
}  # fmt: skip
_PCIE = {"pcie_transmit_bytes": 20, "pcie_receive_bytes": 21}
_NVLINK = {"nvlink_receive_bytes": 60, "nvlink_transmit_bytes": 61}
_NVLINK_FIELD, _ALL_LINKS = 138, 0xFFFFFFFF
_MEBIBYTE = 2**20


_Sampled = tuple[int | None, float]
"""Of which GPU instance a sample is (None: of the whole GPU), and its monotonic seconds."""


class Profiler:
    """The thread of one GPU; what it has measured may be read by any.

    The instances of a GPU take turns, a second each: all of them at once would cost too much.
    """

    def __init__(self, driver: "NvidiaGpus", board: "Board") -> None:
        self.recent: deque[ProfileSample] = deque(maxlen=_KEPT_SAMPLES)
        self._driver = driver
        self._board = board
        self._session = -1
        self._metrics: dict[str, int] = {}
        self._start: _Sampled | None = None
        self._instances: tuple[Instance, ...] = ()  # of which the recent samples are
        self._turn = 0
        self.loop = PeriodicTask(f"gpu{board.index}-profile", self.step)

    def kernel_ratio(self, instance: Instance, since: float) -> float | None:
        """The part of the time since then in which kernels ran on a MIG instance."""
        number = str(instance.gpu_instance) if instance in self._instances else None
        found = [
            each.values
            for each in list(self.recent)
            if each.gpu_instance == number and each.ended > since
        ]
        seconds = sum(each[PROFILED_SECONDS] for each in found)
        return sum(each[_KERNELS] for each in found) / seconds if seconds else None

    def step(self) -> float:
        """Measure a second; returns the seconds until the next time."""
        session, gpu = self._driver.session, self._board.gpu
        if session is None or gpu is None:
            self._start = None
            return STEP_SECONDS
        if gpu.instances != self._instances:  # a new one may have the number of an old one
            self.recent.clear()
            self._start, self._instances = None, gpu.instances
        try:
            with session.use() as pynvml:
                if session.number != self._session:
                    self._open(pynvml)
                    self._session = session.number
                return self._measure(pynvml, gpu)
        except Exception:  # the GPU or the driver is gone: its readings count and log that
            self._start, self._session = None, -1
            return PAUSE_SECONDS

    def _open(self, pynvml: Any) -> None:
        self._optional = optional = OptionalCalls(
            pynvml, self._driver.error_counts, str(self._board.index)
        )
        self._handle = handle = pynvml.nvmlDeviceGetHandleByIndex(self._board.index)
        self._start, self._metrics = None, {}
        support = optional(pynvml.nvmlGpmQueryDeviceSupport, handle)
        if not support or not support.isSupportedDevice:
            return
        self._earlier, self._later = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        fields = optional(
            pynvml.nvmlDeviceGetFieldValues, handle, [(_NVLINK_FIELD, _ALL_LINKS)], default=()
        )
        has_links = any(each.nvmlReturn == 0 for each in fields)
        self._metrics = {**_PERCENT, **_PCIE, **(_NVLINK if has_links else {})}

    def _measure(self, pynvml: Any, gpu: Gpu) -> float:
        parts = _measurable_parts(gpu)
        if not self._metrics or not parts:
            self._start = None
            return PAUSE_SECONDS
        if self._start and self._start[0] in parts:
            later = self._take(pynvml, self._start[0], self._later)
            means = self._means(pynvml) if later else {}
            if math.isnan(means.get(_DRAM, 0.0)):
                return STEP_SECONDS  # both samples are of one snapshot of the driver's
            if later:
                self._add(gpu.uuid, means, later[0], later[1] - self._start[1])
            self._earlier, self._later, self._start = self._later, self._earlier, later
        self._turn += 1
        part = parts[self._turn % len(parts)]
        if self._start is None or self._start[0] != part:
            self._start = self._take(pynvml, part, self._earlier)
        return STEP_SECONDS if self._start else PAUSE_SECONDS

    def _take(self, pynvml: Any, part: int | None, sample: Any) -> _Sampled | None:
        """Fill a sample; None if the driver refuses, as without a permission."""
        if part is None:
            taken = self._optional(pynvml.nvmlGpmSampleGet, self._handle, sample)
        else:
            taken = self._optional(pynvml.nvmlGpmMigSampleGet, self._handle, part, sample)
        return None if taken is None else (part, self._driver.host.monotonic())

    def _means(self, pynvml: Any) -> dict[str, float]:
        """The means of a pair; nothing if the driver does not give them all."""
        is_whole = self._start is not None and self._start[0] is None
        wanted = self._metrics if is_whole else _PERCENT
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = self._earlier, self._later
        for index, number in enumerate(wanted.values()):
            request.metrics[index].metricId = number
        answer = self._optional(pynvml.nvmlGpmMetricsGet, request)
        return {
            name: float(each.value)
            for name, each in zip(wanted, answer.metrics if answer else (), strict=False)
            if each.nvmlReturn == 0
        }

    def _add(self, uuid: str, means: Mapping[str, float], part: int | None, seconds: float) -> None:
        """Count a pair, if its values are possible."""
        is_possible = means and all(0 <= each < math.inf for each in means.values())
        if not is_possible or seconds > _LONGEST_PAIR_SECONDS:
            return
        values = {PROFILED_SECONDS: seconds} | {
            name: (min(mean, 100.0) / 100 if name in _PERCENT else mean * _MEBIBYTE) * seconds
            for name, mean in means.items()
        }
        now = self._driver.host.clock()
        sample = ProfileSample(now - seconds, now, "" if part is None else str(part), values)
        self.recent.append(sample)
        self._driver.add_profile(uuid, sample)


def _measurable_parts(gpu: Gpu) -> list[int | None]:
    """None for a whole GPU, or its instances, without those of several compute instances.

    The values of a GPU instance cannot be divided among these.
    """
    if not gpu.partitioned:
        return [None]
    counts = Counter(each.gpu_instance for each in gpu.instances)
    return [number for number, count in sorted(counts.items()) if count == 1]

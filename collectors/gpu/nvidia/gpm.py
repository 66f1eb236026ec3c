"""NVML's GPU performance monitoring (Hopper and later): means between two readings.

NVML samples the counters of a GPU or of a MIG instance, and its metrics are means over the time
between two samples. That is the time between two readings here.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

_GRAPHICS_UTIL = 1  # NVML_GPM_METRIC_GRAPHICS_UTIL: percentage of time in which any kernel ran
# NVML_GPM_METRIC_PCIE_TX_PER_SEC and PCIE_RX_PER_SEC: traffic from and to the GPU in MiB/s.
_PCIE_SENT, _PCIE_RECEIVED = 20, 21
_MEBIBYTE = 2**20

_WHOLE_GPU = None


class PcieBytes(NamedTuple):
    """Bytes since the first call, from the point of view of the GPU."""

    sent: float
    received: float


class _Sample(NamedTuple):
    counters: Any
    at: float  # monotonic seconds


class _Samples(NamedTuple):
    last: _Sample
    spare: Any  # memory for the next one


class _Means(NamedTuple):
    values: tuple[float, ...]
    seconds: float


class Gpm:
    """The last samples of one GPU and its instances; for one thread, while NVML stays open."""

    def __init__(self, pynvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = pynvml
        self._clock = clock
        self._samples: dict[int | None, _Samples] = {}  # by GPU instance
        self._pcie = PcieBytes(0.0, 0.0)

    def utilization(self, handle: Any, gpu_instance: int) -> float | None:
        """Fraction of the time since the last call, 0 to 1; None at the first call.

        Raises NVMLError, NOT_SUPPORTED among others.
        """
        means = self._since_last(handle, gpu_instance, _GRAPHICS_UTIL)
        if means is None or not 0 <= means.values[0] <= 100:
            return None
        return means.values[0] / 100

    def pcie(self, handle: Any) -> PcieBytes | None:
        """What the GPU has transferred since the first call; None where that is not known.

        Raises NVMLError, NOT_SUPPORTED among others.
        """
        if _WHOLE_GPU not in self._samples:
            self._begin(handle, _WHOLE_GPU)
            return self._pcie if _WHOLE_GPU in self._samples else None
        means = self._since_last(handle, _WHOLE_GPU, _PCIE_SENT, _PCIE_RECEIVED)
        if means is None:
            return None
        sent, received = (rate * _MEBIBYTE * means.seconds for rate in means.values)
        self._pcie = PcieBytes(self._pcie.sent + sent, self._pcie.received + received)
        return self._pcie

    def keep(self, gpu_instances: set[int]) -> None:
        """Free the samples of instances that no longer exist."""
        for gone in self._samples.keys() - gpu_instances - {_WHOLE_GPU}:
            samples = self._samples.pop(gone)
            self._nvml.nvmlGpmSampleFree(samples.last.counters)
            self._nvml.nvmlGpmSampleFree(samples.spare)

    def _since_last(self, handle: Any, gpu_instance: int | None, *metrics: int) -> _Means | None:
        """Means since the last sample, which stays the last one if any of them is not known."""
        known = self._samples.get(gpu_instance)
        if known is None:
            self._begin(handle, gpu_instance)
            return None
        now = self._sample(handle, gpu_instance, known.spare)
        values = self._between(known.last.counters, now.counters, metrics)
        if values is None:
            return None
        self._samples[gpu_instance] = _Samples(now, known.last.counters)
        return _Means(values, now.at - known.last.at)

    def _begin(self, handle: Any, gpu_instance: int | None) -> None:
        nvml = self._nvml
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return
        counters = nvml.nvmlGpmSampleAlloc()
        try:
            first = self._sample(handle, gpu_instance, counters)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(counters)
            raise
        self._samples[gpu_instance] = _Samples(first, nvml.nvmlGpmSampleAlloc())

    def _sample(self, handle: Any, gpu_instance: int | None, counters: Any) -> _Sample:
        if gpu_instance is _WHOLE_GPU:
            self._nvml.nvmlGpmSampleGet(handle, counters)
        else:
            self._nvml.nvmlGpmMigSampleGet(handle, gpu_instance, counters)
        return _Sample(counters, self._clock())

    def _between(
        self, earlier: Any, later: Any, metrics: tuple[int, ...]
    ) -> tuple[float, ...] | None:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = len(metrics)
        wanted.sample1, wanted.sample2 = earlier, later
        for place, metric in enumerate(metrics):
            wanted.metrics[place].metricId = metric
        answers = nvml.nvmlGpmMetricsGet(wanted).metrics[: len(metrics)]
        if any(answer.nvmlReturn != 0 for answer in answers):
            return None
        return tuple(float(answer.value) for answer in answers)

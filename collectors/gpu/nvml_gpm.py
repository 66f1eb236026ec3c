"""NVML's GPU performance monitoring (Hopper and later): means between two readings.

NVML samples the counters of a GPU or of a MIG instance, and its metrics are means over the time
between two samples. That is the time between two readings here.
"""

import time
from collections.abc import Callable
from typing import Any

_GRAPHICS_UTIL = 1  # NVML_GPM_METRIC_GRAPHICS_UTIL: percentage of time in which any kernel ran
# NVML_GPM_METRIC_PCIE_TX_PER_SEC and PCIE_RX_PER_SEC: traffic from and to the GPU in MiB/s.
_PCIE_SENT, _PCIE_RECEIVED = 20, 21
_MEBIBYTE = 2**20

_WHOLE_GPU = None


class Gpm:
    """The last samples of one GPU and its instances; for one thread, while NVML stays open."""

    def __init__(self, pynvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = pynvml
        self._clock = clock
        # By GPU instance: the last counters, their time, and memory for the next ones.
        self._samples: dict[int | None, tuple[Any, float, Any]] = {}
        self._pcie = 0.0, 0.0

    def utilization(self, handle: Any, gpu_instance: int) -> float | None:
        """Fraction of the time since the last call, 0 to 1; None at the first call.

        Raises NVMLError, NOT_SUPPORTED among others.
        """
        means = self._means_since_last(handle, gpu_instance, _GRAPHICS_UTIL)
        if means is None or not 0 <= means[0][0] <= 100:
            return None
        return means[0][0] / 100

    def pcie(self, handle: Any) -> tuple[float, float] | None:
        """Bytes that the GPU has sent and received since the first call; None if unknown.

        Raises NVMLError, NOT_SUPPORTED among others.
        """
        if _WHOLE_GPU not in self._samples:
            self._take_first_sample(handle, _WHOLE_GPU)
            return self._pcie if _WHOLE_GPU in self._samples else None
        means = self._means_since_last(handle, _WHOLE_GPU, _PCIE_SENT, _PCIE_RECEIVED)
        if means is None:
            return None
        (sent, received), seconds = means
        sent_bytes, received_bytes = self._pcie
        self._pcie = (
            sent_bytes + sent * _MEBIBYTE * seconds,
            received_bytes + received * _MEBIBYTE * seconds,
        )
        return self._pcie

    def free_removed(self, gpu_instances: set[int]) -> None:
        """Free the samples of instances that no longer exist."""
        for gone in self._samples.keys() - gpu_instances - {_WHOLE_GPU}:
            counters, _, spare = self._samples.pop(gone)
            self._nvml.nvmlGpmSampleFree(counters)
            self._nvml.nvmlGpmSampleFree(spare)

    def _means_since_last(
        self, handle: Any, gpu_instance: int | None, *metrics: int
    ) -> tuple[tuple[float, ...], float] | None:
        """Means since the last sample, which is replaced only if all are valid, and its age."""
        last = self._samples.get(gpu_instance)
        if last is None:
            self._take_first_sample(handle, gpu_instance)
            return None
        counters, sampled_at, spare = last
        now = self._take_sample(handle, gpu_instance, spare)
        values = self._means_between(counters, spare, metrics)
        if values is None:
            return None
        self._samples[gpu_instance] = spare, now, counters
        return values, now - sampled_at

    def _take_first_sample(self, handle: Any, gpu_instance: int | None) -> None:
        nvml = self._nvml
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return
        counters = nvml.nvmlGpmSampleAlloc()
        try:
            at = self._take_sample(handle, gpu_instance, counters)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(counters)
            raise
        self._samples[gpu_instance] = counters, at, nvml.nvmlGpmSampleAlloc()

    def _take_sample(self, handle: Any, gpu_instance: int | None, counters: Any) -> float:
        """Fill the counters; returns the time in monotonic seconds."""
        if gpu_instance is _WHOLE_GPU:
            self._nvml.nvmlGpmSampleGet(handle, counters)
        else:
            self._nvml.nvmlGpmMigSampleGet(handle, gpu_instance, counters)
        return self._clock()

    def _means_between(
        self, earlier: Any, later: Any, metrics: tuple[int, ...]
    ) -> tuple[float, ...] | None:
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = earlier, later
        for index, metric in enumerate(metrics):
            request.metrics[index].metricId = metric
        results = nvml.nvmlGpmMetricsGet(request).metrics[: len(metrics)]
        if any(result.nvmlReturn != 0 for result in results):
            return None
        return tuple(float(result.value) for result in results)

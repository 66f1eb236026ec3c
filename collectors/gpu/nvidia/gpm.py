"""Utilisation of MIG instances, from NVML's GPU performance monitoring (Hopper and later).

NVML samples an instance's counters, and its metrics apply to the time between two samples. That is
the time between two readings here, so the value is a mean, where the GPU's own one is momentary.
"""

from typing import Any, NamedTuple

_GRAPHICS_UTIL = 1  # NVML_GPM_METRIC_GRAPHICS_UTIL: percentage of time in which any kernel ran


class _Samples(NamedTuple):
    earlier: Any
    later: Any


class Gpm:
    """The last samples of one GPU's instances; for one thread, while NVML stays open."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        self._samples: dict[int, _Samples] = {}

    def utilization(self, handle: Any, gpu_instance: int) -> float | None:
        """Fraction of the time since the last call, 0 to 1; None at the first call.

        Raises NVMLError, NOT_SUPPORTED among others.
        """
        nvml = self._nvml
        if gpu_instance not in self._samples:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return None
            fresh = _Samples(nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())
            nvml.nvmlGpmMigSampleGet(handle, gpu_instance, fresh.later)
            self._samples[gpu_instance] = fresh
            return None
        before, reused = self._samples[gpu_instance].later, self._samples[gpu_instance].earlier
        nvml.nvmlGpmMigSampleGet(handle, gpu_instance, reused)
        self._samples[gpu_instance] = _Samples(before, reused)
        return self._between(before, reused)

    def keep(self, gpu_instances: set[int]) -> None:
        """Free the samples of instances that no longer exist."""
        for gone in self._samples.keys() - gpu_instances:
            for sample in self._samples.pop(gone):
                self._nvml.nvmlGpmSampleFree(sample)

    def _between(self, earlier: Any, later: Any) -> float | None:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = 1
        wanted.sample1, wanted.sample2 = earlier, later
        wanted.metrics[0].metricId = _GRAPHICS_UTIL
        metric = nvml.nvmlGpmMetricsGet(wanted).metrics[0]
        if metric.nvmlReturn != 0 or not 0 <= metric.value <= 100:
            return None
        return float(metric.value) / 100

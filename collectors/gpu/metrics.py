"""The families of the GPU collector; the documentation is generated from them."""

from typing import Literal, NamedTuple

from batchjob.quantities import gpu
from batchjob.quantities.gpu import GPU_LABELS
from collectors.metric import NO_LABELS, Labels, Metric, labels, to_metric


class GpuMetric(NamedTuple):
    """A value of a GPU or MIG instance, in the unit of its metric."""

    metric: Metric
    labels: Labels = NO_LABELS


def _gpu(name: str, kind: Literal["gauge", "counter"], help: str, *extra: str) -> Metric:
    return Metric(f"batchjob_gpu_{name}", kind, help, GPU_LABELS + extra)


def _by(metric: Metric, label: str, *values: str) -> dict[str, GpuMetric]:
    return {value: GpuMetric(metric, labels(**{label: value})) for value in values}


# fmt: off
UTILIZATION = GpuMetric(to_metric(gpu.GPU_UTILIZATION))
MEMORY_USED = GpuMetric(to_metric(gpu.GPU_MEMORY_USED))
MEMORY_TOTAL = GpuMetric(to_metric(gpu.GPU_MEMORY_TOTAL))
POWER = GpuMetric(to_metric(gpu.GPU_POWER))
POWER_LIMIT = GpuMetric(to_metric(gpu.GPU_POWER_LIMIT))
ENERGY = GpuMetric(_gpu("energy_joules_total", "counter",
    "Energy of the whole board since its driver was loaded; integrated from power if the GPU has "
    "no energy counter."))
TEMPERATURE = GpuMetric(to_metric(gpu.GPU_TEMPERATURE))
MEMORY_TEMPERATURE = GpuMetric(_gpu("memory_temperature_celsius", "gauge",
    "Temperature of the GPU's memory."))
CLOCK = _by(to_metric(gpu.GPU_CLOCK), "clock", "graphics", "sm", "memory", "video")
ECC = _by(to_metric(gpu.GPU_ECC_ERRORS), "kind", "corrected", "uncorrected")
THROTTLED = _by(_gpu("throttle_seconds_total", "counter",
    "Time for which clocks were throttled, by reason; reasons overlap and must not be added.",
    "reason"), "reason", "power", "thermal", "sync_boost", "board_limit", "reliability")
LOW_UTILIZATION = GpuMetric(_gpu("low_utilization_seconds_total", "counter",
    "Time for which clocks were low because the GPU had nothing to do, which is no throttling."))
PCIE = _by(to_metric(gpu.GPU_PCIE), "direction", "transmit", "receive")
NVLINK = _by(to_metric(gpu.GPU_NVLINK), "direction", "transmit", "receive")
# fmt: on

COUNTED = {
    "busy_seconds": GpuMetric(to_metric(gpu.GPU_BUSY_SECONDS)),
    "observed_seconds": GpuMetric(to_metric(gpu.GPU_OBSERVED_SECONDS)),
    **{name: GpuMetric(to_metric(metric)) for name, metric in gpu.GPU_PROFILE.items()},
    **{f"pcie_{direction}_bytes": metric for direction, metric in PCIE.items()},
}
"""Sums of a GPU or MIG instance, by the names that samples of GPM have."""

JOB_COUNTED = {
    each.name.removeprefix("gpu_"): GpuMetric(to_metric(each.metric), labels(**dict(each.labels)))
    for each in gpu.JOB_GPU_COUNTED
}

# fmt: off
QUANTITIES = (
    UTILIZATION, MEMORY_USED, MEMORY_TOTAL, POWER, POWER_LIMIT, ENERGY, TEMPERATURE,
    MEMORY_TEMPERATURE, *CLOCK.values(), *ECC.values(), *THROTTLED.values(), LOW_UTILIZATION,
    *NVLINK.values(),
)
INFO = _gpu("info", "gauge",
    "1 for each known GPU and MIG instance, even while it does not answer.", "pci_bus_id", "minor",
    "name", "vendor", "profile", "mig_uuid")
PROCESSES = _gpu("processes", "gauge", "Processes with a context on the GPU.")
READING_AGE = Metric("batchjob_gpu_reading_age_seconds", "gauge",
    "Time since the last answer of the GPU; grows while its driver hangs or the GPU is lost.",
    ("gpu", "uuid"))
ERRORS = Metric("batchjob_gpu_errors_total", "counter",
    "Failed calls to the driver, labelled with the driver's name for the error; `not supported` is "
    "not counted.", ("gpu", "error"))
DRIVER_INFO = Metric("batchjob_gpu_driver_info", "gauge", "1 while the driver answers.",
    ("vendor", "version"))

JOB_INFO = to_metric(gpu.JOB_GPU_INFO)
JOB_SHARE = to_metric(gpu.JOB_GPU_SHARE.metric)
JOB_UTILIZATION = to_metric(gpu.JOB_GPU_UTILIZATION.metric)
JOB_FREE_BUSY_SECONDS = to_metric(gpu.JOB_FREE_GPU_BUSY_SECONDS.metric)
JOB_FREE_OBSERVED_SECONDS = to_metric(gpu.JOB_FREE_GPU_OBSERVED_SECONDS.metric)
JOB_MEMORY = to_metric(gpu.JOB_GPU_MEMORY.metric)
JOB_PROCESSES = to_metric(gpu.JOB_GPU_PROCESSES.metric)
DISAGREEMENTS = Metric("batchjob_gpu_map_disagreements_total", "counter",
    "Contradictions found while mapping GPUs to jobs, each counted once while it lasts: "
    "`unknown_gpu`, an allocation names a GPU that does not exist; `sources`, two allocation "
    "sources differ; `process`, a process of a job runs on a GPU that is not allocated to the job; "
    "`overlap`, several jobs claim the whole GPU; `unconfirmed`, the environment of a job names a "
    "GPU that is allocated to another job.", ("kind",))

METRICS = (
    *dict.fromkeys(each.metric for each in (*QUANTITIES, *COUNTED.values())), INFO, PROCESSES,
    READING_AGE, ERRORS, DRIVER_INFO, JOB_INFO, JOB_SHARE, JOB_UTILIZATION, JOB_FREE_BUSY_SECONDS,
    JOB_FREE_OBSERVED_SECONDS, JOB_MEMORY,
    *dict.fromkeys(each.metric for each in JOB_COUNTED.values()), JOB_PROCESSES, DISAGREEMENTS,
)
# fmt: on

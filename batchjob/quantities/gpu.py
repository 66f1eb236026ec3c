"""The table of a job's GPU quantities, with the metrics of whole GPUs that match them."""

from batchjob.quantities.quantity import (
    ExportedMetric,
    Kind,
    Quantity,
    SampleGroup,
    Unit,
    job_metric,
)

GPU_LABELS = ("gpu", "uuid", "gpu_instance")
GPUS = SampleGroup("gpus", GPU_LABELS, "gpu_")
GPU_NAMES = SampleGroup("gpu_names", ("name",))


def _of_job(name: str, unit: Unit, help: str, outlives: bool = False) -> Quantity:
    metric = job_metric(name, "gauge", unit, "", help, outlives_job=outlives, labels=GPU_LABELS)
    return Quantity(name, metric, group=GPUS)


def _counted(name: str, help: str) -> Quantity:
    return Quantity(
        name, job_metric(name, "counter", "seconds", "", help, labels=GPU_LABELS), group=GPUS
    )


def _of_free_gpus(name: str, help: str) -> Quantity:
    name = f"free_gpu_{name}"
    return Quantity(name, job_metric(name, "counter", "seconds", "", help))


def _of_gpu(name: str, unit: Unit, help: str, *labels: str, kind: Kind = "gauge") -> ExportedMetric:
    return ExportedMetric(f"batchjob_gpu_{name}", kind, unit, help, GPU_LABELS + labels)


def _of_whole_gpu(name: str, metric: ExportedMetric, **labels: str) -> Quantity:
    """A quantity by GPU of a metric with more labels, or of a whole GPU, whoever uses it."""
    return Quantity(name, metric, labels=tuple(labels.items()), group=GPUS)


# fmt: off
GPU_UTILIZATION = _of_gpu("utilization_ratio", "ratio",
    "Fraction of the time since the last reading in which any kernel or copy ran, 0 to 1; "
    "independent of how much of the GPU it occupied. AMD: the fraction at the reading. For MIG "
    "instances, kernels only (Hopper and later only).")
GPU_BUSY_SECONDS = _of_gpu("busy_seconds_total", "seconds",
    "Time in which any kernel or copy ran since the GPU was first read, from samples that the "
    "driver takes five times a second. Its mean utilisation is the increase of this over that of "
    "`batchjob_gpu_observed_seconds_total`. NVIDIA only, and not in MIG mode.", kind="counter")
GPU_OBSERVED_SECONDS = _of_gpu("observed_seconds_total", "seconds",
    "Time that `batchjob_gpu_busy_seconds_total` covers.", kind="counter")
_OF_GPM = "Measured with NVIDIA's GPM, on Hopper and later."
PROFILED_SECONDS = "profiled_seconds"
_PROFILE = {
    PROFILED_SECONDS: "Time that the counters of the GPU's units cover, second by second: all, and "
        "of a MIG instance one second in as many as the GPU has instances. The mean of each is its "
        "increase over that of this.",
    "sm_active_seconds": "Time in which a multiprocessor had a warp, mean over all of them.",
    "sm_occupancy_seconds": "Resident warps over the most that fit, mean over all "
        "multiprocessors, times seconds.",
    "tensor_active_seconds": "Time in which tensor cores were active, mean over all; matrix "
        "products of FP64 count here, not as FP64.",
    "fp64_active_seconds": "Time in which FP64 units were active, mean over all of them.",
    "fp32_active_seconds": "Time in which FP32 and integer units were active, mean over all.",
    "fp16_active_seconds": "Time in which FP16 units other than tensor cores were active.",
    "dram_active_seconds": "Time in which the GPU's memory moved data, as a share of its peak.",
}
GPU_PROFILE = {name: _of_gpu(f"{name}_total", "seconds", f"{help} {_OF_GPM}", kind="counter")
    for name, help in _PROFILE.items()}
GPU_PCIE = _of_gpu("pcie_bytes_total", "bytes",
    "Bytes transferred over PCIe since the GPU was first read, protocol overhead included; the "
    "direction is from the point of view of the GPU. NVIDIA: Hopper and later only.",
    "direction", kind="counter")
GPU_NVLINK = _of_gpu("nvlink_bytes_total", "bytes",
    "Payload bytes over all NVLinks; the direction is from the point of view of the GPU.",
    "direction", kind="counter")
GPU_MEMORY_USED = _of_gpu("memory_used_bytes", "bytes", "GPU memory in use.")
GPU_MEMORY_TOTAL = _of_gpu("memory_total_bytes", "bytes", "GPU memory installed or assigned.")
GPU_POWER = _of_gpu("power_watts", "watts",
    "Power draw of the whole board; a mean over 1 s on Ampere and later except A100.")
GPU_POWER_LIMIT = _of_gpu("power_limit_watts", "watts", "Enforced power limit.")
GPU_TEMPERATURE = _of_gpu("temperature_celsius", "celsius", "Temperature of the GPU core.")
GPU_CLOCK = _of_gpu("clock_hertz", "hertz", "Current clock frequency.", "clock")
GPU_ECC_ERRORS = _of_gpu("ecc_errors_total", "count",
    "Memory errors over the lifetime of the board (AMD: since its driver was loaded).", "kind",
    kind="counter")

JOB_GPU_INFO = ExportedMetric("batchjob_job_gpu_info", "gauge", "count",
    "1 for each GPU or MIG instance that is allocated to or used by a running job; `source` is "
    "where this is known from; `confirmed` is false if only the environment of the user's "
    "processes says so.", ("manager", "jobid", "user", "gpu", "uuid", "pci_bus_id", "minor",
    "gpu_instance", "source", "confirmed"), outlives_job=False)
JOB_GPU_SHARE = _of_job("gpu_share_ratio", "ratio",
    "Share of the GPU or MIG instance that is attributed to the job, 0 to 1; absent for a job that "
    "uses a GPU allocated only to others.")
JOB_GPU_UTILIZATION = _of_job("gpu_utilization_ratio", "ratio",
    "Utilisation of the GPU, if no other job holds or uses it: the fraction of the time since the "
    "last reading in which the job's kernels or copies ran. Absent on a shared GPU, where the "
    "driver does not measure it by process.")
JOB_GPU_BUSY_SECONDS = _counted("gpu_busy_seconds",
    "Time in which any kernel or copy ran on the GPU while only this job held it. The mean "
    "utilisation is the increase of this over that of `batchjob_job_gpu_observed_seconds_total`. "
    "Both follow up to 40 s late, also after the end of the job. NVIDIA only, and not in MIG mode.")
JOB_GPU_OBSERVED_SECONDS = _counted("gpu_observed_seconds",
    "Time that `batchjob_job_gpu_busy_seconds_total` covers.")
JOB_GPU_UNOBSERVED_SECONDS = job_metric("gpu_unobserved_seconds", "counter", "seconds", "",
    "Time in which the job held the GPU and its use could not be told: `shared`, other jobs held "
    "or used the GPU as well; `claimed`, the environments of several jobs name the GPU, and none "
    "verifiably holds it; `mps`, processes ran under MPS.", labels=(*GPU_LABELS, "reason"))
JOB_GPU_SHARED_SECONDS = _of_whole_gpu("gpu_shared_seconds", JOB_GPU_UNOBSERVED_SECONDS,
    reason="shared")
JOB_GPU_CLAIMED_SECONDS = _of_whole_gpu("gpu_claimed_seconds", JOB_GPU_UNOBSERVED_SECONDS,
    reason="claimed")
JOB_GPU_MPS_SECONDS = _of_whole_gpu("gpu_mps_seconds", JOB_GPU_UNOBSERVED_SECONDS, reason="mps")
JOB_FREE_GPU_BUSY_SECONDS = _of_free_gpus("busy_seconds",
    "Busy time, during the job, of the node's GPUs that no job verifiably holds, added up. GPUs "
    "that were allocated to the job and cannot be identified are among them, so that they were not "
    "used more than this. Follows up to 40 s late.")
JOB_FREE_GPU_OBSERVED_SECONDS = _of_free_gpus("observed_seconds",
    "Time that `batchjob_job_free_gpu_busy_seconds_total` covers, added up over these GPUs.")
JOB_GPU_MEMORY = _of_job("gpu_memory_bytes", "bytes", "GPU memory of the job's processes.")
JOB_GPU_MEMORY_PEAK = _of_job("gpu_memory_peak_bytes", "bytes",
    "Most GPU memory of the job's processes, sampled ten times a second (AMD: at each reading).",
    outlives=True)
JOB_GPU_PROFILE = {name: _counted(f"gpu_{name}", f"{help} Only while no other job held the GPU, "
    f"which is told up to 40 s late. {_OF_GPM}") for name, help in _PROFILE.items()}
PROFILE_RATIOS = ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
"""The activities of which the database has the mean and the peak."""
PROFILE_PEAKS = {f"{name}_peak_ratio": f"{name}_seconds" for name in PROFILE_RATIOS}
JOB_GPU_PROFILE_PEAKS = {name: _of_job(f"gpu_{name}", "ratio",
    f"Highest value of `batchjob_job_gpu_{of}_total` within one second.", outlives=True)
    for name, of in PROFILE_PEAKS.items()}
JOB_GPU_PCIE, JOB_GPU_NVLINK = (job_metric(f"gpu_{bus}_bytes", "counter", "bytes", "",
    f"Bytes over {title} while only this job held the GPU; the direction is from the point of view "
    f"of the GPU. {_OF_GPM}", labels=(*GPU_LABELS, "direction"))
    for bus, title in (("pcie", "PCIe"), ("nvlink", "NVLink")))
JOB_GPU_TRAFFIC = {f"{bus}_{direction}_bytes": _of_whole_gpu(f"gpu_{bus}_{direction}_bytes", metric,
    direction=direction) for bus, metric in (("pcie", JOB_GPU_PCIE), ("nvlink", JOB_GPU_NVLINK))
    for direction in ("transmit", "receive")}
JOB_GPU_PROCESSES = _of_job("gpu_processes", "count",
    "Processes of the job with a context on the GPU; 0 for a GPU that is allocated and not used.")
# fmt: on
JOB_GPU_POWER = _of_whole_gpu("gpu_power_watts", GPU_POWER)
JOB_GPU_POWER_LIMIT = _of_whole_gpu("gpu_power_limit_watts", GPU_POWER_LIMIT)
JOB_GPU_MEMORY_TOTAL = _of_whole_gpu("gpu_memory_total_bytes", GPU_MEMORY_TOTAL)
JOB_GPU_TEMPERATURE = _of_whole_gpu("gpu_temperature_celsius", GPU_TEMPERATURE)
JOB_GPU_SM_CLOCK = _of_whole_gpu("gpu_sm_clock_hertz", GPU_CLOCK, clock="sm")
JOB_GPU_MEMORY_CLOCK = _of_whole_gpu("gpu_memory_clock_hertz", GPU_CLOCK, clock="memory")
JOB_GPU_ECC_CORRECTED = _of_whole_gpu("gpu_ecc_corrected_errors", GPU_ECC_ERRORS, kind="corrected")
# fmt: off
JOB_GPU_ECC_UNCORRECTED = _of_whole_gpu("gpu_ecc_uncorrected_errors", GPU_ECC_ERRORS,
    kind="uncorrected")

JOB_GPU_NAMES = Quantity("gpu_names", ExportedMetric("batchjob_gpu_info", "gauge", "count",
    "GPUs and MIG instances by the name of the GPU.", GPU_NAMES.labels), group=GPU_NAMES)
JOB_GPU_COUNTED = (JOB_GPU_BUSY_SECONDS, JOB_GPU_OBSERVED_SECONDS, JOB_GPU_SHARED_SECONDS,
    JOB_GPU_CLAIMED_SECONDS, JOB_GPU_MPS_SECONDS, JOB_GPU_MEMORY_PEAK, *JOB_GPU_PROFILE.values(),
    *JOB_GPU_PROFILE_PEAKS.values(), *JOB_GPU_TRAFFIC.values())
GPU_QUANTITIES = (JOB_GPU_UTILIZATION, JOB_FREE_GPU_BUSY_SECONDS, JOB_FREE_GPU_OBSERVED_SECONDS,
    JOB_GPU_MEMORY, JOB_GPU_PROCESSES, JOB_GPU_SHARE, *JOB_GPU_COUNTED, JOB_GPU_POWER,
    JOB_GPU_POWER_LIMIT, JOB_GPU_MEMORY_TOTAL, JOB_GPU_TEMPERATURE, JOB_GPU_SM_CLOCK,
    JOB_GPU_MEMORY_CLOCK, JOB_GPU_ECC_CORRECTED, JOB_GPU_ECC_UNCORRECTED, JOB_GPU_NAMES)
# fmt: on

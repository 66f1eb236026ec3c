"""The curves of a job that can be asked for by name, and the series they are made of."""

from typing import NamedTuple

from batchjob_stats_db.timeseries.base import SeriesKind


class CurveSource(NamedTuple):
    """A family of metrics that gives a curve."""

    metric: str
    kind: SeriesKind
    where: tuple[tuple[str, str], ...] = ()
    part: str = ""  # the label that tells apart the parts of a job on one node
    summed: tuple[str, ...] = ()
    scale: float = 1.0
    of_gpu: bool = False  # a series of a GPU, of which somebody else may have a part


class Curve(NamedTuple):
    """What is measured, in which unit, and where it is found: the first source that has it."""

    name: str
    unit: str
    about: str
    sources: tuple[CurveSource, ...]


def _gauge(name: str, unit: str, about: str, metric: str, part: str = "") -> Curve:
    return Curve(
        name, unit, about, (CurveSource(f"batchjob_job_{metric}", SeriesKind.GAUGE, part=part),)
    )


def _rate(
    name: str, unit: str, about: str, metric: str, part: str = "", summed: str = "", **where: str
) -> Curve:
    source = CurveSource(
        f"batchjob_job_{metric}", SeriesKind.RATE, tuple(where.items()), part, tuple(summed.split())
    )
    return Curve(name, unit, about, (source,))


def _gpu(name: str, unit: str, about: str, *sources: CurveSource) -> Curve:
    return Curve(name, unit, about, sources)


def _of_gpu(metric: str, scale: float = 1.0) -> CurveSource:
    return CurveSource(metric, SeriesKind.GAUGE, scale=scale, of_gpu=True)


def _of_job_gpu(metric: str) -> CurveSource:
    return CurveSource(f"batchjob_job_{metric}", SeriesKind.GAUGE)


_ALL = (
    _rate("cpu", "cores", "CPUs in use.", "cpu_seconds_total", summed="mode"),
    _rate("cpu_by_mode", "cores", "CPUs in use, by mode.", "cpu_seconds_total", part="mode"),
    _gauge("cpus", "cores", "CPUs allocated.", "cpus"),
    _rate(
        "cpu_throttled",
        "ratio",
        "Time in which the CPU quota held tasks back; CPUs add up.",
        "cpu_throttled_seconds_total",
    ),
    _gauge("memory", "bytes", "Memory charged, page cache included.", "memory_current_bytes"),
    _gauge(
        "memory_working_set",
        "bytes",
        "Memory less inactive page cache.",
        "memory_working_set_bytes",
    ),
    _gauge("memory_anonymous", "bytes", "Heap and stack.", "memory_anon_bytes"),
    _gauge("memory_cache", "bytes", "Page cache, shared memory included.", "memory_file_bytes"),
    _gauge("memory_limit", "bytes", "The memory limit.", "memory_limit_bytes"),
    _gauge("swap", "bytes", "Swap in use.", "memory_swap_bytes"),
    _rate(
        "major_faults",
        "1/s",
        "Page faults that waited for storage.",
        "page_faults_total",
        kind="major",
    ),
    _rate("io_read", "bytes/s", "Read from block devices.", "io_read_bytes_total", summed="device"),
    _rate(
        "io_write",
        "bytes/s",
        "Written to block devices.",
        "io_written_bytes_total",
        summed="device",
    ),
    _rate("io_reads", "1/s", "Reads of block devices.", "io_reads_total", summed="device"),
    _rate("io_writes", "1/s", "Writes to block devices.", "io_writes_total", summed="device"),
    _rate(
        "file_read",
        "bytes/s",
        "Fetched from storage, network file systems included.",
        "process_io_read_bytes_total",
    ),
    _rate(
        "file_write",
        "bytes/s",
        "Sent to storage, network file systems included.",
        "process_io_written_bytes_total",
    ),
    *(
        _rate(
            f"{word}_{resource}",
            "ratio",
            f"Part of the time in which {who} waited for {what}.",
            f"pressure_{metric}_seconds_total",
            resource=resource,
        )
        for word, who, metric in (
            ("pressure", "some task", "waiting"),
            ("stalled", "all tasks", "stalled"),
        )
        for resource, what in (("cpu", "a CPU"), ("memory", "memory"), ("io", "storage"))
    ),
    _gauge("processes", "count", "Processes.", "processes"),
    _gauge("threads", "count", "Threads.", "threads"),
    _gauge("open_files", "count", "Open files.", "open_files"),
    _rate(
        "network_receive",
        "bytes/s",
        "Received, in a network namespace of the job's own.",
        "network_receive_bytes_total",
        summed="device",
    ),
    _rate(
        "network_transmit",
        "bytes/s",
        "Sent, in a network namespace of the job's own.",
        "network_transmit_bytes_total",
        summed="device",
    ),
    _rate(
        "power",
        "watts",
        "The job's part of the nodes' power, by component.",
        "energy_joules_total",
        part="component",
        summed="kind",
    ),
    _rate(
        "emissions",
        "g/s",
        "Emissions, by provider of the factor.",
        "emissions_grams_total",
        part="provider",
    ),
    _gpu(
        "gpu_utilization",
        "ratio",
        "Part of the time in which any kernel ran.",
        _of_job_gpu("gpu_utilization_ratio"),
        _of_gpu("batchjob_gpu_utilization_ratio"),
        _of_gpu("DCGM_FI_DEV_GPU_UTIL", 0.01),
    ),
    _gpu(
        "gpu_memory",
        "bytes",
        "GPU memory in use.",
        _of_job_gpu("gpu_memory_bytes"),
        _of_gpu("batchjob_gpu_memory_used_bytes"),
        _of_gpu("DCGM_FI_DEV_FB_USED", 1 << 20),
    ),
    _gpu(
        "gpu_memory_total",
        "bytes",
        "GPU memory installed.",
        _of_gpu("batchjob_gpu_memory_total_bytes"),
    ),
    _gpu(
        "gpu_power",
        "watts",
        "Power of the whole GPU.",
        _of_gpu("batchjob_gpu_power_watts"),
        _of_gpu("DCGM_FI_DEV_POWER_USAGE"),
    ),
    _gpu(
        "gpu_temperature",
        "celsius",
        "Temperature of the GPU.",
        _of_gpu("batchjob_gpu_temperature_celsius"),
        _of_gpu("DCGM_FI_DEV_GPU_TEMP"),
    ),
    _gpu("gpu_processes", "count", "The job's processes on the GPU.", _of_job_gpu("gpu_processes")),
    _gpu(
        "gpu_sm_active",
        "ratio",
        "Part of the multiprocessors' time with work (DCGM).",
        _of_gpu("DCGM_FI_PROF_SM_ACTIVE"),
    ),
    _gpu(
        "gpu_tensor_active",
        "ratio",
        "Part of the time in which tensor cores worked (DCGM).",
        _of_gpu("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    ),
    _gpu(
        "gpu_memory_active",
        "ratio",
        "Part of the time in which GPU memory moved data (DCGM).",
        _of_gpu("DCGM_FI_PROF_DRAM_ACTIVE"),
    ),
)

CURVES = {curve.name: curve for curve in _ALL}

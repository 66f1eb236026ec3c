"""The curves of a job: the series from which each is drawn, and the plots that show them."""

from dataclasses import dataclass
from typing import Any

from batchjob.quantities import energy, gpu, job
from batchjob.quantities.quantity import ExportedMetric, Quantity, SeriesKind


@dataclass(frozen=True, slots=True)
class CurveSource:
    """A family of metrics from which a curve is drawn."""

    metric: str
    kind: SeriesKind
    where: tuple[tuple[str, str], ...] = ()
    part: str = ""  # the label that distinguishes the parts of a job on one node
    summed: tuple[str, ...] = ()  # labels over which series are summed
    scale: float = 1.0
    of_gpu: bool = False  # a series of a GPU, which may be shared with another user


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve with its unit, and its sources: the first one that has data is drawn."""

    name: str
    unit: str
    about: str
    sources: tuple[CurveSource, ...]


def _gauge(name: str, unit: str, about: str, quantity: Quantity) -> Curve:
    return Curve(name, unit, about, (_of_job(quantity),))


def _rate(
    name: str,
    unit: str,
    about: str,
    of: Quantity | ExportedMetric,
    part: str = "",
    summed: str = "",
) -> Curve:
    """The rate of a quantity, or of all quantities that share a metric."""
    metric, where = (of.metric, of.labels) if isinstance(of, Quantity) else (of, ())
    source = CurveSource(metric.name, SeriesKind.RATE, where, part, tuple(summed.split()))
    return Curve(name, unit, about, (source,))


def _of_job(quantity: Quantity) -> CurveSource:
    return CurveSource(quantity.metric.name, SeriesKind.GAUGE)


def _of_gpu(metric: ExportedMetric) -> CurveSource:
    return CurveSource(metric.name, SeriesKind.GAUGE, of_gpu=True)


def _dcgm(field: str, scale: float = 1.0) -> CurveSource:
    """A field of dcgm-exporter (its etc/dcp-metrics-included.csv)."""
    return CurveSource(f"DCGM_FI_{field}", SeriesKind.GAUGE, scale=scale, of_gpu=True)


# fmt: off
CPU = _rate("cpu", "cores", "CPUs in use.", job.CPU_SECONDS, summed="mode")
CPU_BY_MODE = _rate("cpu_by_mode", "cores", "CPUs in use, by mode.", job.CPU_SECONDS, part="mode")
CPUS = _gauge("cpus", "cores", "CPUs allocated.", job.CPUS)
CPU_THROTTLED = _rate("cpu_throttled", "ratio",
    "Time for which tasks were throttled by the CPU quota, summed over CPUs.",
    job.CPU_THROTTLED_SECONDS)
MEMORY = _gauge("memory", "bytes", "Memory charged, including page cache.", job.MEMORY_CURRENT)
MEMORY_WORKING_SET = _gauge("memory_working_set", "bytes",
    "Memory minus inactive page cache.", job.MEMORY_WORKING_SET)
MEMORY_ANONYMOUS = _gauge("memory_anonymous", "bytes", "Heap and stack.", job.MEMORY_ANON)
MEMORY_CACHE = _gauge("memory_cache", "bytes", "Page cache, including shared memory.",
    job.MEMORY_FILE)
MEMORY_LIMIT = _gauge("memory_limit", "bytes", "The memory limit.", job.MEMORY_LIMIT)
SWAP = _gauge("swap", "bytes", "Swap in use.", job.MEMORY_SWAP)
MAJOR_FAULTS = _rate("major_faults", "1/s", "Page faults that waited for storage.",
    job.PAGE_FAULTS_MAJOR)
IO_READ = _rate("io_read", "bytes/s", "Read from block devices.", job.IO_READ_BYTES,
    summed="device")
IO_WRITE = _rate("io_write", "bytes/s", "Written to block devices.", job.IO_WRITTEN_BYTES,
    summed="device")
IO_READS = _rate("io_reads", "1/s", "Reads of block devices.", job.IO_READS, summed="device")
IO_WRITES = _rate("io_writes", "1/s", "Writes to block devices.", job.IO_WRITES, summed="device")
FILE_READ = _rate("file_read", "bytes/s",
    "Fetched from storage, including network file systems.", job.PROCESS_IO_READ_BYTES)
FILE_WRITE = _rate("file_write", "bytes/s",
    "Sent to storage, including network file systems.", job.PROCESS_IO_WRITTEN_BYTES)
_ANY_TASK = "Fraction of time in which at least one task waited for"
PRESSURE_CPU = _rate("pressure_cpu", "ratio", f"{_ANY_TASK} a CPU.", job.CPU_WAITING)
PRESSURE_MEMORY = _rate("pressure_memory", "ratio", f"{_ANY_TASK} memory.", job.MEMORY_WAITING)
PRESSURE_IO = _rate("pressure_io", "ratio", f"{_ANY_TASK} storage.", job.IO_WAITING)
_ALL_TASKS = "Fraction of time in which all non-idle tasks waited for"
STALLED_CPU = _rate("stalled_cpu", "ratio", f"{_ALL_TASKS} a CPU.", job.CPU_STALLED)
STALLED_MEMORY = _rate("stalled_memory", "ratio", f"{_ALL_TASKS} memory.", job.MEMORY_STALLED)
STALLED_IO = _rate("stalled_io", "ratio", f"{_ALL_TASKS} storage.", job.IO_STALLED)
PROCESSES = _gauge("processes", "count", "Processes.", job.PROCESSES)
THREADS = _gauge("threads", "count", "Threads.", job.THREADS)
OPEN_FILES = _gauge("open_files", "count", "Open files.", job.OPEN_FILES)
NETWORK_RECEIVE = _rate("network_receive", "bytes/s",
    "Received in the job's own network namespace or, with batchjob_helper, at its sockets.",
    job.NETWORK_RECEIVE_BYTES, summed="device")
NETWORK_TRANSMIT = _rate("network_transmit", "bytes/s",
    "Sent in the job's own network namespace or, with batchjob_helper, at its sockets.",
    job.NETWORK_TRANSMIT_BYTES, summed="device")
POWER = _rate("power", "watts",
    "The job's share of the nodes' power, by component.", energy.ENERGY_JOULES, part="component",
    summed="kind")
EMISSIONS = _rate("emissions", "g/s", "Emissions, by provider of the factor.",
    energy.EMISSIONS_GRAMS, part="provider")
GPU_UTILIZATION = Curve("gpu_utilization", "ratio",
    "Fraction of time in which any kernel ran.", (_of_job(gpu.JOB_GPU_UTILIZATION),
    _of_gpu(gpu.GPU_UTILIZATION), _dcgm("DEV_GPU_UTIL", 0.01)))
GPU_MEMORY = Curve("gpu_memory", "bytes", "GPU memory in use.", (_of_job(gpu.JOB_GPU_MEMORY),
    _of_gpu(gpu.GPU_MEMORY_USED), _dcgm("DEV_FB_USED", 1 << 20)))
GPU_MEMORY_TOTAL = Curve("gpu_memory_total", "bytes", "GPU memory installed.",
    (_of_gpu(gpu.GPU_MEMORY_TOTAL), _of_job(gpu.JOB_GPU_MEMORY_TOTAL)))
GPU_POWER = Curve("gpu_power", "watts",
    "Power of the whole GPU.", (_of_gpu(gpu.GPU_POWER), _dcgm("DEV_POWER_USAGE"),
    _of_job(gpu.JOB_GPU_POWER)))
GPU_TEMPERATURE = Curve("gpu_temperature", "celsius", "Temperature of the GPU.",
    (_of_gpu(gpu.GPU_TEMPERATURE), _dcgm("DEV_GPU_TEMP")))
GPU_PROCESSES = _gauge("gpu_processes", "count", "The job's processes on the GPU.",
    gpu.JOB_GPU_PROCESSES)
GPU_SM_ACTIVE = Curve("gpu_sm_active", "ratio",
    "Fraction of time in which the multiprocessors were active (DCGM).",
    (_dcgm("PROF_SM_ACTIVE"),))
GPU_TENSOR_ACTIVE = Curve("gpu_tensor_active", "ratio",
    "Fraction of time in which tensor cores were active (DCGM).",
    (_dcgm("PROF_PIPE_TENSOR_ACTIVE"),))
GPU_MEMORY_ACTIVE = Curve("gpu_memory_active", "ratio",
    "Fraction of time in which GPU memory transferred data (DCGM).", (_dcgm("PROF_DRAM_ACTIVE"),))
# fmt: on

# Collected from the module's globals, so that no curve can be left out.
_ALL: list[Any] = list(globals().values())
CURVES = {each.name: each for each in _ALL if isinstance(each, Curve)}


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves of a job that are drawn together, and the limit that is drawn with them."""

    title: str
    curves: tuple[Curve, ...]
    limit: Curve | None = None
    ceiling: float | None = None  # a constant limit, instead of a curve
    gpu: bool = False  # only for jobs with GPUs
    peak: str = ""  # column of job_usage with the largest value of a node; samples may miss it


# fmt: off
PLOTS = (
    Plot("CPUs in use", (CPU,), limit=CPUS),
    Plot("Memory", (MEMORY, MEMORY_WORKING_SET), limit=MEMORY_LIMIT, peak="memory_peak_node_bytes"),
    Plot("GPU use", (GPU_UTILIZATION,), ceiling=1.0, gpu=True),
    Plot("GPU memory", (GPU_MEMORY,), limit=GPU_MEMORY_TOTAL, gpu=True),
    Plot("GPU power", (GPU_POWER,), gpu=True),
    Plot("Power", (POWER,)),
    Plot("Files, including network file systems", (FILE_READ, FILE_WRITE)),
    Plot("Block devices", (IO_READ, IO_WRITE)),
    Plot("Pressure (time waiting for resources)", (PRESSURE_CPU, PRESSURE_MEMORY, PRESSURE_IO),
        ceiling=1.0),
    Plot("Throttled by the CPU quota", (CPU_THROTTLED,)),
    Plot("Network", (NETWORK_RECEIVE, NETWORK_TRANSMIT)),
    Plot("Processes and threads", (PROCESSES, THREADS)),
)
# fmt: on
COMPARED_CURVES = (CPU, MEMORY, GPU_UTILIZATION, POWER, FILE_READ, FILE_WRITE)


def plots_for(gpus: int | None) -> tuple[Plot, ...]:
    return tuple(plot for plot in PLOTS if gpus or not plot.gpu)

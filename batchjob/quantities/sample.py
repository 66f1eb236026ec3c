"""What a sample holds: the table of quantities, how a file writes them, and their metrics.

A quantity stands in a file under a short key, as a whole number of a unit that is fine enough, for
noise in digits that nobody reads is most of what a file would weigh. Everywhere else it has its
name, and is in seconds, bytes, joules, grams or a count.
"""

from collections.abc import Mapping
from typing import NamedTuple


class SampleHeader(NamedTuple):
    """Whose samples a file holds; its first line."""

    manager: str
    jobid: str
    user: str
    node: str
    interval: float  # seconds from one sample to the next, as a rule


class SampleKey(NamedTuple):
    """A number of a sample."""

    quantity: str
    of: tuple[str, ...] = ()  # the device, GPU, provider ... it belongs to; () the job as a whole


class JobSample(NamedTuple):
    """A job on one node at one moment. What was not read is not in it; nothing is zero for that.

    A counter is a sum since the job began.
    """

    at: float  # epoch seconds
    values: Mapping[SampleKey, float]

    def get(self, quantity: str, *of: str) -> float | None:
        """A number by name."""
        return self.values.get(SampleKey(quantity, of))

    def sum(self, quantity: str) -> float | None:
        """The sum over devices, GPUs or whatever it belongs to; None where it belongs to none."""
        found = [value for name, value in self.values.items() if name.quantity == quantity]
        return sum(found) if found else None


class Quantity(NamedTuple):
    """One kind of number."""

    name: str
    key: str
    per_unit: float  # what one counts as in a file: 1000 for seconds in milliseconds
    counter: bool
    metric: str  # the exporter's name for the same
    labels: tuple[tuple[str, str], ...] = ()
    group: str = ""  # key of the object in which those of each device stand


class SampleGroup(NamedTuple):
    """Quantities of which a job has several: an object by device, GPU or provider in a line."""

    key: str
    name: str
    labels: tuple[str, ...]  # of the metrics; the values, with spaces between, are the key


GROUPS = (
    SampleGroup("io", "io", ("device",)),
    SampleGroup("net", "network", ("device",)),
    SampleGroup("gpu", "gpus", ("gpu", "uuid", "gpu_instance")),
    SampleGroup("e", "energy_joules", ("component", "kind")),
    SampleGroup("co2", "emissions_grams", ("provider",)),
    SampleGroup("x", "executable_cpu_seconds", ("executable",)),
)

_MS, _KIB = 1000.0, 1 / 1024


def _gauge(name: str, key: str, per_unit: float, metric: str, group: str = "") -> Quantity:
    return Quantity(name, key, per_unit, False, f"batchjob_job_{metric}", group=group)


def _counter(name: str, key: str, per_unit: float, metric: str, **labels: str) -> Quantity:
    metric = f"batchjob_job_{metric}_total"
    return Quantity(name, key, per_unit, True, metric, tuple(labels.items()))


def _of(group: str, name: str, key: str, per_unit: float, metric: str) -> Quantity:
    return Quantity(name, key, per_unit, True, f"batchjob_job_{metric}_total", group=group)


QUANTITIES = (
    _counter("cpu_user_seconds", "u", _MS, "cpu_seconds", mode="user"),
    _counter("cpu_system_seconds", "s", _MS, "cpu_seconds", mode="system"),
    _gauge("cpus", "cpus", 1000, "cpus"),
    _counter("cpu_throttled_seconds", "ts", _MS, "cpu_throttled_seconds"),
    _counter("cpu_throttled_periods", "tp", 1, "cpu_throttled_periods"),
    _counter("cpu_periods", "pd", 1, "cpu_periods"),
    _gauge("memory_current", "m", _KIB, "memory_current_bytes"),
    _gauge("memory_working_set", "mw", _KIB, "memory_working_set_bytes"),
    _gauge("memory_anon", "ma", _KIB, "memory_anon_bytes"),
    _gauge("memory_file", "mf", _KIB, "memory_file_bytes"),
    _gauge("memory_shmem", "mh", _KIB, "memory_shmem_bytes"),
    _gauge("memory_kernel", "mk", _KIB, "memory_kernel_bytes"),
    _gauge("memory_mapped", "mm", _KIB, "memory_mapped_bytes"),
    _gauge("memory_inactive_file", "mi", _KIB, "memory_inactive_file_bytes"),
    _gauge("memory_swap", "ms", _KIB, "memory_swap_bytes"),
    _gauge("memory_peak", "mp", _KIB, "memory_peak_bytes"),
    _gauge("memory_limit", "ml", _KIB, "memory_limit_bytes"),
    _counter("memory_limit_hits", "lh", 1, "memory_limit_hits"),
    _counter("oom_kills", "oom", 1, "oom_kills"),
    _counter("page_faults_minor", "f", 1, "page_faults", kind="minor"),
    _counter("page_faults_major", "fm", 1, "page_faults", kind="major"),
    _counter("cpu_waiting_seconds", "pc", _MS, "pressure_waiting_seconds", resource="cpu"),
    _counter("cpu_stalled_seconds", "pcs", _MS, "pressure_stalled_seconds", resource="cpu"),
    _counter("memory_waiting_seconds", "pm", _MS, "pressure_waiting_seconds", resource="memory"),
    _counter("memory_stalled_seconds", "pms", _MS, "pressure_stalled_seconds", resource="memory"),
    _counter("io_waiting_seconds", "pi", _MS, "pressure_waiting_seconds", resource="io"),
    _counter("io_stalled_seconds", "pis", _MS, "pressure_stalled_seconds", resource="io"),
    _gauge("processes", "p", 1, "processes"),
    _gauge("threads", "th", 1, "threads"),
    _gauge("threads_limit", "tl", 1, "threads_limit"),
    _counter("threads_limit_hits", "tlh", 1, "threads_limit_hits"),
    _gauge("open_files", "of", 1, "open_files"),
    _counter("process_io_read_bytes", "r", 1, "process_io_read_bytes"),
    _counter("process_io_written_bytes", "w", 1, "process_io_written_bytes"),
    _counter("process_io_read_characters", "rc", 1, "process_io_read_characters"),
    _counter("process_io_written_characters", "wc", 1, "process_io_written_characters"),
    _of("io", "io_read_bytes", "r", 1, "io_read_bytes"),
    _of("io", "io_written_bytes", "w", 1, "io_written_bytes"),
    _of("io", "io_reads", "ro", 1, "io_reads"),
    _of("io", "io_writes", "wo", 1, "io_writes"),
    *(
        _of("net", f"network_{direction}_{what}", f"{direction[0]}{what[0]}", 1,
            f"network_{direction}_{what}")
        for direction in ("receive", "transmit")
        for what in ("bytes", "packets", "errors", "drops")
    ),
    _gauge("gpu_utilization", "u", 1000, "gpu_utilization_ratio", "gpu"),
    _gauge("gpu_memory", "m", _KIB, "gpu_memory_bytes", "gpu"),
    _gauge("gpu_processes", "p", 1, "gpu_processes", "gpu"),
    _gauge("gpu_share", "sh", 1000, "gpu_share_ratio", "gpu"),
    Quantity("gpu_power_watts", "w", 10, False, "batchjob_gpu_power_watts", group="gpu"),
    _of("e", "energy_joules", "", 10, "energy_joules"),
    _of("co2", "emissions_grams", "", 10_000, "emissions_grams"),
    _of("x", "executable_cpu_seconds", "", _MS, "executable_cpu_seconds"),
    _gauge("start_time_seconds", "start", 100, "start_time_seconds"),
    _gauge("end_time_seconds", "end", 100, "end_time_seconds"),
)  # fmt: skip

BY_NAME: Mapping[str, Quantity] = {quantity.name: quantity for quantity in QUANTITIES}
BY_KEY: Mapping[tuple[str, str], Quantity] = {
    (quantity.group, quantity.key): quantity for quantity in QUANTITIES
}
GROUP_BY_KEY: Mapping[str, SampleGroup] = {group.key: group for group in GROUPS}
END = SampleKey("end_time_seconds")

"""What a sample holds: the table of quantities, and their metrics.

A quantity has one name, in files, in the API and in tables; it is in seconds, bytes, joules, grams,
watts, a ratio or a count.
"""

from collections.abc import Mapping
from typing import NamedTuple


class SampleHeader(NamedTuple):
    """Whose samples a file holds; each line says it."""

    manager: str
    jobid: str
    user: str
    node: str
    interval_seconds: float  # from one sample to the next, as a rule


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


class SampleGroup(NamedTuple):
    """Quantities of which a job has several: an object by device, GPU or provider in a line."""

    name: str
    labels: tuple[str, ...]  # of the metrics; the values, with spaces between, are the key
    prefix: str = ""  # of its quantities' names, which is left out within; "": it has one alone


IO = SampleGroup("io", ("device",), "io_")
NETWORK = SampleGroup("network", ("device",), "network_")
GPUS = SampleGroup("gpus", ("gpu", "uuid", "gpu_instance"), "gpu_")
ENERGY = SampleGroup("energy_joules", ("component", "kind"))
EMISSIONS = SampleGroup("emissions_grams", ("provider",))
EXECUTABLES = SampleGroup("executable_cpu_seconds", ("executable",))
GROUPS = {each.name: each for each in (IO, NETWORK, GPUS, ENERGY, EMISSIONS, EXECUTABLES)}


class Quantity(NamedTuple):
    """One kind of number."""

    name: str
    digits: int  # behind the point in a file: more would be noise that nobody reads
    counter: bool
    metric: str  # the exporter's name for the same
    labels: tuple[tuple[str, str], ...] = ()
    group: SampleGroup | None = None

    @property
    def within(self) -> str:
        """Its name in an object of its group; "" where the group has this quantity alone."""
        if self.group is None or self.group.name == self.name:
            return ""
        return self.name.removeprefix(self.group.prefix)


def _gauge(name: str, digits: int = 0, group: SampleGroup | None = None) -> Quantity:
    return Quantity(name, digits, False, f"batchjob_job_{name}", group=group)


def _counter(name: str, metric: str, digits: int = 0, **labels: str) -> Quantity:
    metric = f"batchjob_job_{metric}_total"
    return Quantity(name, digits, True, metric, tuple(labels.items()))


def _board(name: str, digits: int = 0) -> Quantity:
    """Of a GPU that the job holds, whoever else uses it."""
    return Quantity(f"gpu_{name}", digits, False, f"batchjob_gpu_{name}", group=GPUS)


def _of(group: SampleGroup, name: str, digits: int = 0) -> Quantity:
    return Quantity(name, digits, True, f"batchjob_job_{name}_total", group=group)


QUANTITIES = (
    _counter("cpu_user_seconds", "cpu_seconds", 3, mode="user"),
    _counter("cpu_system_seconds", "cpu_seconds", 3, mode="system"),
    _gauge("cpus", 3),
    _counter("cpu_throttled_seconds", "cpu_throttled_seconds", 3),
    _counter("cpu_throttled_periods", "cpu_throttled_periods"),
    _counter("cpu_periods", "cpu_periods"),
    _gauge("memory_current_bytes"),
    _gauge("memory_working_set_bytes"),
    _gauge("memory_anon_bytes"),
    _gauge("memory_file_bytes"),
    _gauge("memory_shmem_bytes"),
    _gauge("memory_kernel_bytes"),
    _gauge("memory_mapped_bytes"),
    _gauge("memory_inactive_file_bytes"),
    _gauge("memory_swap_bytes"),
    _gauge("memory_peak_bytes"),
    _gauge("memory_limit_bytes"),
    _counter("memory_limit_hits", "memory_limit_hits"),
    _counter("oom_kills", "oom_kills"),
    _counter("page_faults_minor", "page_faults", kind="minor"),
    _counter("page_faults_major", "page_faults", kind="major"),
    _counter("cpu_waiting_seconds", "pressure_waiting_seconds", 3, resource="cpu"),
    _counter("cpu_stalled_seconds", "pressure_stalled_seconds", 3, resource="cpu"),
    _counter("memory_waiting_seconds", "pressure_waiting_seconds", 3, resource="memory"),
    _counter("memory_stalled_seconds", "pressure_stalled_seconds", 3, resource="memory"),
    _counter("io_waiting_seconds", "pressure_waiting_seconds", 3, resource="io"),
    _counter("io_stalled_seconds", "pressure_stalled_seconds", 3, resource="io"),
    _gauge("processes"),
    _gauge("threads"),
    _gauge("threads_limit"),
    _counter("threads_limit_hits", "threads_limit_hits"),
    _gauge("open_files"),
    _counter("process_io_read_bytes", "process_io_read_bytes"),
    _counter("process_io_written_bytes", "process_io_written_bytes"),
    _counter("process_io_read_characters", "process_io_read_characters"),
    _counter("process_io_written_characters", "process_io_written_characters"),
    _of(IO, "io_read_bytes"),
    _of(IO, "io_written_bytes"),
    _of(IO, "io_reads"),
    _of(IO, "io_writes"),
    *(
        _of(NETWORK, f"network_{direction}_{what}")
        for direction in ("receive", "transmit")
        for what in ("bytes", "packets", "errors", "drops")
    ),
    _gauge("gpu_utilization_ratio", 3, GPUS),
    _gauge("gpu_memory_bytes", 0, GPUS),
    _gauge("gpu_processes", 0, GPUS),
    _gauge("gpu_share_ratio", 3, GPUS),
    _board("power_watts", 1),
    _board("memory_total_bytes"),
    _board("temperature_celsius"),
    *(
        Quantity(f"gpu_{clock}_clock_hertz", 0, False, "batchjob_gpu_clock_hertz",
                 (("clock", clock),), GPUS)
        for clock in ("sm", "memory")
    ),
    *(
        Quantity(f"gpu_ecc_{kind}_errors", 0, True, "batchjob_gpu_ecc_errors_total",
                 (("kind", kind),), GPUS)
        for kind in ("corrected", "uncorrected")
    ),
    _of(ENERGY, "energy_joules", 1),
    _of(EMISSIONS, "emissions_grams", 4),
    _of(EXECUTABLES, "executable_cpu_seconds", 3),
    _gauge("start_time_seconds", 2),
    _gauge("end_time_seconds", 2),
)  # fmt: skip

BY_NAME: Mapping[str, Quantity] = {quantity.name: quantity for quantity in QUANTITIES}
WITHIN: Mapping[tuple[str, str], Quantity] = {
    (quantity.group.name, quantity.within): quantity for quantity in QUANTITIES if quantity.group
}
"""The quantities of groups, by the group's name and their own within."""
END = SampleKey("end_time_seconds")

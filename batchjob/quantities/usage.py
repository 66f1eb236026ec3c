"""The measured columns of `job_usage`: a statistic of a quantity for each, in the table's order."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from batchjob.quantities import energy, job
from batchjob.quantities.quantity import Quantity, Statistic

Fold = Callable[[Iterable[float]], float]


@dataclass(frozen=True, slots=True)
class UsageColumn:
    """The source of a column of job_usage."""

    name: str
    quantity: Quantity
    statistic: Statistic
    labels: tuple[tuple[str, str], ...] = ()  # in addition to the quantity's own
    fold: Fold = math.fsum  # combines the values of all nodes
    needs_every_node: bool = True  # no value for the job unless each node has one

    @property
    def is_integer(self) -> bool:
        fractional = self.quantity.metric.unit in ("seconds", "joules")
        return self.statistic is not Statistic.MEAN and not fractional


def _total(name: str, quantity: Quantity, **labels: str) -> UsageColumn:
    return UsageColumn(name, quantity, Statistic.TOTAL, tuple(labels.items()))


def _partial_total(name: str, quantity: Quantity, **labels: str) -> UsageColumn:
    """A total that some nodes may lack, such as those without a CPU quota or block devices."""
    return replace(_total(name, quantity, **labels), needs_every_node=False)


def _peak(name: str, quantity: Quantity) -> UsageColumn:
    return UsageColumn(name, quantity, Statistic.PEAK)


def _memory_peak(name: str, fold: Fold = math.fsum) -> UsageColumn:
    """Nodes without it have samples instead."""
    return UsageColumn(name, job.MEMORY_PEAK, Statistic.PEAK, fold=fold, needs_every_node=False)


def _mean(name: str, quantity: Quantity) -> UsageColumn:
    return UsageColumn(name, quantity, Statistic.MEAN)


USAGE_COLUMNS = (
    _partial_total("user_cpu_seconds", job.CPU_USER),
    _partial_total("system_cpu_seconds", job.CPU_SYSTEM),
    _partial_total("throttled_seconds", job.CPU_THROTTLED_SECONDS),
    # Peaks are summed over nodes, although they may have occurred at different times.
    _memory_peak("memory_peak_bytes"),
    _memory_peak("memory_peak_node_bytes", max),
    _peak("memory_limit_bytes", job.MEMORY_LIMIT),
    _peak("swap_peak_bytes", job.MEMORY_SWAP),
    _mean("memory_average_bytes", job.MEMORY_CURRENT),
    _mean("working_set_average_bytes", job.MEMORY_WORKING_SET),
    _partial_total("io_read_bytes", job.IO_READ_BYTES),
    _partial_total("io_written_bytes", job.IO_WRITTEN_BYTES),
    _total("process_io_read_bytes", job.PROCESS_IO_READ_BYTES),
    _total("process_io_written_bytes", job.PROCESS_IO_WRITTEN_BYTES),
    _total("network_received_bytes", job.NETWORK_RECEIVE_BYTES),
    _total("network_sent_bytes", job.NETWORK_TRANSMIT_BYTES),
    _total("major_page_faults", job.PAGE_FAULTS_MAJOR),
    _partial_total("memory_limit_hits", job.MEMORY_LIMIT_HITS),
    _partial_total("oom_kills", job.OOM_KILLS),
    _peak("threads_peak", job.THREADS),
    _total("cpu_waiting_seconds", job.CPU_WAITING),
    _total("memory_waiting_seconds", job.MEMORY_WAITING),
    _total("io_waiting_seconds", job.IO_WAITING),
)
ENERGY_COLUMNS = tuple(
    _partial_total(
        f"energy_{component}_{kind}_joules", energy.ENERGY_JOULES, component=component, kind=kind
    )
    for component in ("host", "gpu")
    for kind in ("active", "idle")
)

"""The measured columns of `job_usage`: a statistic of a quantity for each, in the table's order."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batchjob.quantities import energy, job
from batchjob.quantities.quantity import Quantity, Statistic

Fold = Callable[[Iterable[float]], float]


@dataclass(frozen=True, slots=True)
class UsageColumn:
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


_TOTAL, _PEAK, _MEAN = Statistic.TOTAL, Statistic.PEAK, Statistic.MEAN
# Some nodes lack these, such as those without a CPU quota or block devices.
_SOME: Mapping[str, Any] = {"needs_every_node": False}

USAGE_COLUMNS = (
    UsageColumn("user_cpu_seconds", job.CPU_USER, _TOTAL, **_SOME),
    UsageColumn("system_cpu_seconds", job.CPU_SYSTEM, _TOTAL, **_SOME),
    UsageColumn("throttled_seconds", job.CPU_THROTTLED_SECONDS, _TOTAL, **_SOME),
    # Peaks are summed over nodes, although they may have occurred at different times. Nodes without
    # a peak of memory or threads have samples instead.
    UsageColumn("memory_peak_bytes", job.MEMORY_PEAK, _PEAK, **_SOME),
    UsageColumn("memory_peak_node_bytes", job.MEMORY_PEAK, _PEAK, fold=max, **_SOME),
    UsageColumn("memory_limit_bytes", job.MEMORY_LIMIT, _PEAK),
    UsageColumn("swap_peak_bytes", job.MEMORY_SWAP, _PEAK),
    UsageColumn("memory_average_bytes", job.MEMORY_CURRENT, _MEAN),
    UsageColumn("working_set_average_bytes", job.MEMORY_WORKING_SET, _MEAN),
    UsageColumn("io_read_bytes", job.IO_READ_BYTES, _TOTAL, **_SOME),
    UsageColumn("io_written_bytes", job.IO_WRITTEN_BYTES, _TOTAL, **_SOME),
    UsageColumn("process_io_read_bytes", job.PROCESS_IO_READ_BYTES, _TOTAL),
    UsageColumn("process_io_written_bytes", job.PROCESS_IO_WRITTEN_BYTES, _TOTAL),
    UsageColumn("network_received_bytes", job.NETWORK_RECEIVE_BYTES, _TOTAL),
    UsageColumn("network_sent_bytes", job.NETWORK_TRANSMIT_BYTES, _TOTAL),
    UsageColumn("major_page_faults", job.PAGE_FAULTS_MAJOR, _TOTAL),
    UsageColumn("memory_limit_hits", job.MEMORY_LIMIT_HITS, _TOTAL, **_SOME),
    UsageColumn("oom_kills", job.OOM_KILLS, _TOTAL, **_SOME),
    UsageColumn("threads_peak", job.THREADS_PEAK, _PEAK, **_SOME),
    UsageColumn("cpu_waiting_seconds", job.CPU_WAITING, _TOTAL),
    UsageColumn("memory_waiting_seconds", job.MEMORY_WAITING, _TOTAL),
    UsageColumn("io_waiting_seconds", job.IO_WAITING, _TOTAL),
)
ENERGY_COLUMNS = tuple(
    UsageColumn(
        f"energy_{component}_{kind}_joules",
        energy.ENERGY_JOULES,
        _TOTAL,
        (("component", component), ("kind", kind)),
        **_SOME,
    )
    for component in ("host", "gpu")
    for kind in ("active", "idle")
)

"""The definition of a quantity of a job: its names, its unit, its meaning, and where it is read.

The tables are in `job`, `gpu` and `energy`; `usage` and `curves` define what is stored and drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from batchjob.quantities.reading import JobReading

Kind = Literal["counter", "gauge"]
Unit = Literal[
    "seconds",
    "bytes",
    "count",
    "cpus",
    "ratio",
    "joules",
    "grams",
    "watts",
    "celsius",
    "hertz",
    "epoch",
]
MetricGroup = Literal[
    "", "cpu", "throttling", "memory", "memory-detail", "faults", "pressure", "io", "process-io",
    "processes", "open-files", "network", "file-systems",
]  # fmt: skip
"""What switches a metric on (`collector.jobs.metrics`); "": always on, or not a job's metric."""

JOB_LABELS = ("manager", "jobid", "user")


class SampleGroup(NamedTuple):
    """Quantities by device, GPU or provider; a sample has an object for each of them."""

    name: str
    labels: tuple[str, ...]  # labels of the metrics; their values, joined by spaces, are the key
    # Prefix of the quantities' names, omitted within the group; "" if the group has only one.
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """A metric family of the exporter, as its HELP and docs/metrics.md define it.

    A finished job keeps its counters and peaks for a while; gauges of the present end with it.
    """

    name: str
    kind: Kind
    unit: Unit
    help: str
    labels: tuple[str, ...] = JOB_LABELS
    group: MetricGroup = ""
    outlives_job: bool = True


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a job, or one for each of its devices, interfaces, GPUs …

    `read` takes it from a reading of the job; None: it comes from the GPU or the energy collector.
    Per device, `read` returns a mapping, and `read_each` takes the number from its values.
    """

    name: str
    metric: ExportedMetric
    read: Callable[[JobReading], Any] | None = None
    labels: tuple[tuple[str, str], ...] = ()  # distinguish it from the metric's other quantities
    group: SampleGroup | None = None
    read_each: Callable[[Any], float | None] = float

    @property
    def digits(self) -> int:
        """Decimal places in a sample file; more would be noise."""
        return _DIGITS.get(self.metric.unit, 0)

    @property
    def name_in_group(self) -> str:
        """Its name in an object of its group; "" if it is the group's only quantity."""
        if self.group is None or self.group.name == self.name:
            return ""
        return self.name.removeprefix(self.group.prefix)


_DIGITS: dict[Unit, int] = {
    "seconds": 3, "cpus": 3, "ratio": 3, "joules": 1, "grams": 4, "watts": 1, "epoch": 2,
}  # fmt: skip


def job_metric(
    name: str,
    kind: Kind,
    unit: Unit,
    group: MetricGroup,
    help: str,
    outlives_job: bool = True,
    labels: tuple[str, ...] = (),
) -> ExportedMetric:
    """A metric of jobs, `batchjob_job_<name>`; `labels` are those besides the job's own."""
    suffix = "_total" if kind == "counter" else ""
    full = f"batchjob_job_{name}{suffix}"
    return ExportedMetric(full, kind, unit, help, JOB_LABELS + labels, group, outlives_job)


class Statistic(StrEnum):
    TOTAL = "total"  # of a counter: its last value plus the values before each reset
    PEAK = "peak"
    MEAN = "mean"
    COUNT = "count"  # number of samples
    LATEST = "latest"  # epoch seconds of the last sample, if that is recent
    RESET = "reset"  # what a counter that was reset had counted before; otherwise no value


class SeriesKind(StrEnum):
    GAUGE = "gauge"  # the values themselves
    RATE = "rate"  # the increase per second of a job's counter, which started at zero with the job

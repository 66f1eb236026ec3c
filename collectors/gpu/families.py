"""The families of readings and of the map."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from collectors.gpu.devices import Unit, units_of
from collectors.gpu.holders import KINDS, Holding
from collectors.gpu.metrics import (
    DISAGREEMENTS,
    DRIVER_INFO,
    ENERGY,
    ERRORS,
    INFO,
    JOB_INFO,
    JOB_MEMORY,
    JOB_PROCESSES,
    JOB_SHARE,
    JOB_UTILIZATION,
    METRICS,
    PROCESSES,
    QUANTITIES,
    READING_AGE,
)
from collectors.gpu.reading import KnownGpu
from collectors.metric import Labels, Metric, MetricFamily, join, labels


class GpuSample(NamedTuple):
    """A value that may be missing."""

    metric: Metric
    labels: Labels
    value: float | None


def families(
    known: Sequence[KnownGpu],
    now: float,
    holdings: Iterable[Holding],
    conflicts: Mapping[str, int],
    errors: Mapping[tuple[str, str], int],
    drivers: Mapping[str, str],
) -> list[MetricFamily]:
    """All families that have a sample."""
    samples: list[GpuSample] = []
    for each in known:
        samples += _of_gpu(each, now)
    for holding in holdings:
        samples += _of_holding(holding)
    for vendor, version in drivers.items():
        if version:
            samples.append(GpuSample(DRIVER_INFO, labels(vendor=vendor, version=version), 1))
    for (gpu, error), count in sorted(errors.items()):
        samples.append(GpuSample(ERRORS, labels(gpu=gpu, error=error), count))
    for kind in KINDS if known else ():
        samples.append(GpuSample(DISAGREEMENTS, labels(kind=kind), conflicts.get(kind, 0)))
    grouped: dict[Metric, list[tuple[Labels, float]]] = {metric: [] for metric in METRICS}
    for sample in samples:
        if sample.value is not None:
            grouped[sample.metric].append((sample.labels, sample.value))
    return [MetricFamily(metric, found) for metric, found in grouped.items() if found]


def _of_gpu(each: KnownGpu, now: float) -> Iterator[GpuSample]:
    gpu = each.gpu
    reading = each.observed.value if each.observed else None
    for unit in dict.fromkeys((Unit(gpu), *units_of(gpu))):
        yield GpuSample(INFO, _description(unit), 1)
        if reading is None:
            continue
        name = unit_labels(unit)
        values = reading.of(unit)
        for quantity in QUANTITIES:
            yield GpuSample(quantity.metric, join(name, quantity.labels), values.get(quantity))
        processes = reading.processes_on(unit)
        yield GpuSample(PROCESSES, name, None if processes is None else len(processes))
    if each.last_seen is not None:
        age = labels(gpu=str(gpu.index), uuid=gpu.uuid)
        yield GpuSample(READING_AGE, age, max(0.0, now - each.last_seen))
    if reading is not None and reading.energy is not None and ENERGY not in reading.values:
        yield GpuSample(ENERGY.metric, unit_labels(Unit(gpu)), reading.energy.joules)


def _of_holding(holding: Holding) -> Iterator[GpuSample]:
    unit, gpu = holding.unit, holding.unit.gpu
    info = labels(
        gpu=str(gpu.index),
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        minor=_text(gpu.minor),
        gpu_instance=unit.gpu_instance,
        source=holding.source,
        confirmed="true" if holding.confirmed else "false",
    )
    yield GpuSample(JOB_INFO, join(holding.job.labels, info), 1)
    name = join(holding.job.labels, unit_labels(unit))
    yield GpuSample(JOB_SHARE, name, holding.share)
    yield GpuSample(JOB_UTILIZATION, name, holding.utilization)
    yield GpuSample(JOB_MEMORY, name, holding.memory_bytes)
    yield GpuSample(JOB_PROCESSES, name, holding.processes)


def unit_labels(unit: Unit) -> Labels:
    """Index and UUID of the physical GPU; `gpu_instance` is empty for a whole GPU, as in DCGM."""
    gpu = unit.gpu
    return labels(gpu=str(gpu.index), uuid=gpu.uuid, gpu_instance=unit.gpu_instance)


def _description(unit: Unit) -> Labels:
    gpu, instance = unit.gpu, unit.instance
    more = labels(
        pci_bus_id=gpu.pci_bus_id,
        minor=_text(gpu.minor),
        name=gpu.name,
        vendor=gpu.vendor,
        profile=instance.profile if instance else "",
        mig_uuid=instance.uuid if instance else "",
    )
    return join(unit_labels(unit), more)


def _text(number: int | None) -> str:
    return "" if number is None else str(number)

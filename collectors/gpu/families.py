"""The families of the GPU collector, from the readings of GPUs and the map of their holders."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from collectors.gpu import metrics
from collectors.gpu.checkpoint import GpuCounters
from collectors.gpu.devices import Gpu, Unit, units_of
from collectors.gpu.holders import CONFLICT_KINDS, Holding
from collectors.gpu.reading import KnownGpu
from collectors.metric import NO_LABELS, Labels, Metric, MetricFamily, join, labels

GpuSample = tuple[Metric, Labels, float | None]
"""A value that may be missing."""


def families(
    gpus: Sequence[KnownGpu],
    now: float,
    holdings: Iterable[Holding],
    counters: GpuCounters,
    conflicts: Mapping[str, int],
    errors: Mapping[tuple[str, str], int],
    drivers: Mapping[str, str],
) -> list[MetricFamily]:
    samples: list[GpuSample] = []
    for each in gpus:
        samples += _gpu_samples(each, now)
    for holding in holdings:
        samples += _holding_samples(holding)
    samples += _counted_samples(counters, {each.gpu.uuid: each.gpu for each in gpus})
    for vendor, version in drivers.items():
        if version:
            samples.append((metrics.DRIVER_INFO, labels(vendor=vendor, version=version), 1))
    for (gpu, error), count in sorted(errors.items()):
        samples.append((metrics.ERRORS, labels(gpu=gpu, error=error), count))
    for kind in CONFLICT_KINDS if gpus else ():
        samples.append((metrics.DISAGREEMENTS, labels(kind=kind), conflicts.get(kind, 0)))
    grouped: dict[Metric, list[tuple[Labels, float]]] = {metric: [] for metric in metrics.METRICS}
    for metric, sample_labels, value in samples:
        if value is not None:
            grouped[metric].append((sample_labels, value))
    return [MetricFamily(metric, found) for metric, found in grouped.items() if found]


def _gpu_samples(each: KnownGpu, now: float) -> Iterator[GpuSample]:
    gpu = each.gpu
    reading = each.observed.value if each.observed else None
    for unit in dict.fromkeys((Unit(gpu), *units_of(gpu))):
        yield metrics.INFO, _info_labels(unit), 1
        if reading is None:
            continue
        own_labels = unit_labels(unit)
        values = reading.values_of(unit)
        for quantity in metrics.QUANTITIES:
            yield quantity.metric, join(own_labels, quantity.labels), values.get(quantity)
        processes = reading.processes_on(unit)
        yield metrics.PROCESSES, own_labels, None if processes is None else len(processes)
    if each.last_seen is not None:
        age = labels(gpu=str(gpu.index), uuid=gpu.uuid)
        yield metrics.READING_AGE, age, max(0.0, now - each.last_seen)
    if reading is not None and reading.energy is not None and metrics.ENERGY not in reading.values:
        yield metrics.ENERGY.metric, unit_labels(Unit(gpu)), reading.energy.joules


def _holding_samples(holding: Holding) -> Iterator[GpuSample]:
    unit, gpu = holding.unit, holding.unit.gpu
    info = labels(
        gpu=str(gpu.index),
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        minor=_format_optional(gpu.minor),
        gpu_instance=unit.gpu_instance,
        source=holding.source,
        confirmed="true" if holding.confirmed else "false",
    )
    yield metrics.JOB_INFO, join(holding.job.labels, info), 1
    own_labels = join(holding.job.labels, unit_labels(unit))
    yield metrics.JOB_SHARE, own_labels, holding.share
    yield metrics.JOB_UTILIZATION, own_labels, holding.utilization
    yield metrics.JOB_MEMORY, own_labels, holding.memory_bytes
    yield metrics.JOB_PROCESSES, own_labels, holding.processes


def _counted_samples(counters: GpuCounters, gpus: Mapping[str, Gpu]) -> Iterator[GpuSample]:
    """Those of a GPU that is not known (again) are left out, since its number is not known."""
    rows = [
        *((metrics.COUNTED, NO_LABELS, unit, sums) for unit, sums in counters.boards.items()),
        *(
            (metrics.JOB_COUNTED, job.labels, (uuid, instance), sums)
            for (job, uuid, instance), sums in counters.jobs.items()
        ),
    ]
    for counted, owner, (uuid, instance), sums in rows:
        if uuid in gpus:
            unit = labels(gpu=str(gpus[uuid].index), uuid=uuid, gpu_instance=instance)
            for name, (metric, more) in counted.items():
                yield metric, join(owner, unit, more), sums.get(name)
    for job, time in counters.free.items():
        yield metrics.JOB_FREE_BUSY_SECONDS, job.labels, time.busy_seconds
        yield metrics.JOB_FREE_OBSERVED_SECONDS, job.labels, time.observed_seconds


def unit_labels(unit: Unit) -> Labels:
    """Index and UUID of the physical GPU; `gpu_instance` is empty for a whole GPU, as in DCGM."""
    gpu = unit.gpu
    return labels(gpu=str(gpu.index), uuid=gpu.uuid, gpu_instance=unit.gpu_instance)


def _info_labels(unit: Unit) -> Labels:
    gpu, instance = unit.gpu, unit.instance
    more = labels(
        pci_bus_id=gpu.pci_bus_id,
        minor=_format_optional(gpu.minor),
        name=gpu.name,
        vendor=gpu.vendor,
        profile=instance.profile if instance else "",
        mig_uuid=instance.uuid if instance else "",
    )
    return join(unit_labels(unit), more)


def _format_optional(number: int | None) -> str:
    return "" if number is None else str(number)

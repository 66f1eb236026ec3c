"""Samples of jobs from the collectors, by the same tables of quantities as the metrics."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from batchjob.quantities import gpu
from batchjob.quantities.energy import EMISSIONS_GRAMS, ENERGY_JOULES
from batchjob.quantities.job import JOB_QUANTITIES
from batchjob.quantities.reading import JobReading
from batchjob.quantities.sample import JobSamples, SampledJob, SampleKey, Values
from collectors.collector import Collector
from collectors.energy.collector import EnergyCollector
from collectors.energy.ledger import EnergyAccounts
from collectors.gpu import metrics as gpu_metrics
from collectors.gpu.collector import GpuCollector
from collectors.gpu.holders import Holding
from collectors.gpu.metrics import GpuMetric
from collectors.jobs.collector import JobsCollector
from collectors.jobs.view import JobName


def samples_reader(collectors: Iterable[Collector]) -> Callable[[], list[JobSamples]] | None:
    """The function that takes samples of all jobs; None without a jobs collector."""
    sources: dict[str, Any] = {}
    for each in collectors:
        if isinstance(each, JobsCollector):
            sources["readings"] = each.readings
        elif isinstance(each, GpuCollector):
            sources["holdings"] = each.holdings
            sources["gpu_counters"] = partial(_gpu_counters, each)
        elif isinstance(each, EnergyCollector):
            sources["accounts"] = each.accounts
    return partial(take_samples, **sources) if "readings" in sources else None


def take_samples(
    readings: Callable[[], list[tuple[JobName, JobReading]]],
    holdings: Callable[[], list[tuple[Holding, Mapping[GpuMetric, float]]]] = list,
    gpu_counters: Callable[[], Iterable[tuple[JobName, SampleKey, float]]] = tuple,
    accounts: Callable[[], EnergyAccounts] = EnergyAccounts,
) -> list[JobSamples]:
    other_values: dict[SampledJob, Values] = defaultdict(dict)
    for job, joules, grams in accounts().jobs:
        own_values = other_values[SampledJob(*job[:3])]
        for (component, kind), value in joules.items():
            own_values[SampleKey(ENERGY_JOULES.name, (component, kind))] = value
        for provider, value in grams.items():
            own_values[SampleKey(EMISSIONS_GRAMS.name, (provider,))] = value
    for holding, gpu_values in holdings():
        own_values = other_values[SampledJob(*holding.job[:3])]
        own_values.update(_gpu_values(holding, gpu_values))
        if holding.confirmed:
            key = SampleKey(gpu.JOB_GPU_NAMES.name, (holding.unit.gpu.name,))
            own_values[key] = own_values.get(key, 0.0) + 1
    for job, key, value in gpu_counters():
        other_values[SampledJob(*job[:3])][key] = value
    samples = []
    for job, reading in readings():
        sampled = SampledJob(*job[:3])
        values = dict(_job_values(reading)) | other_values.get(sampled, {})
        samples.append(JobSamples(sampled, values, reading.ended_at is not None))
    return samples


def _gpu_counters(collector: GpuCollector) -> Iterator[tuple[JobName, SampleKey, float]]:
    counters = collector.counters
    numbers = {each.uuid: str(each.index) for each in collector.table.gpus}
    for (job, uuid, instance), sums in counters.jobs.items():
        for quantity in gpu.JOB_GPU_COUNTED if uuid in numbers else ():
            value = sums.get(quantity.name.removeprefix("gpu_"))
            if value is not None:
                yield job, SampleKey(quantity.name, (numbers[uuid], uuid, instance)), value
    for job, free in counters.free.items():
        yield job, SampleKey(gpu.JOB_FREE_GPU_BUSY_SECONDS.name), free.busy_seconds
        yield job, SampleKey(gpu.JOB_FREE_GPU_OBSERVED_SECONDS.name), free.observed_seconds


def _gpu_values(holding: Holding, readings: Mapping[GpuMetric, float]) -> Values:
    unit = holding.unit
    labels = (str(unit.gpu.index), unit.gpu.uuid, unit.gpu_instance)
    values = {
        gpu.JOB_GPU_UTILIZATION: holding.utilization,
        gpu.JOB_GPU_MEMORY: holding.memory_bytes,
        gpu.JOB_GPU_PROCESSES: holding.processes,
        gpu.JOB_GPU_SHARE: holding.share,
    }
    # Otherwise a job could see the metrics of another job's GPU by naming it in its environment.
    if holding.confirmed:
        values |= {quantity: readings.get(metric) for quantity, metric in _BOARD_METRICS.items()}
    return {
        SampleKey(quantity.name, labels): value
        for quantity, value in values.items()
        if value is not None
    }


_BOARD_METRICS = {
    gpu.JOB_GPU_POWER: gpu_metrics.POWER,
    gpu.JOB_GPU_POWER_LIMIT: gpu_metrics.POWER_LIMIT,
    gpu.JOB_GPU_MEMORY_TOTAL: gpu_metrics.MEMORY_TOTAL,
    gpu.JOB_GPU_TEMPERATURE: gpu_metrics.TEMPERATURE,
    gpu.JOB_GPU_SM_CLOCK: gpu_metrics.CLOCK["sm"],
    gpu.JOB_GPU_MEMORY_CLOCK: gpu_metrics.CLOCK["memory"],
    gpu.JOB_GPU_ECC_CORRECTED: gpu_metrics.ECC["corrected"],
    gpu.JOB_GPU_ECC_UNCORRECTED: gpu_metrics.ECC["uncorrected"],
}


def _job_values(reading: JobReading) -> Iterator[tuple[SampleKey, float]]:
    has_ended = reading.ended_at is not None
    for quantity in JOB_QUANTITIES:
        if quantity.read is None or (has_ended and not quantity.metric.outlives_job):
            continue
        value = quantity.read(reading)
        if quantity.group is not None:
            for label, each in (value or {}).items():
                number = quantity.read_each(each)
                if number is not None:
                    yield SampleKey(quantity.name, (label,)), number
        elif value is not None:
            yield SampleKey(quantity.name), value

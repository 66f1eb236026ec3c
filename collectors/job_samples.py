"""Readings of jobs as samples, by the tables from which the exporter makes its metrics."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from batchjob.quantities import gpu
from batchjob.quantities.energy import EMISSIONS_GRAMS, ENERGY_JOULES
from batchjob.quantities.job import (
    JOB_QUANTITIES,
)
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


class SampleSources(NamedTuple):
    """The collectors that are read, in one pass for all jobs."""

    readings: Callable[[], list[tuple[JobName, JobReading]]]
    held: Callable[[], list[tuple[Holding, Mapping[GpuMetric, float]]]] = list
    accounts: Callable[[], EnergyAccounts] = EnergyAccounts


def sources_of(collectors: Iterable[Collector]) -> SampleSources | None:
    """The exporter's own collectors; None if it does not read jobs."""
    found = SampleSources(list)
    jobs = False
    for each in collectors:
        if isinstance(each, JobsCollector):
            found, jobs = found._replace(readings=each.readings), True
        elif isinstance(each, GpuCollector):
            found = found._replace(held=each.held)
        elif isinstance(each, EnergyCollector):
            found = found._replace(accounts=each.accounts)
    return found if jobs else None


def take(sources: SampleSources) -> list[JobSamples]:
    """A sample of every job, read now."""
    more: dict[SampledJob, Values] = defaultdict(dict)
    for job, joules, grams in sources.accounts().jobs:
        numbers = more[_job(job)]
        for (component, kind), value in joules.items():
            numbers[SampleKey(ENERGY_JOULES.name, (component, kind))] = value
        for provider, value in grams.items():
            numbers[SampleKey(EMISSIONS_GRAMS.name, (provider,))] = value
    for holding, told in sources.held():
        more[_job(holding.job)].update(_gpu(holding, told))
    taken = []
    for job, reading in sources.readings():
        sampled = _job(job)
        values = dict(_numbers(reading)) | more.get(sampled, {})
        taken.append(JobSamples(sampled, values, reading.ended_at is not None))
    return taken


def _job(name: JobName) -> SampledJob:
    return SampledJob(name.manager, name.jobid, name.user)


def _gpu(holding: Holding, told: Mapping[GpuMetric, float]) -> Values:
    unit = holding.unit
    of = (str(unit.gpu.index), unit.gpu.uuid, unit.gpu_instance)
    numbers = {
        gpu.JOB_GPU_UTILIZATION: holding.utilization,
        gpu.JOB_GPU_MEMORY: holding.memory_bytes,
        gpu.JOB_GPU_PROCESSES: holding.processes,
        gpu.JOB_GPU_SHARE: holding.share,
    }
    # Otherwise a job could see the metrics of another job's GPU by naming it in its environment.
    if holding.confirmed:
        numbers |= {quantity: told.get(metric) for quantity, metric in _OF_BOARD.items()}
    return {
        SampleKey(quantity.name, of): value
        for quantity, value in numbers.items()
        if value is not None
    }


_OF_BOARD = {
    gpu.JOB_GPU_POWER: gpu_metrics.POWER,
    gpu.JOB_GPU_MEMORY_TOTAL: gpu_metrics.MEMORY_TOTAL,
    gpu.JOB_GPU_TEMPERATURE: gpu_metrics.TEMPERATURE,
    gpu.JOB_GPU_SM_CLOCK: gpu_metrics.CLOCK["sm"],
    gpu.JOB_GPU_MEMORY_CLOCK: gpu_metrics.CLOCK["memory"],
    gpu.JOB_GPU_ECC_CORRECTED: gpu_metrics.ECC["corrected"],
    gpu.JOB_GPU_ECC_UNCORRECTED: gpu_metrics.ECC["uncorrected"],
}


def _numbers(reading: JobReading) -> Iterator[tuple[SampleKey, float]]:
    ended = reading.ended_at is not None
    for quantity in JOB_QUANTITIES:
        if quantity.read is None or (ended and not quantity.metric.outlives_job):
            continue
        value = quantity.read(reading)
        if quantity.group is not None:
            for of, each in (value or {}).items():
                yield SampleKey(quantity.name, (of,)), quantity.of_each(each)
        elif value is not None:
            yield SampleKey(quantity.name), value

"""Readings of jobs as samples: the exporter's own table of metrics says which number is which."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs import record
from batchjob.quantities import gpu
from batchjob.quantities.energy import EMISSIONS_GRAMS, ENERGY_JOULES
from batchjob.quantities.job import (
    CPU_SYSTEM,
    CPU_USER,
    JOB_QUANTITIES,
    MEMORY_PEAK,
    PROCESS_IO_READ_BYTES,
    PROCESS_IO_WRITTEN_BYTES,
)
from batchjob.quantities.reading import JobReading
from batchjob.quantities.sample import SampleKey
from collectors.collector import Collector
from collectors.energy.collector import EnergyCollector
from collectors.energy.ledger import EnergyAccounts
from collectors.gpu import metrics as gpu_metrics
from collectors.gpu.collector import GpuCollector
from collectors.gpu.holders import Holding
from collectors.gpu.metrics import GpuMetric
from collectors.jobs.collector import JobsCollector
from collectors.jobs.view import JobName

Values = dict[SampleKey, float]
Key = tuple[str, str, str]  # manager, job id, user


class JobSamples(NamedTuple):
    """A job's numbers at one moment."""

    job: JobName
    values: Values
    ended: bool


class SampleSources(NamedTuple):
    """Who is asked, in one pass for all jobs."""

    readings: Callable[[], list[tuple[JobName, JobReading]]]
    held: Callable[[], list[tuple[Holding, Mapping[GpuMetric, float]]]] = list
    accounts: Callable[[], EnergyAccounts] = EnergyAccounts


def sources_of(collectors: Iterable[Collector]) -> SampleSources | None:
    """The exporter's own collectors; None where it reads no jobs."""
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
    """Every job's numbers of now."""
    more: dict[Key, Values] = defaultdict(dict)
    for job, joules, grams in sources.accounts().jobs:
        numbers = more[key_of(job)]
        for (component, kind), value in joules.items():
            numbers[SampleKey(ENERGY_JOULES.name, (component, kind))] = value
        for provider, value in grams.items():
            numbers[SampleKey(EMISSIONS_GRAMS.name, (provider,))] = value
    for holding, told in sources.held():
        more[key_of(holding.job)].update(_gpu(holding, told))
    taken = []
    for job, reading in sources.readings():
        values = dict(_numbers(reading)) | more.get(key_of(job), {})
        taken.append(JobSamples(job, values, reading.ended_at is not None))
    return taken


def with_totals(taken: JobSamples, runs: Path) -> JobSamples:
    """An ended run of this machine with the totals of its record, where those are larger.

    Its supervisor has read them after the last process had ended, and summed up the processes one
    by one; our last look may be from seconds before.
    """
    job = taken.job
    if job.manager != "local" or not taken.ended:
        return taken
    try:
        run = record.decoded(record.read(runs / f"{job.jobid}.json"))
    except (OSError, record.RunFileError):
        return taken
    if run.state.live or run.user != job.user:
        return taken
    totals = {
        CPU_USER: run.user_cpu_seconds,
        CPU_SYSTEM: run.system_cpu_seconds,
        MEMORY_PEAK: run.peak_memory_bytes,
        PROCESS_IO_READ_BYTES: run.read_bytes,
        PROCESS_IO_WRITTEN_BYTES: run.written_bytes,
    }
    known = {
        SampleKey(quantity.name): float(value)
        for quantity, value in totals.items()
        if value is not None
    }
    larger = {name: max(value, taken.values.get(name, value)) for name, value in known.items()}
    return taken._replace(values={**taken.values, **larger})


def key_of(job: JobName) -> Key:
    """What tells jobs apart."""
    return (job.manager, job.jobid, job.user)


def _gpu(holding: Holding, told: Mapping[GpuMetric, float]) -> Values:
    unit = holding.unit
    of = (str(unit.gpu.index), unit.gpu.uuid, unit.gpu_instance)
    numbers = {
        gpu.JOB_GPU_UTILIZATION: holding.utilization,
        gpu.JOB_GPU_MEMORY: holding.memory_bytes,
        gpu.JOB_GPU_PROCESSES: holding.processes,
        gpu.JOB_GPU_SHARE: holding.share,
        **{quantity: told.get(metric) for quantity, metric in _OF_BOARD.items()},
    }
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

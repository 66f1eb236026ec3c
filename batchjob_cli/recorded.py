"""Readings of jobs as samples: the exporter's own table of metrics says which number is which."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.local_runs import record
from batchjob.quantities.sample import QUANTITIES, SampleKey
from collectors.collector import Collector
from collectors.energy.collector import EnergyCollector
from collectors.energy.ledger import EnergyAccounts
from collectors.gpu import metrics as gpu_metrics
from collectors.gpu.collector import GpuCollector
from collectors.gpu.holders import Holding
from collectors.gpu.metrics import GpuMetric
from collectors.jobs.collector import JobsCollector
from collectors.jobs.metrics import JOB_METRICS, InfoRow, MetricValues
from collectors.jobs.reading import FLAT_FIELDS, JobReading
from collectors.jobs.view import JobName
from collectors.metric import NO_LABELS, labels

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
            numbers[SampleKey("energy_joules", (component, kind))] = value
        for provider, value in grams.items():
            numbers[SampleKey("emissions_grams", (provider,))] = value
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
    totals = {SampleKey(name): getattr(run, field) for name, field in _TOTALS.items()}
    known = {name: float(value) for name, value in totals.items() if value is not None}
    larger = {name: max(value, taken.values.get(name, value)) for name, value in known.items()}
    return taken._replace(values={**taken.values, **larger})


_TOTALS = {
    "cpu_user_seconds": "user_cpu_seconds",
    "cpu_system_seconds": "system_cpu_seconds",
    "memory_peak_bytes": "peak_memory_bytes",
    "process_io_read_bytes": "read_bytes",
    "process_io_written_bytes": "written_bytes",
}


def key_of(job: JobName) -> Key:
    """What tells jobs apart."""
    return (job.manager, job.jobid, job.user)


def _gpu(holding: Holding, told: Mapping[GpuMetric, float]) -> Values:
    unit = holding.unit
    of = (str(unit.gpu.index), unit.gpu.uuid, unit.gpu_instance)
    numbers = {
        "gpu_utilization_ratio": holding.utilization,
        "gpu_memory_bytes": holding.memory_bytes,
        "gpu_processes": holding.processes,
        "gpu_share_ratio": holding.share,
        **{name: told.get(metric) for name, metric in _OF_BOARD.items()},
    }
    return {SampleKey(name, of): value for name, value in numbers.items() if value is not None}


_OF_BOARD = {
    "gpu_power_watts": gpu_metrics.POWER,
    "gpu_memory_total_bytes": gpu_metrics.MEMORY_TOTAL,
    "gpu_temperature_celsius": gpu_metrics.TEMPERATURE,
    "gpu_sm_clock_hertz": gpu_metrics.CLOCK["sm"],
    "gpu_memory_clock_hertz": gpu_metrics.CLOCK["memory"],
    "gpu_ecc_corrected_errors": gpu_metrics.ECC["corrected"],
    "gpu_ecc_uncorrected_errors": gpu_metrics.ECC["uncorrected"],
}


def _quantity(metric: str, text: str) -> str:
    """The quantity that is a metric with a row's labels."""
    found = [
        each.name
        for each in QUANTITIES
        if each.metric == metric and labels(**dict(each.labels)) == text
    ]
    (name,) = found
    return name


class _Single(NamedTuple):
    place: int  # in a flat reading
    lasting: bool
    name: SampleKey


class _Several(NamedTuple):
    place: int
    lasting: bool
    quantity: str
    of_each: Callable[[Any], float]


_TABLE: tuple[_Single | _Several, ...] = tuple(
    _Several(
        FLAT_FIELDS.index(row.field),
        entry.lasting,
        _quantity(entry.metric.name, NO_LABELS),
        row.of_each,
    )
    if isinstance(row, MetricValues)
    else _Single(
        FLAT_FIELDS.index(row.field),
        entry.lasting,
        SampleKey(_quantity(entry.metric.name, row.labels)),
    )
    for entry in JOB_METRICS
    for row in entry.rows
    if not isinstance(row, InfoRow)
)


def _numbers(reading: JobReading) -> Iterator[tuple[SampleKey, float]]:
    flat, ended = reading.flat(), reading.ended_at is not None
    for row in _TABLE:
        if ended and not row.lasting:
            continue
        value = flat[row.place]
        if isinstance(row, _Single):
            if value is not None:
                yield row.name, value
        else:
            for of, each in (value or {}).items():
                yield SampleKey(row.quantity, (of,)), row.of_each(each)

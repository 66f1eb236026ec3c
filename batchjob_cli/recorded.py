"""Readings of jobs as samples: the exporter's own table of metrics says which number is which."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from batchjob_stats_db.samples.sample import QUANTITIES, Name
from collectors.collector import Collector
from collectors.energy.collector import Energy
from collectors.energy.ledger import Accounts
from collectors.gpu.collector import GpuCollector
from collectors.gpu.holders import Holding
from collectors.jobs.collector import JobsCollector
from collectors.jobs.metrics import JOB_METRICS, InfoRow, Rows
from collectors.jobs.reading import FLAT_FIELDS, JobReading
from collectors.jobs.view import JobName
from collectors.metric import NO_LABELS, labels

Values = dict[Name, float]
Key = tuple[str, str, str]  # manager, job id, user


class Taken(NamedTuple):
    """A job's numbers at one moment."""

    job: JobName
    values: Values
    ended: bool


class Sources(NamedTuple):
    """Who is asked, in one pass for all jobs."""

    readings: Callable[[], list[tuple[JobName, JobReading]]]
    held: Callable[[], list[tuple[Holding, float | None]]] = list
    accounts: Callable[[], Accounts] = Accounts


def sources_of(collectors: Iterable[Collector]) -> Sources | None:
    """The exporter's own collectors; None where it reads no jobs."""
    found = Sources(list)
    jobs = False
    for each in collectors:
        if isinstance(each, JobsCollector):
            found, jobs = found._replace(readings=each.readings), True
        elif isinstance(each, GpuCollector):
            found = found._replace(held=each.held)
        elif isinstance(each, Energy):
            found = found._replace(accounts=each.accounts)
    return found if jobs else None


def take(sources: Sources) -> list[Taken]:
    """Every job's numbers of now."""
    more: dict[Key, Values] = defaultdict(dict)
    for job, joules, grams in sources.accounts().jobs:
        numbers = more[key_of(job)]
        for (component, kind), value in joules.items():
            numbers[Name("energy_joules", (component, kind))] = value
        for provider, value in grams.items():
            numbers[Name("emissions_grams", (provider,))] = value
    for holding, watts in sources.held():
        more[key_of(holding.job)].update(_gpu(holding, watts))
    taken = []
    for job, reading in sources.readings():
        values = dict(_numbers(reading)) | more.get(key_of(job), {})
        taken.append(Taken(job, values, reading.ended_at is not None))
    return taken


def key_of(job: JobName) -> Key:
    """What tells jobs apart."""
    return (job.manager, job.jobid, job.user)


def _gpu(holding: Holding, watts: float | None) -> Values:
    unit = holding.unit
    of = (str(unit.gpu.index), unit.gpu.uuid, unit.gpu_instance)
    numbers = {
        "gpu_utilization": holding.utilization,
        "gpu_memory": holding.memory_bytes,
        "gpu_processes": holding.processes,
        "gpu_share": holding.share,
        "gpu_power_watts": watts,
    }
    return {Name(name, of): value for name, value in numbers.items() if value is not None}


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
    name: Name


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
    if isinstance(row, Rows)
    else _Single(
        FLAT_FIELDS.index(row.field),
        entry.lasting,
        Name(_quantity(entry.metric.name, row.labels)),
    )
    for entry in JOB_METRICS
    for row in entry.rows
    if not isinstance(row, InfoRow)
)


def _numbers(reading: JobReading) -> Iterator[tuple[Name, float]]:
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
                yield Name(row.quantity, (of,)), row.of_each(each)

"""The map between jobs and GPUs, many to many.

A job holds what its most trustworthy source says it was given; a job without any source holds what
its processes use, unless another job was given that. A GPU that is held and idle stays in the map.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from batchjob.schedulers import registry
from collectors.gpu.allocation import Allocation, AllocationContext, allocations
from collectors.gpu.devices import Unit
from collectors.gpu.metrics import UTILIZATION
from collectors.gpu.reading import GpuProcess, GpuReading
from collectors.jobs.view import JobHolder, JobName

PROCESSES = "process"


class Holding(NamedTuple):
    """A job and a GPU or MIG instance that it holds or uses. `None`: not known."""

    job: JobName
    unit: Unit
    source: str
    share: float | None  # among the holders; None: it uses a GPU allocated to others
    processes: int | None = None
    memory_bytes: float | None = None
    utilization: float | None = None
    confirmed: bool = False  # confirmed by a source that the job's user cannot write


class AllocationConflict(NamedTuple):
    """A contradiction between sources."""

    kind: str  # one of KINDS
    job: JobName
    what: str  # the GPU or its name


KINDS = ("unknown_gpu", "sources", "process", "overlap", "unconfirmed")


class Map(NamedTuple):
    """Who holds what at one moment."""

    holdings: tuple[Holding, ...] = ()
    conflicts: frozenset[AllocationConflict] = frozenset()


class _Job(NamedTuple):
    holder: JobHolder
    given: Allocation | None
    used: Mapping[Unit, tuple[GpuProcess, ...]]


def make_map(
    holders: Sequence[JobHolder],
    seen: AllocationContext,
    readings: Mapping[str, GpuReading],
    shards_per_gpu: int = 0,
    before: Map | None = None,
) -> Map:
    """The current map; `readings` by GPU UUID, only of GPUs that answer.

    `shards_per_gpu` is the number of shards of a GPU under Slurm (gres.conf); 0: not known, in
    which case the jobs that hold shards of a GPU share all of it. `before` is the last map: a job
    whose process was once seen on a GPU that its environment names stays confirmed while idle.
    """
    conflicts: set[AllocationConflict] = set()
    jobs = []
    for holder in holders:
        given = _choose(holder, allocations(holder, seen), conflicts)
        jobs.append(_Job(holder, given, _used(holder, seen, readings)))
    last = before.holdings if before else ()
    confirmed = {(each.job, each.unit) for each in last if each.confirmed}
    units: dict[Unit, list[_Job]] = {}
    for job in jobs:
        for unit in set(job.used) | (set(job.given.units) if job.given else set()):
            units.setdefault(unit, []).append(job)
    holdings = [
        holding
        for unit, on_it in units.items()
        for holding in _holdings(unit, on_it, confirmed, readings, shards_per_gpu, conflicts)
    ]
    holdings.sort(key=lambda each: (each.job, each.unit.gpu.index, each.unit.gpu_instance))
    return Map(tuple(holdings), frozenset(conflicts))


def _choose(
    holder: JobHolder, said: list[Allocation], conflicts: set[AllocationConflict]
) -> Allocation | None:
    for each in said:
        for word in each.unknown:
            conflicts.add(AllocationConflict("unknown_gpu", holder.name, word))
    told = [each for each in said if each.units]
    if not told:
        return None
    best = told[0]
    for other in told[1:]:
        # A step may name a subset of the job's GPUs; it is a contradiction only if neither set
        # contains the other.
        if not (other.units <= best.units or best.units <= other.units):
            conflicts.add(AllocationConflict("sources", holder.name, other.source))
    return best


def _used(
    holder: JobHolder, seen: AllocationContext, readings: Mapping[str, GpuReading]
) -> dict[Unit, tuple[GpuProcess, ...]]:
    pids = frozenset(holder.pids)
    used = {}
    for unit in seen.table.units:
        reading = readings.get(unit.gpu.uuid)
        processes = reading.processes_on(unit) if reading else None
        ours = tuple(each for each in processes or () if each.pid in pids)
        if ours:
            used[unit] = ours
    return used


def _holdings(
    unit: Unit,
    jobs: list[_Job],
    confirmed: set[tuple[JobName, Unit]],
    readings: Mapping[str, GpuReading],
    shards_per_gpu: int,
    conflicts: set[AllocationConflict],
) -> Iterable[Holding]:
    given = [job for job in jobs if job.given and unit in job.given.units]
    told = [job for job in given if job.given and job.given.trusted]
    sure = [
        job
        for job in jobs
        if job in told or unit in job.used or (job.holder.name, unit) in confirmed
    ]
    # If the unit is allocated to nobody, its holders are the jobs that use it and whose GPUs no
    # source states.
    holding = _believed(given, told, sure) or [job for job in jobs if job.given is None]
    shares = _shares(holding, shards_per_gpu)
    wholes = [job for job in given if not _is_part(job)]
    name = f"{unit.gpu.uuid}/{unit.gpu_instance}"
    for job in wholes if len(wholes) > 1 else ():
        conflicts.add(AllocationConflict("overlap", job.holder.name, name))
    reading = readings.get(unit.gpu.uuid)
    for job in given:
        if job not in holding:
            conflicts.add(AllocationConflict("unconfirmed", job.holder.name, name))
    for job in jobs:
        if job.given and job not in given:
            conflicts.add(AllocationConflict("process", job.holder.name, name))
        yield Holding(
            job.holder.name,
            unit,
            job.given.source if job.given and job in given else PROCESSES,
            shares.get(job.holder.name),
            *_use(unit, job, len(jobs) == 1, reading),
            confirmed=job in sure,
        )


def _believed(given: list[_Job], told: list[_Job], sure: list[_Job]) -> list[_Job]:
    """The holders of a unit among those that claim it.

    A claim by a job's environment is believed unless it contradicts something that users cannot
    write: root or the kernel gave the unit to other jobs, or other jobs that claim all of it work
    on it.
    """
    if told:
        return told
    if any(job in sure and not _is_part(job) for job in given):
        return [job for job in given if job in sure]
    return given


def _use(
    unit: Unit, job: _Job, alone: bool, reading: GpuReading | None
) -> tuple[int | None, float | None, float | None]:
    """Processes, memory and utilisation of a job on a unit."""
    if reading is None:
        return None, None, None
    whole = reading.of(unit).get(UTILIZATION)
    processes = reading.processes_on(unit)
    if processes is None:
        return None, None, whole if alone else None
    ours = job.used.get(unit, ())
    if alone and (ours or not processes):
        utilization = whole
    else:
        utilization = _sum(each.utilization for each in ours)
    return (
        len(ours),
        _sum(each.memory_bytes for each in ours),
        None if utilization is None else min(1.0, utilization),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum, or None if a part of it is missing."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _shares(jobs: list[_Job], shards_per_gpu: int) -> dict[JobName, float]:
    """The share of each holder of a unit; at most 1 in total.

    Shards are related to those of the GPU if their number is known. A percentage of MPS threads
    only weighs holders against each other: anyone can set it.
    """
    shards = {job.holder.name: _shards(job) for job in jobs}
    capacity: float = shards_per_gpu or sum(shards.values())
    weights: dict[JobName, float] = {}
    for job in jobs:
        name = job.holder.name
        if shards[name]:
            weights[name] = shards[name] / capacity
        else:
            weights[name] = (_mps_percentage(job) or 100.0) / 100 if len(jobs) > 1 else 1.0
    total = sum(weights.values())
    counted = bool(shards_per_gpu) and all(shards.values())
    if total > 1 or not counted:
        weights = {name: weight / total for name, weight in weights.items()}
    return weights


def _is_part(job: _Job) -> bool:
    return bool(_shards(job) or _mps_percentage(job))


def _shards(job: _Job) -> float:
    """Shards per GPU of the job; 0: it holds no shards."""
    variable = registry.node_side(job.holder.name.manager).gpu_shards
    if not variable:
        return 0.0
    gpus = len({unit.gpu.uuid for unit in job.given.units}) if job.given else 1
    numbers = [_number(environ.get(variable)) for environ in job.holder.environs]
    return max(numbers, default=0.0) / max(1, gpus)


def _mps_percentage(job: _Job) -> float:
    """CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, over 0 to 100; 0: not set."""
    name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    numbers = [_number(environ.get(name)) for environ in job.holder.environs]
    return min(100.0, max(numbers, default=0.0))


def _number(text: str | None) -> float:
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if 0 < number < float("inf") else 0.0

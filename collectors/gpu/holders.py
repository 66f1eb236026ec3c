"""The map between jobs and GPUs, many to many.

A job holds the GPUs of its most trustworthy allocation source. A job without any source holds the
GPUs that its processes use, unless another job verifiably holds them. Idle GPUs stay in the map.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from batchjob.schedulers import registry
from collectors.gpu.allocation import Allocation, AllocationContext, allocations
from collectors.gpu.devices import Unit
from collectors.gpu.metrics import UTILIZATION
from collectors.gpu.reading import GpuProcess, GpuReading
from collectors.jobs.view import JobHolder, JobName

PROCESS_SOURCE = "process"


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


AllocationConflict = tuple[str, JobName, str]
"""A contradiction between sources: one of CONFLICT_KINDS, the job, and the GPU or its name."""
CONFLICT_KINDS = ("unknown_gpu", "sources", "process", "overlap", "unconfirmed")


class GpuMap(NamedTuple):
    """The holders of all GPUs at one moment."""

    holdings: tuple[Holding, ...] = ()
    conflicts: frozenset[AllocationConflict] = frozenset()
    # By GPU UUID and pid, of the processes that the drivers list.
    job_of_process: Mapping[tuple[str, int], JobName] = MappingProxyType({})


class _GpuClaims(NamedTuple):
    holder: JobHolder
    allocation: Allocation | None
    used_units: Mapping[Unit, tuple[GpuProcess, ...]]


def build_map(
    holders: Sequence[JobHolder],
    context: AllocationContext,
    readings: Mapping[str, GpuReading],
    previous: GpuMap | None = None,
) -> GpuMap:
    """The current map; `readings` by GPU UUID, only of GPUs that answer.

    Jobs that hold shards of a GPU share all of it. `previous` is the last map: a job
    whose process was once seen on a GPU that its environment names stays confirmed while idle, and
    a pid remains the job's while the driver lists it: a process that has ended is listed as long as
    a child that it has forked keeps its memory.
    """
    job_of_process = _find_jobs_of_processes(
        holders, readings, previous or GpuMap(), context.cgroupfs
    )
    used = _find_used_units(job_of_process, context, readings)
    conflicts: set[AllocationConflict] = set()
    jobs = []
    for holder in holders:
        allocation = _choose_allocation(holder, allocations(holder, context), conflicts)
        jobs.append(_GpuClaims(holder, allocation, used.get(holder.name, {})))
    last_holdings = previous.holdings if previous else ()
    confirmed = {(each.job, each.unit) for each in last_holdings if each.confirmed}
    units: dict[Unit, list[_GpuClaims]] = {}
    for job in jobs:
        for unit in set(job.used_units) | (set(job.allocation.units) if job.allocation else set()):
            units.setdefault(unit, []).append(job)
    holdings = [
        holding
        for unit, claimants in units.items()
        for holding in _holdings_of_unit(unit, claimants, confirmed, readings, conflicts)
    ]
    holdings.sort(key=lambda each: (each.job, each.unit.gpu.index, each.unit.gpu_instance))
    return GpuMap(tuple(holdings), frozenset(conflicts), job_of_process)


def _choose_allocation(
    holder: JobHolder, statements: list[Allocation], conflicts: set[AllocationConflict]
) -> Allocation | None:
    for each in statements:
        for word in each.unknown:
            conflicts.add(("unknown_gpu", holder.name, word))
    resolved = [each for each in statements if each.units]
    if not resolved:
        return None
    best = resolved[0]
    for other in resolved[1:]:
        # A step may name a subset of the job's GPUs; it is a contradiction only if neither set
        # contains the other.
        if not (other.units <= best.units or best.units <= other.units):
            conflicts.add(("sources", holder.name, other.source))
    return best


def _find_jobs_of_processes(
    holders: Sequence[JobHolder],
    readings: Mapping[str, GpuReading],
    previous: GpuMap,
    cgroupfs: str,
) -> dict[tuple[str, int], JobName]:
    """The job of each listed process: of a new one by its cgroup, before its job is scanned."""
    living = {pid: holder.name for holder in holders for pid in holder.pids}
    directories = {path: each.name for each in holders for path in each.directories}
    found = {}
    for uuid, reading in readings.items():
        for process in reading.processes or ():
            key = uuid, process.pid
            job = (
                living.get(process.pid)
                or _job_of_cgroups(process.cgroups, directories, cgroupfs)
                or previous.job_of_process.get(key)
            )
            if job is not None:
                found[key] = job
    return found


def _job_of_cgroups(text: str, directories: Mapping[str, JobName], cgroupfs: str) -> JobName | None:
    """The job whose directory contains the cgroups of a process, from its /proc/<pid>/cgroup.

    A line is `hierarchy:controllers:path`, cgroups(7); version 1 has a tree for each hierarchy.
    """
    for line in text.splitlines():
        path = line.partition(":")[2].partition(":")[2]
        while len(path) > 1:
            for directory, job in directories.items():
                root = directory.removesuffix(path)
                if cgroupfs in (root, os.path.dirname(root)) and root != directory:
                    return job
            path = os.path.dirname(path)
    return None


def _find_used_units(
    job_of_process: Mapping[tuple[str, int], JobName],
    context: AllocationContext,
    readings: Mapping[str, GpuReading],
) -> dict[JobName, dict[Unit, tuple[GpuProcess, ...]]]:
    used: dict[JobName, dict[Unit, tuple[GpuProcess, ...]]] = {}
    for unit in context.table.units:
        reading = readings.get(unit.gpu.uuid)
        for process in (reading.processes_on(unit) if reading else None) or ():
            job = job_of_process.get((unit.gpu.uuid, process.pid))
            if job is not None:
                own = used.setdefault(job, {})
                own[unit] = (*own.get(unit, ()), process)
    return used


def _holdings_of_unit(
    unit: Unit,
    jobs: list[_GpuClaims],
    confirmed: set[tuple[JobName, Unit]],
    readings: Mapping[str, GpuReading],
    conflicts: set[AllocationConflict],
) -> Iterable[Holding]:
    allocated = [job for job in jobs if job.allocation and unit in job.allocation.units]
    trusted = [job for job in allocated if job.allocation and job.allocation.trusted]
    confirmed_jobs = [
        job
        for job in jobs
        if job in trusted or unit in job.used_units or (job.holder.name, unit) in confirmed
    ]
    holding_jobs = _select_holders(jobs, allocated, trusted, confirmed_jobs)
    shares = _shares(holding_jobs)
    whole_claims = [job for job in allocated if not _is_partial(job)]
    name = f"{unit.gpu.uuid}/{unit.gpu_instance}"
    for job in whole_claims if len(whole_claims) > 1 else ():
        conflicts.add(("overlap", job.holder.name, name))
    reading = readings.get(unit.gpu.uuid)
    for job in allocated:
        if job not in holding_jobs:
            conflicts.add(("unconfirmed", job.holder.name, name))
    for job in jobs:
        if job.allocation and job not in allocated:
            conflicts.add(("process", job.holder.name, name))
        yield Holding(
            job.holder.name,
            unit,
            job.allocation.source if job.allocation and job in allocated else PROCESS_SOURCE,
            shares.get(job.holder.name),
            *_job_usage(unit, job, len(jobs) == 1, reading),
            confirmed=job in confirmed_jobs,
        )


def _select_holders(
    jobs: list[_GpuClaims],
    allocated: list[_GpuClaims],
    trusted: list[_GpuClaims],
    confirmed_jobs: list[_GpuClaims],
) -> list[_GpuClaims]:
    """The holders of a unit among the jobs that name or use it.

    A job's environment is accepted unless it contradicts something that users cannot write: root or
    the kernel allocated the unit to other jobs, or processes of other jobs that claim all of it, or
    none of it, run on it.
    """
    if trusted:
        return trusted
    confirmed = [job for job in allocated if job in confirmed_jobs]
    if any(not _is_partial(job) for job in confirmed):
        return confirmed
    return allocated if confirmed else [job for job in jobs if job not in allocated] or allocated


def _job_usage(
    unit: Unit, job: _GpuClaims, is_only_job: bool, reading: GpuReading | None
) -> tuple[int | None, float | None, float | None]:
    """Processes, memory and utilisation of a job on a unit.

    The utilisation is the unit's, and belongs to the job only if no other job holds or uses the
    unit: drivers do not measure how much of it each process caused.
    """
    if reading is None:
        return None, None, None
    utilization = reading.values_of(unit).get(UTILIZATION) if is_only_job else None
    processes = reading.processes_on(unit)
    if processes is None:
        return None, None, utilization
    own_processes = job.used_units.get(unit, ())
    return (
        len(own_processes),
        _sum_or_none(each.memory_bytes for each in own_processes),
        utilization if own_processes or not processes else None,
    )


def _sum_or_none(values: Iterable[float | None]) -> float | None:
    """The sum, or None if a part of it is missing."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _shares(jobs: list[_GpuClaims]) -> dict[JobName, float]:
    """The share of each holder of a unit; at most 1 in total.

    Shards, and a percentage of MPS threads, which anyone can set, only weigh holders against each
    other.
    """
    shards = {job.holder.name: _shards(job) for job in jobs}
    held = sum(shards.values())
    weights: dict[JobName, float] = {}
    for job in jobs:
        name = job.holder.name
        if shards[name]:
            weights[name] = shards[name] / held
        else:
            weights[name] = (_mps_percentage(job) or 100.0) / 100 if len(jobs) > 1 else 1.0
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _is_partial(job: _GpuClaims) -> bool:
    return bool(_shards(job) or _mps_percentage(job))


def _shards(job: _GpuClaims) -> float:
    """Shards per GPU of the job; 0: it holds no shards."""
    variable = registry.job_manager(job.holder.name.manager).gpu_shards
    if not variable:
        return 0.0
    gpus = len({unit.gpu.uuid for unit in job.allocation.units}) if job.allocation else 1
    numbers = [_parse_number(environ.get(variable)) for environ in job.holder.environs]
    return max(numbers, default=0.0) / max(1, gpus)


def _mps_percentage(job: _GpuClaims) -> float:
    """CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, over 0 to 100; 0: not set."""
    name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    numbers = [_parse_number(environ.get(name)) for environ in job.holder.environs]
    return min(100.0, max(numbers, default=0.0))


def _parse_number(text: str | None) -> float:
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if 0 < number < float("inf") else 0.0

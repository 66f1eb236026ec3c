"""What a job held, whose allocation changes while it runs."""

from typing import Any

from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.records import JobRecord, Reallocation
from batchjob.schedulers.states import JobState

_AMOUNTS = {
    "resized_cpu_seconds": "allocated_cpus",
    "resized_memory_byte_seconds": "allocated_memory_bytes",
    "resized_gpu_seconds": "allocated_gpus",
}
_UNCOUNTED_SECONDS = 60  # a job holds nodes before its run time is counted, and for a while after


def returned(known: UnfinishedJob, record: JobRecord, until: float) -> Reallocation:
    """CPUs, memory and GPUs that the job held, and does not with its new allocation."""
    amounts = [(getattr(known, name), getattr(record, name)) for name in _AMOUNTS.values()]
    differences: list[Any] = [
        None if before is None and now is None else (before or 0) - (now or 0)
        for before, now in amounts
    ]
    return Reallocation(until, *differences)


def held_before(known: UnfinishedJob, change: Reallocation) -> dict[str, Any]:
    """The fields of what the job held beyond its new allocation, until the change."""
    ran = change.until_time - (known.start_time or 0) - (known.suspended_seconds or 0)
    return {
        resized: (getattr(known, resized) or 0.0) + amount * max(0.0, ran)
        for resized, amount in zip(_AMOUNTS, change[1:], strict=True)
        if amount is not None
    }


def exceeds_run(known: UnfinishedJob, ended: JobRecord) -> bool:
    """Whether a job would have held for longer than it ran what it no longer held at its end.

    The record of its end says what it began with, or, of some jobs, what was left.
    """
    if ended.allocated_cpus is None or ended.elapsed_seconds is None:
        return False
    returned_cpus = ended.allocated_cpus - (known.allocated_cpus or 0)
    most = returned_cpus * (ended.elapsed_seconds + _UNCOUNTED_SECONDS)
    return 0 < most < (known.resized_cpu_seconds or 0.0)


def held_beyond(job: JobRecord) -> dict[str, Any]:
    """The fields of what a job held beyond its last allocation, by all its changes."""
    found: dict[str, Any] = {}
    for until, *amounts in job.reallocations:
        ran = max(0.0, until - (job.start_time or until))
        for name, amount in zip(_AMOUNTS, amounts, strict=True):
            if amount is not None:
                found[name] = found.get(name, 0.0) + amount * ran
    return found


def with_seen_change(record: JobRecord, known: UnfinishedJob | None, now: float) -> JobRecord:
    """The record of a source that says only what a job holds now.

    If it held something else at the last reading, the change is dated to this one. The nodes that
    it gave back stay stored, and so does what it held, if the record is that of its end: PBS and
    LSF may name there what the job began with.
    """
    if known is None or (known.submit_time, known.run) != (record.submit_time, record.run):
        return record
    if known.start_time is None or known.start_time != record.start_time:
        return record
    if record.state is JobState.RUNNING and _is_resized(known, record):
        change = returned(known, record, now)
        record = record._replace(reallocations=(change,), **held_before(known, change))
        return record if (change.cpus or 0) < 0 else record._replace(**_NODES_SO_FAR)
    if known.resized_cpu_seconds is None:
        return record
    record = record._replace(nodes=(), **_NODES_SO_FAR)
    is_known = known.allocated_cpus is not None
    return record if record.state.is_live and is_known else without_allocation(record)


def without_allocation(record: JobRecord) -> JobRecord:
    """The record without what its job held, which earlier records say."""
    amounts: dict[str, Any] = dict.fromkeys(_AMOUNTS.values())
    return record._replace(nodes=(), **amounts, **_NODES_SO_FAR)


def not_known(record: JobRecord) -> JobRecord:
    """The record of a job of which a change was not read: what it held is not known."""
    sums: dict[str, Any] = {**dict.fromkeys(_AMOUNTS), "resized_cpu_seconds": 0.0}
    return without_allocation(record)._replace(**sums, reallocations=())


# Nodes on which it ran remain nodes of the job.
_NODES_SO_FAR: dict[str, Any] = {
    "allocated_nodes": None, "node_list": "", "allocated_resources": "",
}  # fmt: skip


def _is_resized(known: UnfinishedJob, record: JobRecord) -> bool:
    """Whether the job holds other CPUs or GPUs; a limit of memory may be altered as it runs."""
    pairs = (
        (known.allocated_cpus, record.allocated_cpus),
        (known.allocated_gpus, record.allocated_gpus),
    )
    return any(before != now for before, now in pairs if before is not None and now is not None)

"""A job's efficiencies in words: formula, source and age of the database's figures."""

from typing import NamedTuple

from batchjob.runtime.formatting import digits
from batchjob.schedulers.states import JobState
from batchjob_stats_db.measure.job_usage import GAPS, NOT_A_NUMBER, PEAK_SAMPLED
from batchjob_stats_db.queries.efficiency import (
    ACCOUNTING,
    ENERGY_MISSING,
    IMPOSSIBLE_CPU,
    MEASURED,
)
from batchjob_stats_server.report.model import Efficiency, Row

END_UNKNOWN = "its end was not recorded, and nothing was measured"


def measured(job: Row) -> bool:
    """Whether anything was measured."""
    return bool(job["usage_samples"])


def elapsed(job: Row, now: int) -> float | None:
    """Run time in seconds, without suspended time; that of a running job is up to `now`."""
    start, end, known = job["start_time"], job["end_time"], job["elapsed_seconds"]
    if start is None:
        return None
    stands = end is not None or job["state"] in (JobState.SUSPENDED, JobState.VANISHED)
    if stands and known is not None:
        return float(known)
    if end is None and job["state"] == JobState.VANISHED:
        return None
    suspended = job["suspended_seconds"] or 0
    return max(0.0, round(float((now if end is None else end) - start - suspended), 3))


def no_elapsed(job: Row) -> str:
    """Why there is no run time."""
    return END_UNKNOWN if job["start_time"] is not None else "it has not started"


def waiting(job: Row, now: int) -> int:
    """Seconds since a waiting job became ready to start."""
    ready = job["submit_time"] if job["eligible_time"] is None else job["eligible_time"]
    return max(0, now - int(ready))


class EfficiencyRatio(NamedTuple):
    """A ratio without its amounts: lists need it for each of their jobs."""

    what: str  # cpu, memory, gpu, time
    ratio: float | None
    formula: str
    missing: str  # why there is no ratio; "" if there is one
    until_time: int | None = None  # see Efficiency


def cpu_ratio(job: Row) -> EfficiencyRatio:
    """Used CPU time by available CPU time."""
    measured_part = " * part measured" if job["cpu_basis"] == MEASURED else ""
    formula = f"CPU time / (CPUs * elapsed time{measured_part})"
    ratio, missing = job["cpu_efficiency"], ""
    if ratio is None:
        missing = (
            "more CPU time than the CPUs can provide" if IMPOSSIBLE_CPU in doubts(job)
            else _why(job, job["allocated_cpus"], "number of CPUs")
        )  # fmt: skip
    return _ratio(job, "cpu", ratio, formula, missing, job["cpu_basis"])


def memory_ratio(job: Row) -> EfficiencyRatio:
    """Peak memory by allocated memory."""
    formula = "peak memory by accounting / memory allocated"
    if job["memory_basis"] == MEASURED:
        formula = "peak memory, page cache included / memory of the same nodes"
    ratio, missing = job["memory_efficiency"], ""
    if ratio is None:
        missing = _why(job, _memory_limit(job), "memory limit") or _unseen_memory(job)
    return _ratio(job, "memory", ratio, formula, missing, job["memory_basis"])


def _unseen_memory(job: Row) -> str:
    if job["memory_basis"] is None and job["peak_memory_bytes"] is not None:
        return "accounting samples memory too rarely for such a short job"
    return ""


def gpu_ratio(job: Row) -> EfficiencyRatio | None:
    """Mean utilisation of the measured GPUs; None for a job without GPUs."""
    if not job["allocated_gpus"] and not job["usage_gpus"]:
        return None
    ratio, missing = job["usage_gpu_utilization_ratio"], ""
    if ratio is None:
        missing = _why(job, 1, "") or "no GPU's utilisation was measured"
    formula = "sum of the GPUs' mean utilisation / GPUs measured"
    seen, held = job["usage_gpus"] or 0, job["allocated_gpus"] or 0
    if ratio is not None and seen < held:
        formula += f", which are {seen} of {digits(held)}"
    return _ratio(job, "gpu", ratio, formula, missing, MEASURED)


def time_ratio(job: Row, now: int) -> EfficiencyRatio:
    """Elapsed time by time limit."""
    limit, ran = job["time_limit_seconds"], elapsed(job, now)
    ratio = None if ran is None or not limit else ran / limit
    missing = "the job has not started" if job["start_time"] is None else ""
    if not missing and not limit:
        missing = "no time limit is known"
    if not missing and ran is None:
        missing = no_elapsed(job)
    return _ratio(job, "time", ratio, "elapsed time / time limit", missing, ACCOUNTING)


def cpu(job: Row) -> Efficiency:
    """The same with its amounts."""
    used, available = job["cpu_used_seconds"], job["cpu_available_seconds"]
    return _of(job, cpu_ratio(job), used, available, "seconds", job["cpu_basis"])


def memory(job: Row) -> Efficiency:
    """The same with its amounts."""
    available = job["memory_available_bytes"] or _memory_limit(job)
    basis = job["memory_basis"]
    return _of(job, memory_ratio(job), job["memory_used_bytes"], available, "bytes", basis)


def gpu(job: Row) -> Efficiency | None:
    """The same with its amounts; None for a job without GPUs."""
    found, seen = gpu_ratio(job), job["usage_gpus"]
    if found is None:
        return None
    used = None if found.ratio is None else found.ratio * (seen or 1)
    return _of(job, found, used, seen, "GPUs", MEASURED)


def time(job: Row, now: int) -> Efficiency:
    """The same with its amounts."""
    ran, limit = elapsed(job, now), job["time_limit_seconds"]
    return _of(job, time_ratio(job, now), ran, limit, "seconds", ACCOUNTING)


def _memory_limit(job: Row) -> float | None:
    limit: float | None = job["allocated_memory_bytes"] or job["usage_memory_limit_bytes"]
    return limit


def _ratio(
    job: Row, what: str, ratio: float | None, formula: str, missing: str, basis: str | None
) -> EfficiencyRatio:
    why = "" if ratio is not None else missing or "nothing was measured"
    until = measured_until(job) if basis == MEASURED else None
    return EfficiencyRatio(what, ratio, formula, why, until)


def _of(
    job: Row, found: EfficiencyRatio, used: float | None, available: float | None, unit: str,
    basis: str | None,
) -> Efficiency:  # fmt: skip
    source = job["usage_source"] if basis == MEASURED else basis
    return Efficiency(
        found.what, found.ratio, used, available, unit, found.formula,
        (source or "") if used is not None else "", found.missing, found.until_time,
    )  # fmt: skip


def energy_missing(job: Row) -> str:
    """Why no energy of the job is known."""
    nodes, held = job["usage_nodes"] or 0, job["allocated_nodes"] or 1
    if measured(job) and (nodes < held or ENERGY_MISSING in doubts(job)):
        return "it was not measured on all of the job's nodes"
    return "no energy was measured"


def measured_until(job: Row) -> int | None:
    """When a job was last measured, if that was before its end; epoch milliseconds."""
    until, end = job["usage_until_time"], job["end_time"]
    return until * 1000 if measured(job) and end is not None and until < end else None


def cpu_final(job: Row) -> bool:
    """Whether the CPU figure covers the whole job, and will not change.

    Accounting may lack the last step of a job that did not complete.
    """
    if job["cpu_basis"] == ACCOUNTING:
        return job["end_time"] is not None and job["state"] == JobState.COMPLETED
    return _final(job)


def memory_final(job: Row) -> bool:
    """The same for the memory figure, which must be a peak that the kernel recorded.

    More may have been in use between two samples, accounting's included.
    """
    return job["memory_basis"] == MEASURED and _final(job) and PEAK_SAMPLED not in doubts(job)


def measured_final(job: Row) -> bool:
    """The same for figures of GPUs and nodes, which only measurements have."""
    return _final(job) and GAPS not in doubts(job)


def _final(job: Row) -> bool:
    whole = measured(job) and job["usage_final"] and job["usage_coverage"] >= 1.0
    return bool(whole and NOT_A_NUMBER not in doubts(job))


def _why(job: Row, available: float | None, what: str) -> str:
    if job["start_time"] is None:
        return "the job has not started"
    return "" if available else f"its {what} is not known"


def doubts(job: Row) -> tuple[str, ...]:
    """The doubtful parts of the measurements."""
    return tuple(word for word in (job["usage_doubt"] or "").split(", ") if word)

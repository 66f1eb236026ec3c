"""A job's efficiencies in words: formula, source and age of figures that the database made."""

from batchjob.schedulers.states import JobState
from batchjob_stats_db.queries.efficiency import ACCOUNTING, IMPOSSIBLE_CPU, MEASURED
from batchjob_stats_server.report.material import Row
from batchjob_stats_server.report.model import Efficiency


def measured(job: Row) -> bool:
    """Whether anything was measured."""
    return bool(job["usage_samples"])


def elapsed(job: Row, now: int) -> float | None:
    """Seconds that it ran, or has run; without those in which it was suspended.

    Of a job that has vanished nobody saw the end: its time up to the last measurement, if any.
    """
    if job["start_time"] is None:
        return None
    if job["state"] == JobState.VANISHED and job["end_time"] is None:
        if not measured(job):
            return None
        now = int(job["usage_until_time"])
    if job["end_time"] is not None and job["elapsed_seconds"] is not None:
        return float(job["elapsed_seconds"])
    end = now if job["end_time"] is None else job["end_time"]
    if job["state"] == JobState.SUSPENDED and job["elapsed_seconds"] is not None:
        # It stands since then; the measurement that is asked about may be older.
        return min(float(job["elapsed_seconds"]), float(max(0, end - job["start_time"])))
    suspended = job["suspended_seconds"] or 0
    return max(0.0, round(float(end - job["start_time"] - suspended), 3))


def observed(job: Row, now: int) -> float | None:
    """The same up to the last measurement."""
    if job["end_time"] is None and measured(job):
        return elapsed(job, job["usage_until_time"])
    return elapsed(job, now)


def cpu(job: Row) -> Efficiency:
    """CPU time of the CPU time there was."""
    return _of(
        job, "cpu", job["cpu_efficiency"], job["cpu_used_seconds"], job["cpu_available_seconds"],
        "seconds", job["cpu_basis"],
        "CPU time / (CPUs * elapsed time * part measured)" if job["cpu_basis"] == MEASURED
        else "CPU time / (CPUs * elapsed time)",
        "more CPU time than the CPUs can give" if IMPOSSIBLE_CPU in doubts(job)
        else _why(job, job["allocated_cpus"], "number of CPUs"),
    )  # fmt: skip


def memory(job: Row) -> Efficiency:
    """Peak memory of the memory it had."""
    limit = job["allocated_memory_bytes"] or job["usage_memory_limit_bytes"]
    return _of(
        job, "memory", job["memory_efficiency"], job["memory_used_bytes"],
        job["memory_available_bytes"] or limit, "bytes", job["memory_basis"],
        "peak memory, page cache included / memory of the same nodes"
        if job["memory_basis"] == MEASURED
        else "peak memory by accounting / memory allocated",
        _why(job, limit, "memory limit"),
    )  # fmt: skip


def gpu(job: Row) -> Efficiency | None:
    """Mean utilisation of the GPUs measured; None for a job without any."""
    if not job["allocated_gpus"] and not job["usage_gpus"]:
        return None
    ratio, seen = job["usage_gpu_utilization_ratio"], job["usage_gpus"]
    return _of(
        job, "gpu", ratio, None if ratio is None else ratio * (seen or 1), seen, "GPUs", MEASURED,
        "sum of the GPUs' mean utilisation / GPUs measured",
        _why(job, 1, "") or ("" if ratio is not None else "no GPU's utilisation was measured"),
    )  # fmt: skip


def time(job: Row, now: int) -> Efficiency:
    """Elapsed time of the time limit."""
    limit, ran = job["time_limit_seconds"], elapsed(job, now)
    ratio = None if ran is None or not limit else ran / limit
    return _of(
        job, "time", ratio, ran, limit, "seconds", ACCOUNTING, "elapsed time / time limit",
        "the job has not started" if job["start_time"] is None
        else "" if limit else "no time limit is known",
    )  # fmt: skip


def _of(
    job: Row, what: str, ratio: float | None, used: float | None, available: float | None,
    unit: str, basis: str | None, formula: str, missing: str,
) -> Efficiency:  # fmt: skip
    why = "" if ratio is not None else missing or "nothing was measured"
    source = job["usage_source"] if basis == MEASURED else basis
    return Efficiency(
        what, ratio, used, available, unit, formula, (source or "") if used is not None else "",
        why, measured_until(job) if basis == MEASURED else None,
    )  # fmt: skip


def measured_until(job: Row) -> int | None:
    """When an ended job was measured that went on after it; epoch milliseconds."""
    until, end = job["usage_until_time"], job["end_time"]
    return until * 1000 if measured(job) and end is not None and until < end else None


def cpu_final(job: Row) -> bool:
    """Whether the CPU figure is of the whole job, and will not change."""
    return _final(job, job["cpu_basis"])


def memory_final(job: Row) -> bool:
    """The same of the memory figure; of several nodes accounting knows only the mean."""
    by_node = job["memory_basis"] == MEASURED or (job["allocated_nodes"] or 1) == 1
    return _final(job, job["memory_basis"]) and by_node


def measured_final(job: Row) -> bool:
    """The same of figures of GPUs and nodes, which only measurements have."""
    return _final(job, MEASURED if measured(job) else None)


def _final(job: Row, basis: str | None) -> bool:
    if job["end_time"] is None or basis is None:
        return False
    return basis == ACCOUNTING or bool(job["usage_final"] and job["usage_coverage"] >= 1.0)


def _why(job: Row, available: float | None, what: str) -> str:
    if job["start_time"] is None:
        return "the job has not started"
    return "" if available else f"its {what} is not known"


def doubts(job: Row) -> tuple[str, ...]:
    """What cannot be vouched for of what was measured."""
    return tuple(word for word in (job["usage_doubt"] or "").split(", ") if word)

"""How much was used of what there was. Nothing is said where one of the numbers is not known."""

from batchjob_stats_server.report.material import Row
from batchjob_stats_server.report.model import Efficiency

ACCOUNTING = "accounting"


def measured(job: Row) -> bool:
    """Whether anything was measured."""
    return bool(job["usage_samples"])


def elapsed(job: Row, now: int) -> int | None:
    """Seconds that it ran, or has run; without those in which it was suspended."""
    if job["start_time"] is None:
        return None
    if job["end_time"] is not None and job["elapsed_seconds"] is not None:
        return int(job["elapsed_seconds"])
    end = now if job["end_time"] is None else int(job["end_time"])
    return max(0, end - int(job["start_time"]) - int(job["suspended_seconds"] or 0))


def observed(job: Row, now: int) -> int | None:
    """The same up to the last measurement."""
    if job["end_time"] is None and measured(job):
        return elapsed(job, job["usage_until_time"])
    return elapsed(job, now)


def cpu_seconds(job: Row) -> float | None:
    """CPU time, measured or else by the scheduler's accounting."""
    pair = (job["usage_user_cpu_seconds"], job["usage_system_cpu_seconds"])
    if measured(job) and pair != (None, None):
        return float((pair[0] or 0) + (pair[1] or 0))
    if job["end_time"] is None:  # accounting sums up when a job or a step of it ends
        return None
    return None if job["cpu_seconds"] is None else float(job["cpu_seconds"])


def peak_memory(job: Row) -> int | None:
    """Most memory, summed over nodes; measured or else by the scheduler's accounting."""
    ours: int | None = job["usage_memory_peak_bytes"] if measured(job) else None
    theirs: int | None = job["peak_memory_bytes"]
    return ours if ours is not None else theirs


def limit_of_memory(job: Row) -> int | None:
    """Memory the job had, on the nodes of which something is known."""
    whole: int | None = job["allocated_memory_bytes"] or job["usage_memory_limit_bytes"]
    nodes: int | None = job["allocated_nodes"]
    seen: int | None = job["usage_nodes"]
    if whole and measured(job) and nodes and seen and seen < nodes:
        return round(whole * float(seen) / float(nodes))
    return whole or None


def cpu(job: Row, now: int) -> Efficiency:
    """CPU time of the CPU time there was."""
    ours = measured(job) and job["usage_user_cpu_seconds"] is not None
    seconds, cpus = observed(job, now), job["allocated_cpus"]
    coverage = min(1.0, job["usage_coverage"]) if ours else 1.0
    available = cpus * seconds * coverage if cpus and seconds else None
    missing = "more CPU time than the CPUs can give" if _has_doubt(job, "more cpu") else ""
    return _of(
        "cpu",
        cpu_seconds(job),
        available,
        "seconds",
        "CPU time / (CPUs * elapsed time * part measured)" if ours
        else "CPU time / (CPUs * elapsed time)",
        job["usage_source"] if ours else ACCOUNTING,
        missing or _why(job, available, "CPUs and time"),
    )  # fmt: skip


def memory(job: Row) -> Efficiency:
    """Peak memory of the memory it had."""
    ours = measured(job) and job["usage_memory_peak_bytes"] is not None
    available = limit_of_memory(job)
    return _of(
        "memory", peak_memory(job), available, "bytes",
        "peak memory, page cache included / memory of the same nodes" if ours
        else "peak memory by accounting / memory allocated",
        job["usage_source"] if ours else ACCOUNTING,
        _why(job, available, "memory limit"),
    )  # fmt: skip


def gpu(job: Row) -> Efficiency | None:
    """Mean utilisation of the GPUs measured; None for a job without any."""
    if not job["allocated_gpus"] and not job["usage_gpus"]:
        return None
    ratio, seen = job["usage_gpu_utilization_ratio"], job["usage_gpus"]
    return _of(
        "gpu", None if ratio is None else ratio * (seen or 1), seen, "GPUs",
        "sum of the GPUs' mean utilisation / GPUs measured", job["usage_source"] or "",
        _why(job, 1, "") or ("" if ratio is not None else "no GPU's utilisation was measured"),
    )  # fmt: skip


def time(job: Row, now: int) -> Efficiency:
    """Elapsed time of the time limit."""
    limit = job["time_limit_seconds"]
    return _of(
        "time", elapsed(job, now), limit, "seconds", "elapsed time / time limit", ACCOUNTING,
        "the job has not started" if job["start_time"] is None
        else "" if limit else "no time limit is known",
    )  # fmt: skip


def _of(
    what: str, used: float | None, available: float | None, unit: str, formula: str, source: str,
    missing: str,
) -> Efficiency:  # fmt: skip
    ratio = None if missing or used is None or not available else used / available
    why = "" if ratio is not None else missing or "nothing was measured"
    return Efficiency(
        what, ratio, used, available, unit, formula, source if used is not None else "", why
    )


def _why(job: Row, available: float | None, what: str) -> str:
    if job["start_time"] is None:
        return "the job has not started"
    if not available:
        return f"the job's {what} are not known" if " and " in what else f"its {what} is not known"
    return ""


def _has_doubt(job: Row, beginning: str) -> bool:
    return any(word.startswith(beginning) for word in doubts(job))


def doubts(job: Row) -> tuple[str, ...]:
    """What cannot be vouched for of what was measured."""
    return tuple(word for word in (job["usage_doubt"] or "").split(", ") if word)

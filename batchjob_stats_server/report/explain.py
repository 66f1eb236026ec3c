"""Derives efficiencies and times of a job from its row, and explains missing values."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC

from batchjob.judgements import AT_LEAST, MORE_CPU
from batchjob.runtime.formatting import digits, format_duration
from batchjob.runtime.times import format_time
from batchjob.schedulers import registry
from batchjob.schedulers.states import JobState
from batchjob_stats_db.measure.job_usage import CPU_AT_LEAST, GAPS, NOT_A_NUMBER, PEAK_SAMPLED
from batchjob_stats_db.queries.efficiency import ACCOUNTING, ENERGY_MISSING, MEASURED
from batchjob_stats_server.report.model import Efficiency, Row

END_UNKNOWN = "its end was not recorded, and nothing was measured"


def is_measured(job: Row) -> bool:
    return bool(job["usage_samples"])


def elapsed_seconds(job: Row, now: int) -> float | None:
    """Run time in seconds, without suspended time; that of a running job is up to `now`.

    If its source cannot be read, it is up to the time when that was last read; if all its nodes
    have seen it end, up to that.
    """
    start, end, recorded = job["start_time"], job["end_time"], job["elapsed_seconds"]
    if start is None:
        return None
    is_fixed = end is not None or job["state"] in (JobState.SUSPENDED, JobState.VANISHED)
    if is_fixed and recorded is not None:
        return float(recorded)
    if end is None and job["state"] == JobState.VANISHED:
        return None
    suspended = job["suspended_seconds"] or 0
    until = end if end is not None else job["as_of_time"] or now
    return max(0.0, round(float(until - start - suspended), 3))


def as_of(job: Row) -> str:
    """Why the clock of an unfinished job stands still, such as its source's last read; else ""."""
    if job["as_of_basis"] == "nodes":
        return "ended, state not yet known"
    return f"as of {format_time(job['as_of_time'], UTC)}" if job["as_of_time"] else ""


def elapsed_missing(job: Row) -> str:
    """Why there is no run time."""
    return END_UNKNOWN if job["start_time"] is not None else "it has not started"


def waiting_seconds(job: Row, now: int) -> int | None:
    """Seconds since a waiting job became ready to start; None for one that is not.

    A held job is not ready, nor is one that depends on others or whose begin time, or whose place
    within its array's own limit, has not come.
    """
    if not registry.is_eligible(job["source"], job["reason"] or "", job["state_word"]):
        return None
    ready = job["submit_time"] if job["eligible_time"] is None else job["eligible_time"]
    return max(0, now - int(ready))


def cpu_ratio(job: Row) -> Efficiency:
    """Used CPU time / available CPU time."""
    measured_part = " * part measured" if job["cpu_basis"] == MEASURED else ""
    is_resized = job.get("resized_cpu_seconds")  # lists do not have it
    cpus = "CPUs held at each time" if is_resized else "CPUs"
    formula = f"CPU time / ({cpus} * elapsed time{measured_part})"
    if job["cpu_basis"] == AT_LEAST:
        formula = f"{AT_LEAST}, {formula}"
    ratio, missing = job["cpu_efficiency"], ""
    if ratio is None and MORE_CPU in caveats(job):
        missing = "more CPU time than the CPUs can provide"
    elif ratio is None:
        missing = _missing_reason(job, job["allocated_cpus"], "number of CPUs")
        if not missing and CPU_AT_LEAST in caveats(job):
            missing = "accounting lacks most of its CPU time"
    return _efficiency_ratio(job, "cpu", ratio, formula, missing, job["cpu_basis"])


def memory_ratio(job: Row) -> Efficiency:
    """Peak memory / allocated memory."""
    formula = "peak memory by accounting / memory allocated"
    if job["memory_basis"] == MEASURED:
        formula = "peak memory, page cache included / memory of the same nodes"
    ratio, missing = job["memory_efficiency"], ""
    if ratio is None:
        missing = _missing_reason(job, _memory_limit(job), "memory limit")
        if not missing and job["memory_basis"] is None and job["peak_memory_bytes"] is not None:
            missing = "accounting samples memory too rarely for such a short job"
    basis, reclaimable = job["memory_basis"], job["memory_short"] == 0
    return _efficiency_ratio(job, "memory", ratio, formula, missing, basis, reclaimable)


def gpu_ratio(job: Row) -> Efficiency | None:
    """Mean utilisation of the measured GPUs; None for a job without GPUs."""
    if not job["gpus_held"]:
        return None
    ratio, missing = job["usage_gpu_utilization_ratio"], ""
    if ratio is None:
        missing = _missing_reason(job, 1, "") or (
            "its GPUs were shared with other jobs, or it could not be told which of the node's "
            "GPUs were its own"
            if job["usage_gpus"]
            else "no GPU's utilisation was measured"
        )
    formula = "busy time of the GPUs / time observed"
    measured_gpus = job["usage_gpus"] or 0
    if ratio is not None and measured_gpus < job["gpus_held"]:
        formula += f", of {measured_gpus} of {digits(job['gpus_held'])} GPUs"
    return _efficiency_ratio(job, "gpu", ratio, formula, missing, MEASURED)


def time_ratio(job: Row, now: int) -> Efficiency:
    """Elapsed time / time limit."""
    limit, elapsed = job["time_limit_seconds"], elapsed_seconds(job, now)
    ratio = None if elapsed is None or not limit else elapsed / limit
    missing = "the job has not started" if job["start_time"] is None else ""
    if not missing and not limit:
        missing = "no time limit is known"
    if not missing and elapsed is None:
        missing = elapsed_missing(job)
    return _efficiency_ratio(job, "time", ratio, "elapsed time / time limit", missing, ACCOUNTING)


def efficiencies(job: Row, now: int) -> Iterator[Efficiency]:
    """The ratios of a report, with their amounts, which lists lack; three without GPUs."""
    gpu, gpus = gpu_ratio(job), job["usage_gpus"]
    gpus_used = gpu.ratio * (gpus or 1) if gpu and gpu.ratio is not None else None
    amounts = (
        (cpu_ratio(job), job["cpu_used_seconds"], job["cpu_available_seconds"], "seconds",
         job["cpu_basis"]),
        (memory_ratio(job), job["memory_used_bytes"], memory_available_bytes(job), "bytes",
         job["memory_basis"]),
        (gpu, gpus_used, gpus, "GPUs", MEASURED),
        (time_ratio(job, now), elapsed_seconds(job, now), job["time_limit_seconds"], "seconds",
         ACCOUNTING),
    )  # fmt: skip
    for found, used, available, unit, basis in amounts:
        if found is not None:
            accounted = ACCOUNTING if basis == AT_LEAST else basis
            source = job["usage_source"] if basis == MEASURED else accounted
            shown = (source or "") if used is not None else ""
            yield replace(found, used=used, available=available, unit=unit, source=shown)


def memory_available_bytes(job: Row) -> float | None:
    """Memory of the nodes that were measured, else of all allocated ones."""
    available: float | None = job["memory_available_bytes"]
    return available or _memory_limit(job)


def _memory_limit(job: Row) -> float | None:
    limit: float | None = job["allocated_memory_bytes"] or job["usage_memory_limit_bytes"]
    return limit


def _efficiency_ratio(
    job: Row, what: str, ratio: float | None, formula: str, missing: str, basis: str | None,
    reclaimable: bool = False,
) -> Efficiency:  # fmt: skip
    reason = "" if ratio is not None else missing or "nothing was measured"
    until, end = job["usage_until_time"], job["end_time"]
    ran_on = basis == MEASURED and is_measured(job) and end is not None and until < end
    return Efficiency(
        what, ratio, None, None, "", formula, "", reason, until * 1000 if ran_on else None,
        reclaimable,
    )  # fmt: skip


def energy_of(job: Row, text: str) -> str:
    """A job's energy; accounting's is that of whole nodes, which other jobs may have used too."""
    return f"{text} of its nodes" if job["energy_basis"] == ACCOUNTING else text


def energy_missing(job: Row) -> str:
    """Why no energy of the job is known."""
    measured_nodes, allocated_nodes = job["usage_nodes"] or 0, job["allocated_nodes"] or 1
    if is_measured(job) and (measured_nodes < allocated_nodes or ENERGY_MISSING in caveats(job)):
        return "it was not measured on all of the job's nodes"
    return "no energy was measured"


def is_cpu_final(job: Row) -> bool:
    """Whether the CPU figure covers the whole job, and will not change.

    Accounting may lack the last step of a job that did not complete.
    """
    if job["cpu_basis"] == ACCOUNTING:
        return job["end_time"] is not None and job["state"] == JobState.COMPLETED
    return job["cpu_basis"] != AT_LEAST and _is_final(job)


def is_memory_final(job: Row) -> bool:
    """Whether the memory figure is final, and a peak that the kernel recorded.

    A sampled peak, as of accounting, may be too low: more may be in use between two samples.
    """
    return job["memory_basis"] == MEASURED and _is_final(job) and PEAK_SAMPLED not in caveats(job)


def is_measured_final(job: Row) -> bool:
    """Whether the figures of GPUs and nodes, which are always measured, are final."""
    return _is_final(job) and GAPS not in caveats(job)


def _is_final(job: Row) -> bool:
    is_complete = is_measured(job) and job["usage_final"] and job["usage_coverage"] >= 1.0
    return bool(is_complete and NOT_A_NUMBER not in caveats(job))


def _missing_reason(job: Row, available: float | None, what: str) -> str:
    if job["start_time"] is None:
        return "the job has not started"
    not_told = "no limit was set" if job["source"] == "runs" else f"its {what} is not known"
    return "" if available else not_told


def caveats(job: Row) -> tuple[str, ...]:
    """The keys of CAVEATS that apply to the figures."""
    words = [word for word in (job["usage_caveats"] or "").split(", ") if word]
    if job["cpu_basis"] in (ACCOUNTING, AT_LEAST):
        is_impossible = MORE_CPU in job["caveats"]
        words = [word for word in words if word != MORE_CPU] + [MORE_CPU] * is_impossible
    if job["cpu_basis"] == AT_LEAST:
        words.append(CPU_AT_LEAST)
    return tuple(words)


def usual_wait(row: Row) -> str:
    """`half start within 29 s; one in ten waits over 4 h 42 min`."""
    half, most = row["wait_p50_seconds"], row["wait_p90_seconds"]
    if most < 1:
        return "nine in ten start at once"
    start = f"within {format_duration(half)}" if half >= 1 else "at once"
    return f"half start {start}; one in ten waits over {format_duration(most)}"

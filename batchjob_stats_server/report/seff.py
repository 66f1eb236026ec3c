"""The lines of Slurm's `seff`, which scripts read, from the figures of a report."""

from collections.abc import Iterator
from datetime import tzinfo

from batchjob.runtime.formatting import format_exit_code, to_printable
from batchjob.runtime.times import format_exact_time
from batchjob_stats_server.report.model import Efficiency, JobSummary, Report

_NOT_KNOWN = "not known"
_UNITS = ("KB", "MB", "GB", "TB", "PB", "EB")
_MEMORY_PER_CORE = "--mem-per-cpu"


def seff_lines(report: Report, zone: tzinfo) -> Iterator[str]:
    """The lines in seff's order, with its labels and formats; a figure that is missing says why.

    `zone`: the time zone of the times, which seff itself does not print.
    """
    job = report.job
    yield f"Job ID: {to_printable(job.jobid)}"
    if job.array_jobid and job.array_index is not None and not job.tool:
        yield f"Array Job ID: {to_printable(job.array_jobid)}_{job.array_index}"
    yield f"Cluster: {to_printable(job.cluster)}"
    yield f"User/Group: {to_printable(job.user)}/{to_printable(job.group) or _NOT_KNOWN}"
    exit_code = format_exit_code(job.exit_code, job.exit_code_or_128_more) or _NOT_KNOWN
    yield f"State: {job.state}" + ("" if report.interim else f" (exit code {exit_code})")
    yield from _core_lines(job)
    if job.start_time is None:
        yield "Efficiency: not available, since the job has not started."
        return
    ratios = {each.what: each for each in report.efficiency}
    yield f"CPU Utilized: {_clock(report.use.cpu_seconds)}"
    yield f"CPU Efficiency: {_cpu_efficiency(ratios['cpu'])}"
    yield f"Job Wall-clock time: {_clock(job.elapsed_seconds)}"
    yield f"Memory Utilized: {_memory(report.use.peak_memory_bytes)}"
    yield f"Memory Efficiency: {_memory_efficiency(ratios['memory'], job)}"
    if warning := _not_final(report, zone):
        yield f"WARNING: {warning}"


def _core_lines(job: JobSummary) -> Iterator[str]:
    """A single core is said without nodes."""
    if not job.cpus:
        yield f"Cores: {_NOT_KNOWN}"
    elif job.cpus == 1:
        yield "Cores: 1"
    else:
        yield f"Nodes: {job.nodes or _NOT_KNOWN}"
        yield f"Cores per node: {int(job.cpus / job.nodes) if job.nodes else _NOT_KNOWN}"


def _cpu_efficiency(cpu: Efficiency) -> str:
    if cpu.ratio is None or cpu.available is None:
        return f"{_NOT_KNOWN}: {cpu.missing}"
    return f"{cpu.ratio:.2%} of {_clock(cpu.available)} core-walltime"


def _memory_efficiency(memory: Efficiency, job: JobSummary) -> str:
    if memory.ratio is None or memory.available is None:
        return f"{_NOT_KNOWN}: {memory.missing}"
    text = f"{memory.ratio:.2%} of {_memory(memory.available)}"
    per_core = _MEMORY_PER_CORE in job.submit_line
    part, parts = ("core", job.cpus) if per_core else ("node", job.nodes)
    return (
        f"{text} ({_memory(job.memory_bytes / parts)}/{part})"
        if job.memory_bytes and parts
        else text
    )


def _not_final(report: Report, zone: tzinfo) -> str:
    """What to know of figures that will change, or ""."""
    until = report.basis.until_time
    if report.interim:
        as_of = "nothing was measured so far" if until is None else _as_of(until, zone)
        return f"The job has not ended; {as_of}."
    if until is not None and not report.basis.final:
        return f"The final figures are not stored yet; {_as_of(until, zone)}."
    return ""


def _as_of(until: int, zone: tzinfo) -> str:
    return f"efficiency is as of {format_exact_time(until / 1000, zone)}"


def _clock(seconds: float | None) -> str:
    """`hh:mm:ss`, or `d-hh:mm:ss` from a day on."""
    if seconds is None:
        return _NOT_KNOWN
    days, rest = divmod(int(seconds + 0.5), 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _memory(number_of_bytes: float | None) -> str:
    """In powers of 1024 with two decimals, from KB on; nothing at all is in MB."""
    if number_of_bytes is None:
        return _NOT_KNOWN
    if not number_of_bytes:
        return "0.00 MB"
    value, units = number_of_bytes / 1024, iter(_UNITS)
    unit = next(units)
    while value >= 1024 and unit != _UNITS[-1]:
        value, unit = value / 1024, next(units)
    return f"{value:.2f} {unit}"

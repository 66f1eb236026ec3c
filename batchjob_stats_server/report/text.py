"""A report in words: titles, lines and advice, before any markup."""

from collections.abc import Callable, Iterator
from datetime import UTC, tzinfo
from typing import NamedTuple

from batchjob.runtime.formatting import (
    digits,
    energy,
    format_clock,
    format_count,
    format_duration,
    format_exact_duration,
    format_exit_code,
    share,
    size,
    to_printable,
)
from batchjob.runtime.times import format_exact_time, format_time
from batchjob.schedulers.states import JobState
from batchjob_stats_db.queries.efficiency import ACCOUNTING
from batchjob_stats_server.report.explain import END_UNKNOWN
from batchjob_stats_server.report.model import (
    FORMATTERS,
    Advice,
    JobSummary,
    Report,
    SimilarComparison,
    format_emissions,
)

_MAX_TEXT_LENGTH = 500  # maximum characters of a text; the JSON form is complete
_MAX_LINES = 16  # maximum nodes or GPUs; the JSON form is complete
_RECORDED_ONLY = "none; what the scheduler or `batchjob run` recorded is used instead"
GPU_TITLE = "GPUs"
TO_COPY = "Submit"  # the line with this label is never broken
_TITLES = {"cpu": "CPU", "memory": "Memory", "gpu": GPU_TITLE, "time": "Time"}
_COMPONENTS = {
    "host_active": "host, active",
    "host_idle": "host, idle",
    "gpu_active": "GPUs, active",
    "gpu_idle": "GPUs, idle",
}


class ReportLine(NamedTuple):
    """A label, a text, and a ratio if there is one to draw."""

    label: str
    text: str
    ratio: float | None = None


class Document(NamedTuple):
    """All text of a report."""

    title: str
    headline: str  # why it waits or how it ended, or ""
    notice: str  # what to know before reading on, or ""
    sections: list[tuple[str, list[ReportLine]]]  # each with its title
    advice: tuple[Advice, ...]
    skipped_rules: list[ReportLine]


def build_document(report: Report, zone: tzinfo = UTC) -> Document:
    """Write the report in words. Texts of users and schedulers are put on one printable line.

    `zone`: the time zone of its times.
    """
    sections = [(title, list(write_lines(report, zone))) for title, write_lines in _SECTIONS]
    return Document(
        f"Job {to_printable(report.job.jobid)} on {to_printable(report.job.cluster)}",
        to_printable(report.headline),
        _as_of(report, zone) if report.interim else "",
        [(title, lines) for title, lines in sections if lines],
        report.advice,
        [ReportLine(rule.rule, rule.reason) for rule in report.silent],
    )


def _as_of(report: Report, zone: tzinfo) -> str:
    until = report.basis.until_time
    as_of = "" if until is None else f" Figures as of {format_time(until / 1000, zone)}."
    return f"Not ended yet.{as_of}"


def _job_lines(report: Report, zone: tzinfo) -> Iterator[ReportLine]:
    """What was requested and allocated, and what tracked work recorded about itself."""
    job = report.job
    submitted = job.submit_time if job.start_time is None else None
    texts = (
        ("User", f"{job.user}, account {job.account}" if job.account else job.user),
        ("Name", job.name),
        ("Array", _array(job)),
        ("State", _state(job)),
        ("Partition", job.partition),
        ("Requested" if job.start_time is None else "Allocated", _allocation(job)),
        ("Time limit", job.time_limit_seconds and format_duration(job.time_limit_seconds)),
        ("Resources", job.allocated_resources),
        *(
            (label, None if at is None else format_exact_time(at / 1000, zone))
            for label, at in (
                ("Submitted", submitted),
                ("Start", job.start_time),
                ("End", job.end_time),
            )
        ),
        ("Command", _cut(job.submit_line)),
        ("Directory", _cut(job.work_dir)),
        ("Tool", _cut(job.tool)),
        ("Parameters", _cut(job.parameters)),
        ("Result", _cut(job.result_type)),
        ("External id", _cut(job.record_id)),
        ("Error", _cut(job.error)),
        ("Cancelled by", _cut(job.cancelled_by)),
        *((f"Log of {each.nodes}", each.url) for each in report.logs),
    )
    for label, text in texts:
        if text:
            yield ReportLine(label, to_printable(text))


def _cut(text: str) -> str:
    return text[:_MAX_TEXT_LENGTH] + "…" * (len(text) > _MAX_TEXT_LENGTH)


def _array(job: JobSummary) -> str:
    if not job.array_jobid or job.tool:
        return ""
    which = "waiting tasks" if job.array_index is None else f"task {job.array_index}"
    array = to_printable(job.array_jobid)
    return f"{which} of {array}; see the others with: batchjob jobs --workflow {array}"


def _state(job: JobSummary) -> str:
    ended = (
        ("exit code", format_exit_code(job.exit_code, job.exit_code_or_128_more)),
        ("signal", job.exit_signal),
    )
    words = [f"{word} {number}" for word, number in ended if number and number != "0"]
    return ", ".join([job.state_word or job.state, *words])


def _allocation(job: JobSummary) -> str:
    kind = "requested_" if job.start_time is None else ""
    nodes, cpus, gpus, memory = (
        getattr(job, f"{kind}{what}") for what in ("nodes", "cpus", "gpus", "memory_bytes")
    )
    counts = ((nodes, "node"), (cpus, "CPU"), (gpus, "GPU"))
    words = [format_count(number, what) for number, what in counts if number]
    words += [size(memory)] if memory else []
    return ", ".join(words) + (" at last" if job.resized_cpu_seconds else "")


def _usage_lines(report: Report, _: tzinfo) -> Iterator[ReportLine]:
    use, seconds = report.use, report.job.elapsed_seconds
    vanished = report.job.state == JobState.VANISHED
    if seconds is not None:
        format_elapsed = format_duration if report.job.end_time is None else format_exact_duration
        until = ", up to its last measurement" if vanished else ""
        yield ReportLine("Run time", format_elapsed(seconds) + until)
    elif vanished:
        yield ReportLine("Run time", f"not known: {END_UNKNOWN}")
    if use.cpu_seconds is not None:
        parts = (("user", use.user_cpu_seconds), ("system", use.system_cpu_seconds))
        words = [f"{name} {format_duration(part)}" for name, part in parts if part is not None]
        more = f" ({', '.join(words)})" if words else ""
        yield ReportLine(use.cpu_label(), format_duration(use.cpu_seconds) + more)
    if use.peak_memory_bytes is not None:
        yield ReportLine("Peak memory", size(use.peak_memory_bytes))
    for label, directions in use.transfers():
        amounts = (f"{size(number)} {name}" for name, number in directions.items())
        yield ReportLine(label, ", ".join(amounts))


def _amounts(*amounts: tuple[float | None, Callable[[float], str], str]) -> list[str]:
    """Those that are known, each with the word that follows it."""
    return [f"{write(amount)} {what}" for amount, write, what in amounts if amount is not None]


def efficiency_lines(report: Report, zone: tzinfo) -> Iterator[ReportLine]:
    """The share of each resource that was used, or why it is not known."""
    for each in report.efficiency:
        title = _TITLES[each.what]
        if each.ratio is None:
            yield ReportLine(title, f"not known: {each.missing}")
            continue
        format_value = FORMATTERS.get(each.unit, digits)
        amounts = f"{format_value(each.used or 0)} of {format_value(each.available or 0)}"
        text = f"{share(each.ratio)}, {amounts}{' GPUs' if each.unit == 'GPUs' else ''}"
        text += f" ({each.formula})"
        if each.until_time is not None:
            text += f"; measured only up to {format_time(each.until_time / 1000, zone)}"
        yield ReportLine(title, text, each.ratio)


def _node_lines(report: Report, _: tzinfo) -> Iterator[ReportLine]:
    for node in report.nodes[:_MAX_LINES]:
        words = _amounts(
            (node.cpu_seconds, format_clock, "CPU time"),
            (node.memory_peak_bytes, size, "peak memory"),
        )
        yield ReportLine(to_printable(node.node), ", ".join(words))
    yield from _omitted_line(len(report.nodes))


def _gpu_lines(report: Report, _: tzinfo) -> Iterator[ReportLine]:
    for gpu in report.gpus[:_MAX_LINES]:
        ratio, peak, total = gpu.utilization_ratio, gpu.memory_peak_bytes, gpu.memory_total_bytes
        known = f"{share(ratio)} utilisation" if ratio is not None else ""
        words = [known or f"utilisation unknown: {gpu.unknown_reason}"]
        if peak is not None:
            words.append(f"{size(peak)}{f' of {size(total)}' if total else ''} peak memory")
        words += _amounts(
            (gpu.sm_active_ratio, share, "of its multiprocessors"),
            (gpu.tensor_active_ratio, share, "of tensor cores"),
            (gpu.dram_active_ratio, share, "of memory bandwidth"),
        )
        label = f"{gpu.node} GPU {gpu.gpu or gpu.uuid} {gpu.gpu_instance}".strip()
        yield ReportLine(to_printable(label), ", ".join(words), ratio)
    yield from _omitted_line(len(report.gpus))


def _omitted_line(count: int) -> Iterator[ReportLine]:
    if count > _MAX_LINES:
        yield ReportLine("", f"and {count - _MAX_LINES} more")


def _energy_lines(report: Report, _: tzinfo) -> Iterator[ReportLine]:
    job_energy = report.energy
    if job_energy.total_joules is not None:
        of_nodes = ": of its whole nodes" if job_energy.source == ACCOUNTING else ""
        shown = f"{energy(job_energy.total_joules)} ({job_energy.source}{of_nodes})"
        yield ReportLine("Energy", shown)
    elif job_energy.components:
        yield ReportLine("Energy", f"not known: {job_energy.missing}")
    restriction = ", of the measured nodes only" if job_energy.missing else ""
    for name, joules in job_energy.components.items():
        yield ReportLine(f"  {_COMPONENTS[name]}", f"{energy(joules)}{restriction}")
    if job_energy.site_joules is not None and job_energy.pue:
        yield ReportLine(
            "With the site's PUE", f"{energy(job_energy.site_joules)} (times {job_energy.pue:g})"
        )
    for each in report.emissions:
        shown = f"{format_emissions(each.grams)} by {to_printable(each.provider)}"
        if each.site_grams is not None:
            shown += f"; with PUE {format_emissions(each.site_grams)}"
        yield ReportLine("Emissions", shown + restriction)


def _similar_lines(report: Report, _: tzinfo) -> Iterator[ReportLine]:
    similar = report.similar
    if similar.missing:
        yield ReportLine("Comparison", f"none: {similar.missing}")
        return
    yield ReportLine(
        "Compared with", f"{similar.jobs} completed jobs with the same {similar.alike}"
    )
    for each in similar.comparisons:
        format_value = FORMATTERS[each.unit]
        lower, upper = format_value(each.lower_quartile), format_value(each.upper_quartile)
        middle_half = f"half of them from {lower} to {upper}"
        this = "" if each.this is None else f"{format_value(each.this)}; "
        below = f"; {_beside(each)}" if each.below is not None else ""
        yield ReportLine(each.what.capitalize() if each.what[0].islower() else each.what,
                   f"{this}median {format_value(each.median)}, {middle_half}{below}")  # fmt: skip


def _beside(each: SimilarComparison) -> str:
    """Where this job is among the others."""
    if each.below in (0, 1):
        return f"{'above' if each.below else 'lowest of'} all {each.jobs}"
    return f"{share(each.below or 0)} of them are below"


def _next_lines(report: Report, _: tzinfo) -> Iterator[ReportLine]:
    """What to request next time."""
    again = report.resubmission
    if again is None:
        return
    if again.line:
        yield ReportLine(TO_COPY, to_printable(again.line))
    elsewhere = f"batchjob job {report.job.jobid} --script FILE prints your script with it"
    yield ReportLine("Script", to_printable(elsewhere))
    if saved := again.savings(report.job.elapsed_seconds):
        yield ReportLine("Saves", saved)
    yield ReportLine("Reckoned", again.basis)


def _basis_lines(report: Report, _: tzinfo) -> Iterator[ReportLine]:
    basis = report.basis
    if not basis.source:
        yield ReportLine("Measurements", "none")
    elif not basis.samples:
        yield ReportLine("Measurements", _RECORDED_ONLY)
    else:
        counts = (format_count(basis.samples, "sample"), format_count(basis.nodes, "node"))
        coverage = (
            "" if basis.coverage is None else f", {share(min(1.0, basis.coverage))} of the time"
        )
        yield ReportLine("Measurements", f"{basis.source}: {' of '.join(counts)}{coverage}")
    if caveats := report.caveats():
        yield ReportLine("Caveats", "; ".join(caveats))


_SECTIONS: tuple[tuple[str, Callable[[Report, tzinfo], Iterator[ReportLine]]], ...] = (
    ("Job", _job_lines),
    ("Used", _usage_lines),
    ("Efficiency", efficiency_lines),
    ("Nodes", _node_lines),
    ("GPUs", _gpu_lines),
    ("Energy and emissions", _energy_lines),
    ("Compared with earlier jobs", _similar_lines),
    ("Next time", _next_lines),
    ("Data sources", _basis_lines),
)

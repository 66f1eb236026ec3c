"""A report in words: titles, lines and advice, before any markup."""

from collections.abc import Iterator
from datetime import UTC, tzinfo
from typing import NamedTuple

from batchjob.runtime.formatting import clock, digits, energy, lasting, lasting_exactly, share, size
from batchjob.runtime.times import exact_time_in_words, time_in_words
from batchjob.schedulers.states import JobState
from batchjob_stats_server.report.explain import END_UNKNOWN
from batchjob_stats_server.report.model import Advice, Efficiency, Report
from batchjob_stats_server.report.units import WRITTEN, emissions

_LONGEST = 500  # maximum characters of a text; the JSON form is complete
_MOST_LINES = 16  # maximum nodes or GPUs; the JSON form is complete
_RECORDED = "none; what the scheduler or `batchjob run` recorded is used instead"
_TITLES = {"cpu": "CPU", "memory": "Memory", "gpu": "GPUs", "time": "Time"}
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


class ReportSection(NamedTuple):
    """Lines under a title."""

    title: str
    lines: tuple[ReportLine, ...]


class Document(NamedTuple):
    """All text of a report."""

    title: str
    headline: str  # why it waits or how it ended, or ""
    notice: str  # what to know before reading on, or ""
    sections: tuple[ReportSection, ...]
    advice: tuple[Advice, ...]
    silent: tuple[ReportLine, ...]


def document(report: Report, zone: tzinfo = UTC) -> Document:
    """The report in words. Texts of users and schedulers are made printable, and put on one line.

    `zone`: the time zone of its times.
    """
    made = (
        ReportSection("Job", tuple(_job(report, zone))),
        ReportSection("Used", tuple(_used(report))),
        ReportSection("Efficiency", tuple(_efficiency(each, zone) for each in report.efficiency)),
        ReportSection("Nodes", tuple(_nodes(report))),
        ReportSection("GPUs", tuple(_gpus(report))),
        ReportSection("Energy and emissions", tuple(_energy(report))),
        ReportSection("Compared with your similar jobs", tuple(_similar(report))),
        ReportSection("Data sources", tuple(_basis(report))),
    )
    notice = "The job has not ended; all figures may change." if report.interim else ""
    return Document(
        f"Job {plain(report.job.jobid)} on {plain(report.job.cluster)}",
        plain(report.headline),
        notice,
        tuple(section for section in made if section.lines),
        report.advice,
        tuple(ReportLine(silence.rule, silence.reason) for silence in report.silent),
    )


def plain(text: str) -> str:
    """The text without characters that move a terminal's cursor or break a line."""
    spaced = (" " if character.isspace() else character for character in text)
    return "".join(character if character.isprintable() else "?" for character in spaced)


def _job(report: Report, zone: tzinfo) -> Iterator[ReportLine]:
    job = report.job
    yield ReportLine(
        "User", plain(f"{job.user}, account {job.account}" if job.account else job.user)
    )
    if job.name:
        yield ReportLine("Name", plain(job.name))
    ended = [
        f"{word} {n}"
        for word, n in (("exit code", job.exit_code), ("signal", job.exit_signal))
        if n
    ]
    yield ReportLine("State", plain(", ".join([job.state_word or job.state, *ended])))
    if job.partition:
        yield ReportLine("Partition", plain(job.partition))
    has = (
        (job.nodes, "node", digits), (job.cpus, "CPU", digits), (job.gpus, "GPU", digits),
        (job.memory_bytes, "", size),
    )  # fmt: skip
    words = [
        f"{form(n)} {what}{'s' if what and n != 1 else ''}".strip() for n, what, form in has if n
    ]
    if words:
        yield ReportLine("Allocated", ", ".join(words))
    limits = (
        ("Time limit", job.time_limit_seconds and lasting(job.time_limit_seconds)),
        ("Resources", job.allocated_resources),
    )
    yield from (ReportLine(label, plain(text)) for label, text in limits if text)
    times = (
        ("Submitted", job.submit_time if job.start_time is None else None),
        ("Start", job.start_time),
        ("End", job.end_time),
    )
    for label, at in times:
        if at is not None:
            yield ReportLine(label, exact_time_in_words(at / 1000, zone))
    yield from _origin(report)


def _origin(report: Report) -> Iterator[ReportLine]:
    """How it was started, and what tracked work records about itself."""
    job = report.job
    texts = (
        ("Command", job.submit_line), ("Directory", job.work_dir), ("Tool", job.tool),
        ("Parameters", job.parameters), ("Result", job.result_type),
        ("External id", job.record_id), ("Error", job.error), ("Cancelled by", job.cancelled_by),
    )  # fmt: skip
    for label, text in texts:
        if text:
            yield ReportLine(label, plain(text[:_LONGEST] + "…" * (len(text) > _LONGEST)))


def _used(report: Report) -> Iterator[ReportLine]:
    use, seconds = report.use, report.job.elapsed_seconds
    vanished = report.job.state == JobState.VANISHED
    if seconds is not None:
        told = lasting if report.job.end_time is None else lasting_exactly
        until = ", up to its last measurement" if vanished else ""
        yield ReportLine("Run time", told(seconds) + until)
    elif vanished:
        yield ReportLine("Run time", f"not known: {END_UNKNOWN}")
    if use.cpu_seconds is not None:
        parts = (("user", use.user_cpu_seconds), ("system", use.system_cpu_seconds))
        words = ", ".join(f"{name} {lasting(part)}" for name, part in parts if part is not None)
        yield ReportLine("CPU time", lasting(use.cpu_seconds) + (f" ({words})" if words else ""))
    if use.peak_memory_bytes is not None:
        yield ReportLine("Peak memory", size(use.peak_memory_bytes))
    for label, read, written in use.moved():
        known = ((read, "read"), (written, "written"))
        amounts = [f"{size(number)} {what}" for number, what in known if number is not None]
        if amounts:
            yield ReportLine(label, ", ".join(amounts))


def _efficiency(each: Efficiency, zone: tzinfo) -> ReportLine:
    title = _TITLES[each.what]
    if each.ratio is None:
        return ReportLine(title, f"not known: {each.missing}")
    form = WRITTEN.get(each.unit, digits)
    of = f"{form(each.used or 0)} of {form(each.available or 0)}"
    text = f"{share(each.ratio)}, {of}{' GPUs' if each.unit == 'GPUs' else ''}"
    text += f" ({each.formula})"
    if each.until_time is not None:
        text += f"; measured only up to {time_in_words(each.until_time / 1000, zone)}"
    return ReportLine(title, text, each.ratio)


def _nodes(report: Report) -> Iterator[ReportLine]:
    for node in report.nodes[:_MOST_LINES]:
        words = [
            f"{form(value)} {what}"
            for value, form, what in (
                (node.cpu_seconds, clock, "CPU time"),
                (node.memory_peak_bytes, size, "peak memory"),
            )
            if value is not None
        ]
        yield ReportLine(plain(node.node), ", ".join(words))
    yield from _rest(len(report.nodes))


def _gpus(report: Report) -> Iterator[ReportLine]:
    for gpu in report.gpus[:_MOST_LINES]:
        ratio, peak, total = gpu.utilization_ratio, gpu.memory_peak_bytes, gpu.memory_total_bytes
        words = ["utilisation unknown" if ratio is None else f"{share(ratio)} utilisation"]
        if peak is not None:
            words.append(f"{size(peak)}{f' of {size(total)}' if total else ''} peak memory")
        label = f"{gpu.node} GPU {gpu.gpu or gpu.uuid} {gpu.gpu_instance}".strip()
        yield ReportLine(plain(label), ", ".join(words), ratio)
    yield from _rest(len(report.gpus))


def _rest(there: int) -> Iterator[ReportLine]:
    if there > _MOST_LINES:
        yield ReportLine("", f"and {there - _MOST_LINES} more")


def _energy(report: Report) -> Iterator[ReportLine]:
    found = report.energy
    if found.total_joules is not None:
        yield ReportLine("Energy", f"{energy(found.total_joules)} ({found.source})")
    elif found.components:
        yield ReportLine("Energy", f"not known: {found.missing}")
    part = ", of the measured nodes only" if found.missing else ""
    for name, joules in found.components.items():
        yield ReportLine(f"  {_COMPONENTS[name]}", f"{energy(joules)}{part}")
    if found.site_joules is not None and found.pue:
        yield ReportLine(
            "With the site's PUE", f"{energy(found.site_joules)} (times {found.pue:g})"
        )
    for each in report.emissions:
        site = f"; with PUE {emissions(each.site_grams)}" if each.site_grams is not None else ""
        yield ReportLine(
            "Emissions", f"{emissions(each.grams)} by {plain(each.provider)}{site}{part}"
        )


def _similar(report: Report) -> Iterator[ReportLine]:
    similar = report.similar
    if similar.missing:
        yield ReportLine("Comparison", f"none: {similar.missing}")
        return
    yield ReportLine(
        "Compared with", f"{similar.jobs} completed jobs with the same {similar.alike}"
    )
    for each in similar.comparisons:
        form = WRITTEN[each.unit]
        half = f"half of them from {form(each.lower_quartile)} to {form(each.upper_quartile)}"
        this = "" if each.this is None else f"{form(each.this)}; "
        below = "" if each.below is None else f"; {share(each.below)} of them used less"
        yield ReportLine(each.what.capitalize() if each.what[0].islower() else each.what,
                   f"{this}median {form(each.median)}, {half}{below}")  # fmt: skip


def _basis(report: Report) -> Iterator[ReportLine]:
    basis = report.basis
    if not basis.source:
        yield ReportLine("Measurements", "none")
    elif not basis.samples:
        yield ReportLine("Measurements", _RECORDED)
    else:
        samples = f"{basis.samples} sample{'s' if basis.samples != 1 else ''}"
        nodes = f"{basis.nodes} node{'s' if basis.nodes != 1 else ''}"
        covered = (
            "" if basis.coverage is None else f", {share(min(1.0, basis.coverage))} of the time"
        )
        yield ReportLine("Measurements", f"{basis.source}: {samples} of {nodes}{covered}")
    if caveats := report.caveats():
        yield ReportLine("Caveats", "; ".join(caveats))

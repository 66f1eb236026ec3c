"""A report as people read it: titles, lines and advice, before any markup."""

from collections.abc import Iterator
from typing import NamedTuple

from batchjob.readable import clock, digits, energy, share, size
from batchjob_stats_server.report.model import Advice, Efficiency, Report
from batchjob_stats_server.report.units import WRITTEN, emissions

_MOST_LINES = 16  # of nodes or GPUs; the JSON form has all
_TITLES = {"cpu": "CPU", "memory": "Memory", "gpu": "GPUs", "time": "Time"}
_COMPONENTS = {
    "host_active": "host, active",
    "host_idle": "host, idle",
    "gpu_active": "GPUs, active",
    "gpu_idle": "GPUs, idle",
}


class Line(NamedTuple):
    """A label, what there is to say, and a ratio where there is one to draw."""

    label: str
    text: str
    ratio: float | None = None


class Section(NamedTuple):
    """Lines under a title."""

    title: str
    lines: tuple[Line, ...]


class Document(NamedTuple):
    """All that is written down."""

    title: str
    notice: str  # "" or what to know before reading on
    sections: tuple[Section, ...]
    advice: tuple[Advice, ...]
    silent: tuple[Line, ...]


def document(report: Report) -> Document:
    """The report in words. Texts of users and schedulers come out printable, and on one line."""
    made = (
        Section("Job", tuple(_job(report))),
        Section("Efficiency", tuple(map(_efficiency, report.efficiency))),
        Section("Nodes", tuple(_nodes(report))),
        Section("GPUs", tuple(_gpus(report))),
        Section("Energy and emissions", tuple(_energy(report))),
        Section("Beside your similar jobs", tuple(_similar(report))),
        Section("What this rests on", tuple(_basis(report))),
    )
    notice = "The job is not at its end: all of this may change." if report.interim else ""
    return Document(
        f"Job {plain(report.job.jobid)} on {plain(report.job.cluster)}",
        notice,
        tuple(section for section in made if section.lines),
        report.advice,
        tuple(Line(silence.rule, silence.reason) for silence in report.silent),
    )


def plain(text: str) -> str:
    """Without what moves a terminal's cursor, or breaks a line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _job(report: Report) -> Iterator[Line]:
    job = report.job
    yield Line("User", plain(f"{job.user}, account {job.account}" if job.account else job.user))
    if job.name:
        yield Line("Name", plain(job.name))
    ended = [
        f"{word} {n}"
        for word, n in (("exit code", job.exit_code), ("signal", job.exit_signal))
        if n
    ]
    yield Line("State", plain(", ".join([job.state_word or job.state, *ended])))
    if job.partition:
        yield Line("Partition", plain(job.partition))
    has = (
        (job.nodes, "node", digits), (job.cpus, "CPU", digits), (job.gpus, "GPU", digits),
        (job.memory_bytes, "", size),
    )  # fmt: skip
    words = [
        f"{form(n)} {what}{'s' if what and n != 1 else ''}".strip() for n, what, form in has if n
    ]
    if words:
        yield Line("Allocated", ", ".join(words))
    if job.start_time_rfc3339:
        yield Line("Start", job.start_time_rfc3339)
    if job.end_time_rfc3339:
        yield Line("End", job.end_time_rfc3339)


def _efficiency(each: Efficiency) -> Line:
    title = _TITLES[each.what]
    if each.ratio is None:
        return Line(title, f"not known: {each.missing}")
    form = WRITTEN.get(each.unit, digits)
    of = f"{form(each.used or 0)} of {form(each.available or 0)}"
    text = f"{share(each.ratio)}, {of}{' GPUs' if each.unit == 'GPUs' else ''}"
    return Line(title, f"{text} ({each.formula})", each.ratio)


def _nodes(report: Report) -> Iterator[Line]:
    for node in report.nodes[:_MOST_LINES]:
        words = [
            f"{form(value)} {what}"
            for value, form, what in (
                (node.cpu_seconds, clock, "CPU time"),
                (node.memory_peak_bytes, size, "peak memory"),
            )
            if value is not None
        ]
        yield Line(plain(node.node), ", ".join(words))
    yield from _rest(len(report.nodes))


def _gpus(report: Report) -> Iterator[Line]:
    for gpu in report.gpus[:_MOST_LINES]:
        ratio, peak, total = gpu.utilization_ratio, gpu.memory_peak_bytes, gpu.memory_total_bytes
        words = ["utilisation not known" if ratio is None else f"{share(ratio)} utilisation"]
        if peak is not None:
            words.append(f"{size(peak)}{f' of {size(total)}' if total else ''} peak memory")
        label = f"{gpu.node} GPU {gpu.gpu or gpu.uuid} {gpu.gpu_instance}".strip()
        yield Line(plain(label), ", ".join(words), ratio)
    yield from _rest(len(report.gpus))


def _rest(there: int) -> Iterator[Line]:
    if there > _MOST_LINES:
        yield Line("", f"and {there - _MOST_LINES} more")


def _energy(report: Report) -> Iterator[Line]:
    found = report.energy
    if found.total_joules is not None:
        yield Line("Energy", f"{energy(found.total_joules)} ({found.source})")
    for name, joules in found.components.items():
        yield Line(f"  {_COMPONENTS[name]}", energy(joules))
    if found.site_joules is not None and found.pue:
        yield Line("With the site's PUE", f"{energy(found.site_joules)} (times {found.pue:g})")
    for each in report.emissions:
        site = f"; with PUE {emissions(each.site_grams)}" if each.site_grams is not None else ""
        yield Line("Emissions", f"{emissions(each.grams)} by {plain(each.provider)}{site}")


def _similar(report: Report) -> Iterator[Line]:
    similar = report.similar
    if similar.missing:
        yield Line("Comparison", f"none: {similar.missing}")
        return
    yield Line("Compared with", f"{similar.jobs} that ended well, of the same {similar.alike}")
    for each in similar.comparisons:
        form = WRITTEN[each.unit]
        half = f"half of them from {form(each.lower_quartile)} to {form(each.upper_quartile)}"
        this = "" if each.this is None else f"{form(each.this)}; "
        below = "" if each.below is None else f"; {share(each.below)} of them had less"
        yield Line(each.what.capitalize() if each.what[0].islower() else each.what,
                   f"{this}median {form(each.median)}, {half}{below}")  # fmt: skip


def _basis(report: Report) -> Iterator[Line]:
    basis = report.basis
    if not basis.source:
        yield Line("Measurements", "none")
    elif not basis.samples:
        yield Line("Measurements", "none; the scheduler's accounting stands for them")
    else:
        nodes = f"{basis.nodes} node{'s' if basis.nodes != 1 else ''}"
        covered = (
            "" if basis.coverage is None else f", {share(min(1.0, basis.coverage))} of the time"
        )
        yield Line("Measurements", f"{basis.source}: {basis.samples} samples of {nodes}{covered}")
    if basis.doubts:
        yield Line("Doubts", ", ".join(basis.doubts))

"""A report as JSON, plain text, Markdown, or HTML without scripts."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import cache, partial
from typing import TYPE_CHECKING

from batchjob.runtime.formatting import format_exit_code, to_printable
from batchjob.runtime.times import format_exact_time
from batchjob_stats_server.report.model import Advice, Efficiency, JobSummary, Report
from batchjob_stats_server.report.text import (
    GPU_TITLE,
    TO_COPY,
    Document,
    ReportLine,
    build_document,
    efficiency_lines,
)

if TYPE_CHECKING:
    from jinja2 import Template
    from pydantic import TypeAdapter

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
    per_core = _MEMORY_PER_CORE in job.submit_line
    part, parts = ("core", job.cpus) if per_core else ("node", job.nodes)
    each = f" ({_memory(job.memory_bytes / parts)}/{part})" if job.memory_bytes and parts else ""
    return f"{memory.ratio:.2%} of {_memory(memory.available)}{each}"


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


_WIDTH = 90
_LABEL_WIDTH = 26  # maximum width of the column; longer labels exceed it
_BAR_WIDTH = 20
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
_SECTIONS_BESIDE_SEFF = ("GPUs", "Energy and emissions", "Data sources")


@cache
def _json_adapter() -> "TypeAdapter[Report]":
    from pydantic import TypeAdapter  # slow to load, and the other formats do without

    return TypeAdapter(Report)


def as_json(report: Report) -> bytes:
    """The keys of the API."""
    return _json_adapter().dump_json(report)


def as_text(report: Report, zone: tzinfo = UTC) -> str:
    """Plain text, for a terminal or an e-mail."""
    return document_as_text(build_document(report, zone))


def document_as_text(document: Document) -> str:
    """The text of a report, or of what has the same parts."""
    lines = [document.title, "=" * len(document.title)]
    lines += _wrap("", document.headline) if document.headline else []
    lines += [document.notice] if document.notice else []
    lines += [*_text_sections(document.sections), *_text_advice(document.advice)]
    if document.skipped_rules:
        names = ", ".join(rule.label for rule in document.skipped_rules)
        number = len(document.skipped_rules)
        checks = "One check" if number == 1 else f"{number} checks"
        lines += ["", *_wrap("", f"{checks} could not be made because data is missing: {names}.")]
    return _join_lines(lines)


def as_seff(report: Report, zone: tzinfo = UTC) -> str:
    """The lines of Slurm's seff, and what it does not know: GPUs, energy and advice."""
    document = build_document(report, zone)
    gpu_efficiency = [line for line in efficiency_lines(report, zone) if line.label == GPU_TITLE]
    sections = [("Efficiency of GPUs", gpu_efficiency)] if gpu_efficiency else []
    sections += [each for each in document.sections if each[0] in _SECTIONS_BESIDE_SEFF]
    if report.job.start_time is not None and "Energy" not in {
        line.label for _, section_lines in sections for line in section_lines
    }:
        line = ReportLine("Energy", f"not known: {report.energy.missing}")
        sections.append(("Energy", [line]))
    lines = [*seff_lines(report, zone), *_text_sections(sections)]
    return _join_lines([*lines, *_text_advice(document.advice)])


def _text_sections(sections: Iterable[tuple[str, list[ReportLine]]]) -> Iterator[str]:
    for title, section_lines in sections:
        yield from ("", title)
        width = min(_LABEL_WIDTH, max(len(line.label) for line in section_lines))
        for line in section_lines:
            head = f"  {line.label:<{width}}  {_text_bar(line)}"
            yield from [head + line.text] if line.label == TO_COPY else _wrap(head, line.text)


def _text_advice(advice: Sequence[Advice]) -> Iterator[str]:
    yield from ("", "Advice")
    for each in advice:
        yield from ("", *_wrap(f"  {each.severity}: ", f"{each.title} [{each.rule}]"))
        yield from (*_wrap("    ", each.reason), *_wrap("    > ", each.step))
    if not advice:
        yield "  none"


def _join_lines(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _text_bar(line: ReportLine) -> str:
    if line.ratio is None:
        return ""
    filled = round(min(1.0, max(0.0, line.ratio)) * _BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] "


def _wrap(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=" " * min(len(head), _LABEL_WIDTH),
        break_long_words=False, break_on_hyphens=False,
    ) or [head]  # fmt: skip


@cache
def _template(name: str) -> "Template":
    import jinja2  # takes 60 ms to load, and the other formats do without

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("batchjob_stats_server.report"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["escaped"] = partial(_MARKDOWN_SPECIAL.sub, r"\\\1")
    return environment.get_template(name)


def as_markdown(report: Report, zone: tzinfo = UTC) -> str:
    """Markdown, for a ticket or a wiki."""
    return _template("report.md").render(document=build_document(report, zone))


def as_html(report: Report, zone: tzinfo = UTC) -> str:
    """A complete HTML page."""
    return document_as_html(build_document(report, zone))


def document_as_html(document: Document) -> str:
    """The page of a report, or of what has the same parts."""
    return _template("report.html").render(document=document)


FORMS: Mapping[str, tuple[str, Callable[[Report, tzinfo], str]]] = {
    "text": ("text/plain", as_text),
    "markdown": ("text/markdown", as_markdown),
    "html": ("text/html", as_html),
    "seff": ("text/plain", as_seff),
}
"""Media type and writer by the name of a form; JSON is the report itself."""

"""A report as JSON, plain text, Markdown, or HTML without scripts."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import cache, partial
from typing import TYPE_CHECKING

from batchjob_stats_server.report.model import Advice, Report
from batchjob_stats_server.report.seff import seff_lines
from batchjob_stats_server.report.text import (
    GPU_TITLE,
    Document,
    ReportLine,
    build_document,
    efficiency_lines,
)

if TYPE_CHECKING:
    from jinja2 import Template
    from pydantic import TypeAdapter

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
        lines += ["", "Rules without enough data"]
        for rule in document.skipped_rules:
            lines += _wrap(f"  {rule.label}: ", rule.text)
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
            yield from _wrap(f"  {line.label:<{width}}  {_text_bar(line)}", line.text)


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
        break_long_words=False,
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

"""A report as plain text, Markdown or HTML without scripts."""

import html
import re
import textwrap
from collections.abc import Callable, Mapping
from datetime import UTC, tzinfo

from batchjob_stats_server.report.model import Report
from batchjob_stats_server.report.text import ReportLine, document

_WIDTH = 90
_LABEL = 26  # maximum width of the column; longer labels exceed it
_CELLS = 20
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~])")
_STYLE = (
    "body{font:16px/1.4 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}th{text-align:left;font-weight:normal;opacity:.7}"
    "td,th{padding:.1em 1em .1em 0;vertical-align:top}meter{width:8em}"
    ":root{color-scheme:light dark}"
)


def text(report: Report, zone: tzinfo = UTC) -> str:
    """For a terminal or a mail."""
    page = document(report, zone)
    lines = [page.title, "=" * len(page.title)]
    lines += _wrapped("", page.headline) if page.headline else []
    lines += [page.notice] if page.notice else []
    for section in page.sections:
        lines += ["", section.title]
        width = min(_LABEL, max(len(line.label) for line in section.lines))
        for line in section.lines:
            lines += _wrapped(f"  {line.label:<{width}}  {_bar(line)}", line.text)
    lines += ["", "Advice"]
    for each in page.advice:
        lines += ["", *_wrapped(f"  {each.severity}: ", f"{each.title} [{each.rule}]")]
        lines += [*_wrapped("    ", each.reason), *_wrapped("    > ", each.step)]
    if not page.advice:
        lines.append("  none")
    if page.silent:
        lines += ["", "Rules without enough data"]
        for silence in page.silent:
            lines += _wrapped(f"  {silence.label}: ", silence.text)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _bar(line: ReportLine) -> str:
    if line.ratio is None:
        return ""
    full = round(min(1.0, max(0.0, line.ratio)) * _CELLS)
    return f"[{'#' * full}{'.' * (_CELLS - full)}] "


def _wrapped(head: str, rest: str) -> list[str]:
    return textwrap.wrap(
        rest, _WIDTH, initial_indent=head, subsequent_indent=" " * min(len(head), _LABEL),
        break_long_words=False,
    ) or [head]  # fmt: skip


def markdown(report: Report, zone: tzinfo = UTC) -> str:
    """For a ticket or a wiki."""
    page = document(report, zone)
    parts = [f"# {_escaped(page.title)}"]
    parts += [f"**{_escaped(page.headline)}**"] if page.headline else []
    parts += [f"*{page.notice}*"] if page.notice else []
    for section in page.sections:
        rows = [
            f"| {_escaped(line.label.strip())} | {_escaped(line.text)} |" for line in section.lines
        ]
        parts.append("\n".join([f"## {section.title}", "", "| | |", "| --- | --- |", *rows]))
    parts.append("## Advice")
    parts += [
        f"**{_escaped(each.title)}** ({each.severity}, `{each.rule}`)\n\n"
        f"{_escaped(each.reason)}\n\n> {_escaped(each.step)}"
        for each in page.advice
    ] or ["None."]
    if page.silent:
        silent = (f"- `{line.label}`: {_escaped(line.text)}" for line in page.silent)
        parts.append("\n".join(["## Rules without enough data", "", *silent]))
    return "\n\n".join(parts) + "\n"


def _escaped(words: str) -> str:
    return _MARKDOWN.sub(r"\\\1", words)


def page(report: Report, zone: tzinfo = UTC) -> str:
    """A complete page of HTML."""
    made = document(report, zone)
    title = html.escape(made.title)
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>",
        f"<p><strong>{html.escape(made.headline)}</strong></p>" if made.headline else "",
        f"<p><strong>{html.escape(made.notice)}</strong></p>" if made.notice else "",
    ]
    for section in made.sections:
        rows = "\n".join(_row(line) for line in section.lines)
        parts.append(f"<h2>{html.escape(section.title)}</h2>\n<table>\n{rows}\n</table>")
    parts.append("<h2>Advice</h2>")
    parts += [
        f"<h3>{html.escape(each.title)}</h3>\n"
        f"<p>{html.escape(each.severity)}, <code>{html.escape(each.rule)}</code></p>\n"
        f"<p>{html.escape(each.reason)}</p>\n<p><strong>{html.escape(each.step)}</strong></p>"
        for each in made.advice
    ] or ["<p>None.</p>"]
    if made.silent:
        rows = "\n".join(_row(line) for line in made.silent)
        parts.append(f"<h2>Rules without enough data</h2>\n<table>\n{rows}\n</table>")
    parts.append("</body></html>")
    return "\n".join(part for part in parts if part) + "\n"


def _row(line: ReportLine) -> str:
    meter = "" if line.ratio is None else f'<meter value="{min(1.0, line.ratio):.3f}"></meter> '
    return f"<tr><th>{html.escape(line.label)}</th><td>{meter}{html.escape(line.text)}</td></tr>"


FORMS: Mapping[str, tuple[str, Callable[[Report, tzinfo], str]]] = {
    "text": ("text/plain", text),
    "markdown": ("text/markdown", markdown),
    "html": ("text/html", page),
}
"""Media type and writer by the name of a form; JSON is the report itself."""

"""Rows as a table for people."""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any, NamedTuple

from batchjob.runtime.formatting import to_printable

_GAP = 2
_MINIMUM_WIDTH = 8  # minimum width of an elastic column


class TableColumn(NamedTuple):
    """A heading, and the text of a row's cell; "-" for unknown values."""

    title: str
    cell: Callable[[Mapping[str, Any]], str]
    right: bool = False
    elastic: bool = False  # may be truncated on a narrow terminal
    drop_order: int = 0  # columns with larger values are left out first; 0: never
    colour: Callable[[Mapping[str, Any]], str] | None = None  # SGR code of a cell, or ""


def cell(key: str, format_value: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], str]:
    """The text of a key of a row; "-" if it is unknown."""
    return lambda row: "-" if row.get(key) is None else format_value(row[key])


def add_zone(parser: argparse.ArgumentParser) -> None:
    """Add the option for the time zone: `zone`, None for the local one."""
    parser.add_argument("--utc", dest="zone", action="store_const", const=UTC,
                        help="show times in UTC (default: local time)")  # fmt: skip


def terminal_width() -> int | None:
    """Characters per line; None if the output is not a terminal, and nothing is truncated."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fold(text: str, width: int | None) -> str:
    """The text in lines of at most this width, but a submit line, which is copied, is whole."""
    if width is None:
        return text
    return "\n".join(
        line if line.startswith("  Submit ") else textwrap.fill(
            line, width, break_long_words=False, replace_whitespace=False, break_on_hyphens=False,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
        )
        for line in text.splitlines()
    )  # fmt: skip


def use_colours() -> bool:
    """Whether to use colours: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def format_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Mapping[str, Any]],
    width: int | None = None,
    *,
    colours: bool = False,
) -> str:
    """Aligned columns, two spaces apart, in at most `width` characters if it is given.

    Columns that do not fit are truncated (`elastic`) or left out (`drop_order`).
    """
    cells = [[to_printable(column.cell(row)) for column in columns] for row in rows]
    shown_widths = fit_columns(columns, cells, width)
    lines = [_format_line([column.title for column in columns], columns, shown_widths)]
    for row, texts in zip(rows, cells, strict=True):
        cell_colours = [
            column.colour(row) if colours and column.colour else "" for column in columns
        ]
        lines.append(_format_line(texts, columns, shown_widths, cell_colours))
    return "\n".join(lines)


def fit_columns(
    columns: Sequence[TableColumn], cells: Sequence[Sequence[str]], max_width: int | None
) -> Mapping[int, int]:
    """The displayed columns with their widths."""
    widths = [max((len(line[place]) for line in cells), default=0) for place in range(len(columns))]
    widths = [max(each, len(c.title)) for each, c in zip(widths, columns, strict=True)]
    shown_widths = dict(enumerate(widths))

    def excess() -> int:
        taken = sum(shown_widths.values()) + _GAP * (len(shown_widths) - 1)
        return 0 if max_width is None else taken - max_width

    while excess() > 0:
        elastic = [
            each
            for each in shown_widths
            if columns[each].elastic and shown_widths[each] > _MINIMUM_WIDTH
        ]
        removable = [each for each in shown_widths if columns[each].drop_order]
        if elastic:
            widest = max(elastic, key=lambda each: shown_widths[each])
            shown_widths[widest] = max(_MINIMUM_WIDTH, shown_widths[widest] - excess())
        elif removable:
            del shown_widths[max(removable, key=lambda each: columns[each].drop_order)]
        else:
            break
    spare = -excess()
    for each in shown_widths:  # distribute the width of columns that were left out
        if columns[each].elastic and spare > 0:
            grown = min(widths[each], shown_widths[each] + spare)
            spare -= grown - shown_widths[each]
            shown_widths[each] = grown
    return shown_widths


def _format_line(
    texts: Sequence[str],
    columns: Sequence[TableColumn],
    shown_widths: Mapping[int, int],
    cell_colours: Sequence[str] = (),
) -> str:
    cells = []
    for place, width in shown_widths.items():
        text = texts[place]
        if len(text) > width:
            text = f"{text[: width - 1]}…"
        placed = text.rjust(width) if columns[place].right else text.ljust(width)
        colour = cell_colours[place] if cell_colours else ""
        cells.append(f"\x1b[{colour}m{placed}\x1b[0m" if colour else placed)
    return (" " * _GAP).join(cells).rstrip()


def print_text(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))

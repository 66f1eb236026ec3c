"""Rows as a table for people."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any, NamedTuple

_GAP = 2
_LEAST_WIDTH = 8  # minimum width of an elastic column


class TableColumn(NamedTuple):
    """A heading, and the text of a row's cell; "-" for unknown values."""

    title: str
    cell: Callable[[Mapping[str, Any]], str]
    right: bool = False
    elastic: bool = False  # may be truncated on a narrow terminal
    gives_way: int = 0  # columns with larger values are left out first; 0: never
    colour: Callable[[Mapping[str, Any]], str] | None = None  # SGR code of a cell, or ""


def add_zone(parser: argparse.ArgumentParser) -> None:
    """Add the option for the time zone: `zone`, None for the local one."""
    parser.add_argument("--utc", dest="zone", action="store_const", const=UTC,
                        help="show times in UTC (default: local time)")  # fmt: skip


def terminal_width() -> int | None:
    """Characters per line; None if the output is not a terminal, and nothing is truncated."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def in_colour() -> bool:
    """Whether to use colours: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def written(
    columns: Sequence[TableColumn],
    rows: Sequence[Mapping[str, Any]],
    width: int | None = None,
    *,
    colours: bool = False,
) -> str:
    """Lines of equal columns, two spaces apart, in at most `width` characters where one is given.

    What does not fit is cut short or left out, by what the columns say of themselves.
    """
    cells = [[_plain(column.cell(row)) for column in columns] for row in rows]
    kept = fitting(columns, cells, width)
    lines = [_line([column.title for column in columns], columns, kept)]
    for row, texts in zip(rows, cells, strict=True):
        paint = [column.colour(row) if colours and column.colour else "" for column in columns]
        lines.append(_line(texts, columns, kept, paint))
    return "\n".join(lines)


def fitting(
    columns: Sequence[TableColumn], cells: Sequence[Sequence[str]], most: int | None
) -> Mapping[int, int]:
    """The displayed columns with their widths."""
    widths = [max((len(line[place]) for line in cells), default=0) for place in range(len(columns))]
    widths = [max(each, len(c.title)) for each, c in zip(widths, columns, strict=True)]
    kept = dict(enumerate(widths))

    def excess() -> int:
        return 0 if most is None else sum(kept.values()) + _GAP * (len(kept) - 1) - most

    while excess() > 0:
        elastic = [each for each in kept if columns[each].elastic and kept[each] > _LEAST_WIDTH]
        leaving = [each for each in kept if columns[each].gives_way]
        if elastic:
            widest = max(elastic, key=lambda each: kept[each])
            kept[widest] = max(_LEAST_WIDTH, kept[widest] - excess())
        elif leaving:
            del kept[max(leaving, key=lambda each: columns[each].gives_way)]
        else:
            break
    spare = -excess() if most is not None else 0
    for each in kept:  # distribute the width of columns that were left out
        if columns[each].elastic and spare > 0:
            grown = min(widths[each], kept[each] + spare)
            spare -= grown - kept[each]
            kept[each] = grown
    return kept


def _line(
    texts: Sequence[str],
    columns: Sequence[TableColumn],
    kept: Mapping[int, int],
    paint: Sequence[str] = (),
) -> str:
    cells = []
    for place, width in kept.items():
        text = texts[place]
        if len(text) > width:
            text = f"{text[: width - 1]}…"
        placed = text.rjust(width) if columns[place].right else text.ljust(width)
        colour = paint[place] if paint else ""
        cells.append(f"\x1b[{colour}m{placed}\x1b[0m" if colour else placed)
    return (" " * _GAP).join(cells).rstrip()


def _plain(text: str) -> str:
    """The text without characters that move the cursor: users choose the names of jobs."""
    spaced = (" " if each.isspace() else each for each in text)
    return "".join(each if each.isprintable() else "?" for each in spaced)


def show(text: str) -> None:
    """Print the table, whatever the terminal's encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))

"""Rows as a table for people."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any, NamedTuple


class TableColumn(NamedTuple):
    """A heading, and the text of a row's cell; "-" stands for what is not known."""

    title: str
    cell: Callable[[Mapping[str, Any]], str]
    right: bool = False


def add_zone(parser: argparse.ArgumentParser) -> None:
    """The option that decides in which zone times are shown: `zone`, None for the local one."""
    parser.add_argument("--utc", dest="zone", action="store_const", const=UTC,
                        help="show times in UTC (default: local time)")  # fmt: skip


def written(columns: Sequence[TableColumn], rows: Sequence[Mapping[str, Any]]) -> str:
    """Lines of equal columns, two spaces apart."""
    cells = [[column.title for column in columns]]
    cells += [[_plain(column.cell(row)) for column in columns] for row in rows]
    widths = [max(len(line[n]) for line in cells) for n in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in cells
    )


def _plain(text: str) -> str:
    """Without what would move the cursor of a terminal: users choose the names of jobs."""
    return "".join(each if each.isprintable() else "?" for each in text)


def show(text: str) -> None:
    """Print it, whatever the terminal's encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))

"""Documentation pages of options, generated from the options' dataclasses."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from batchjob.runtime.settings import Named, named, shown

HEAD = ("Option", "Default", "Meaning")


def made_by(module: str) -> str:
    """The comment that says the page is generated."""
    return f"<!-- Made by `python -m {module}`; not to be edited by hand. -->"


def how_to_set(option: str, value: str) -> str:
    """How to set an option, shown by this example."""
    section, _, key = option.partition(".")
    return "\n\n".join(
        (
            f"Each option is a flag (`--{option}={value}`) and a key of the file that "
            "`--config.file` names, nested at the dots or not:",
            f"```yaml\n{section}:\n  {key}: {value}\n```",
            "Flags take precedence over the file. Boolean options take no value as "
            "flags (`--NAME`, `--no-NAME`), and `true` or `false` in the file. "
            "Repeatable options are lists in the file. Durations are `90`, `90s`, "
            "`5m` or "
            "`1h30m`.",
        )
    )


def section_of(title: str, sections: Mapping[str, type[Any]]) -> list[str]:
    """A heading and the options of some sections; empty if they have none."""
    rows = [_row(each) for each in named(sections)]
    return [f"## {title}", table(HEAD, rows)] if rows else []


def _row(each: Named) -> tuple[str, ...]:
    notes = "" if each.spec.flag else " Only in the file."
    return f"`{each.name}`", shown(each), each.spec.help + notes


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(pages: Mapping[str, Callable[[], str]]) -> None:
    """Write the pages into the directory given on the command line, or into docs/."""
    directory = sys.argv[1] if len(sys.argv) > 1 else "docs"
    for name, page in pages.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(page())

"""Writes docs/metrics.md and docs/options.md from the tables that the code itself uses.

python -m batchjob_exporter.document [DIRECTORY]
"""

import os
import sys
from collections.abc import Iterable, Iterator

from batchjob.settings import Named, named, shown
from batchjob_exporter import exporter, self_metrics
from batchjob_exporter.options import parser, sections
from collectors.collector import COLLECTORS
from collectors.metric import Metric

_MADE = "<!-- Made by `python -m batchjob_exporter.document`; not to be edited by hand. -->"


def metrics_page() -> str:
    """All families the exporter may serve, by collector."""
    parts = [
        "# Metrics",
        _MADE,
        "Every family that the exporter may serve, by the collector it comes from. Numbers that "
        "could not be read are absent: no sample stands for an unknown value.",
    ]
    for entry in COLLECTORS:
        state = "on" if entry.enabled else "off"
        parts += [
            f"## {entry.name}",
            f"{entry.description} By default {state}: `--collector.{entry.name}`, "
            f"`--no-collector.{entry.name}`.",
            _metric_table(entry.load().METRICS),
        ]
    parts += [
        "## The exporter itself",
        "With every scrape, whatever `collect[]` says. `process_*` as in all Prometheus programs, "
        "unless `--web.disable-exporter-metrics` is given.",
        _metric_table((*exporter.METRICS, *self_metrics.METRICS)),
    ]
    return "\n\n".join(parts) + "\n"


def options_page() -> str:
    """All flags and keys of the exporter."""
    parts = [
        "# Options of the exporter",
        _MADE,
        "Each option is a flag (`--web.max-requests=10`) and a key of the file that "
        "`--config.file` names, nested at the dots or not:",
        "```yaml\nweb:\n  max-requests: 10\ncollector.node: false\n```",
        "A flag beats the file, and the file the default. Options that are switches take no value "
        "as flags (`--collector.node`, `--no-collector.node`), and `true` or `false` in the file. "
        "Options that may be repeated are lists in the file. Durations are `90`, `90s`, `5m` or "
        "`1h30m`.",
        "## Actions",
        _table(("Flag", "Meaning"), _actions()),
        "## Collectors",
        _table(("Option", "Default", "Meaning"), _switches()),
    ]
    collectors = {f"collector.{entry.name}" for entry in COLLECTORS}
    for section, options in sections().items():
        rows = [_option_row(each) for each in named({section: options})]
        if rows:
            title = section.removeprefix("collector.")
            title = f"Collector {title}" if section in collectors else title
            parts += [f"## {title}", _table(("Option", "Default", "Meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _actions() -> Iterator[tuple[str, ...]]:
    """Flags that are no options of a file: those whose name has no section."""
    switches = {name for name, *_ in _switches()}
    options = {f"`{each.name}`" for each in named(sections())}
    for action in parser()._actions:  # argparse has no other way to list them
        name = action.option_strings[-1]
        if f"`{name[2:]}`" not in switches | options and not name.startswith("--no-"):
            yield f"`{name}`", str(action.help).split(" (default")[0]


def _switches() -> Iterator[tuple[str, ...]]:
    yield (
        "`collector.disable-defaults`",
        "off",
        "Run only the collectors that are switched on by name.",
    )
    for entry in COLLECTORS:
        yield f"`collector.{entry.name}`", "on" if entry.enabled else "off", entry.description


def _option_row(each: Named) -> tuple[str, ...]:
    notes = "" if each.spec.flag else " Only in the file."
    return f"`{each.name}`", shown(each), each.spec.help + notes


def _metric_table(metrics: Iterable[Metric]) -> str:
    rows = (
        (f"`{metric.name}`", metric.type, ", ".join(metric.labels), metric.help)
        for metric in metrics
    )
    return _table(("Metric", "Type", "Labels", "Definition"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES = {"metrics.md": metrics_page, "options.md": options_page}


def main() -> None:
    """Write the pages into the directory given, or into docs/."""
    directory = sys.argv[1] if len(sys.argv) > 1 else "docs"
    for name, page in PAGES.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(page())


if __name__ == "__main__":
    main()

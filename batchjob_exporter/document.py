"""Generates docs/metrics.md and docs/options.md from the tables that the code uses.

python -m batchjob_exporter.document [DIRECTORY]
"""

from collections.abc import Iterable, Iterator

from batchjob.option_page import generated_comment, options_section, table, usage_text, write
from batchjob.runtime.settings import options_of
from batchjob_exporter import exporter, self_metrics
from batchjob_exporter.options import parser, sections
from collectors.collector import COLLECTORS
from collectors.metric import Metric

_GENERATED_COMMENT = generated_comment("batchjob_exporter.document")


def metrics_page() -> str:
    parts = [
        "# Metrics",
        _GENERATED_COMMENT,
        "Metric families of the exporter, by collector. A value that could not be "
        "read is absent: no sample stands for an unknown value.",
    ]
    for entry in COLLECTORS:
        state = "on" if entry.enabled else "off"
        parts += [
            f"## {entry.name}",
            f"{entry.description} By default {state}: `--collector.{entry.name}`, "
            f"`--no-collector.{entry.name}`.",
            _metric_table(entry.load().metrics),
        ]
    parts += [
        "## The exporter itself",
        "Part of every scrape, whatever `collect[]` selects. The `process_*` metrics "
        "of Prometheus client libraries are added unless "
        "`--web.disable-exporter-metrics` is given.",
        _metric_table((*exporter.METRICS, *self_metrics.SELF_METRICS)),
    ]
    return "\n\n".join(parts) + "\n"


def options_page() -> str:
    parts = [
        "# Options of the exporter",
        _GENERATED_COMMENT,
        usage_text("web.max-requests", "10"),
        "## Actions",
        table(("Flag", "Meaning"), _action_rows()),
        "## Collectors",
        table(("Option", "Default", "Meaning"), _collector_switch_rows()),
    ]
    collectors = {f"collector.{entry.name}" for entry in COLLECTORS}
    for section, options in sections().items():
        title = section.removeprefix("collector.")
        title = f"Collector {title}" if section in collectors else title
        parts += options_section(title, {section: options})
    return "\n\n".join(parts) + "\n"


def _action_rows() -> Iterator[tuple[str, ...]]:
    """Flags that are not options of the file: those whose name has no section."""
    switches = {name for name, *_ in _collector_switch_rows()}
    options = {f"`{each.name}`" for each in options_of(sections())}
    for action in parser()._actions:  # argparse has no public way to list them
        name = action.option_strings[-1]
        if f"`{name[2:]}`" not in switches | options and not name.startswith("--no-"):
            yield f"`{name}`", str(action.help).split(" (default")[0]


def _collector_switch_rows() -> Iterator[tuple[str, ...]]:
    yield ("`collector.disable-defaults`", "off", "Run only collectors that are enabled by name.")
    for entry in COLLECTORS:
        yield f"`collector.{entry.name}`", "on" if entry.enabled else "off", entry.description


def _metric_table(metrics: Iterable[Metric]) -> str:
    rows = (
        (f"`{metric.name}`", metric.type, ", ".join(metric.labels), metric.help)
        for metric in metrics
    )
    return table(("Metric", "Type", "Labels", "Definition"), rows)


PAGES = {"metrics.md": metrics_page, "options.md": options_page}


if __name__ == "__main__":
    write(PAGES)

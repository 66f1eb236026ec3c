"""Generates docs/stats_db_options.md from the poller's options.

python -m batchjob_stats_db.document [DIRECTORY]
"""

from batchjob.option_page import generated_comment, options_section, usage_text, write
from batchjob.schedulers.registry import SOURCES
from batchjob_stats_db.poller.options import SECTIONS


def options_page() -> str:
    """All flags and keys of the poller, and the keys of each source of records."""
    parts = [
        "# Options of the poller",
        generated_comment("batchjob_stats_db.document"),
        usage_text("poll.interval", "1m"),
        *(part for name, cls in SECTIONS.items() for part in options_section(name, {name: cls})),
        "# Options of a cluster's sources",
        "Each cluster of the list `clusters` has a `name` and, under `sources`, at least one "
        "source of records with keys of its own, which are available only in the "
        "file. It may also have its own `tsdb` with the options above:",
        "```yaml\nclusters:\n  - name: alpha\n    sources:\n      sacct: {timeout: 5m}\n"
        '      sacctmgr: {}\n    tsdb: {url: "http://prometheus-alpha:9090"}\n```',
    ]
    for name, entry in SOURCES.items():
        parts += options_section(f"{name}: {entry.description}", {"": entry.load().options})
    return "\n\n".join(parts) + "\n"


PAGES = {"stats_db_options.md": options_page}

if __name__ == "__main__":
    write(PAGES)

"""Generates docs/server_options.md from the server's options dataclasses.

python -m batchjob_stats_server.document [DIRECTORY]
"""

from batchjob.option_page import how_to_set, made_by, section_of, write
from batchjob_stats_server.options import SECTIONS


def options_page() -> str:
    """All flags and keys of the server."""
    parts = [
        "# Options of the server",
        made_by("batchjob_stats_server.document"),
        how_to_set("web.threads", "32"),
        *(part for name, cls in SECTIONS.items() for part in section_of(name, {name: cls})),
    ]
    return "\n\n".join(parts) + "\n"


PAGES = {"server_options.md": options_page}

if __name__ == "__main__":
    write(PAGES)

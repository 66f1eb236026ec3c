"""Generates docs/server_options.md from the server's options dataclasses.

python -m batchjob_stats_server.document [DIRECTORY]
"""

from batchjob.option_page import generated_comment, options_section, usage_text, write
from batchjob_stats_server.options import SECTIONS


def options_page() -> str:
    parts = [
        "# Options of the server",
        generated_comment("batchjob_stats_server.document"),
        usage_text("web.threads", "32"),
        *(part for name, cls in SECTIONS.items() for part in options_section(name, {name: cls})),
    ]
    return "\n\n".join(parts) + "\n"


PAGES = {"server_options.md": options_page}

if __name__ == "__main__":
    write(PAGES)

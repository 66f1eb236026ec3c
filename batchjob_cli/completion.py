"""`batchjob completion`: prints a completion script, as each new shell of a user may ask for it.

So that of `batchjob` itself is prepared: making it loads every command. `tests.regenerate` writes
it.
"""

import sys
from pathlib import Path

from batchjob.runtime.settings import Parser

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = {
    "batchjob": "batchjob_cli.main",
    "batchjob_exporter": "batchjob_exporter.main",
    "batchjob_helper": "batchjob_exporter.helper",
    "batchjob_stats_db": "batchjob_stats_db.main",
    "batchjob_stats_server": "batchjob_stats_server.main",
}
"""Program -> module with its `main`, and its COMMANDS where each is a module of its own."""


def prepared(shell: str) -> Path:
    """The file of the prepared script."""
    return Path(__file__).parent / "completions" / f"batchjob.{shell}"


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="batchjob completion",
        allow_abbrev=False,
        description="Prints a completion script for a shell. "
        'For bash: eval "$(batchjob completion bash)".',
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.add_argument("--program", choices=tuple(PROGRAMS), default="batchjob",
                      help="program to complete (default: batchjob)")  # fmt: skip
    given = parser.parse_args(arguments)
    if given.program == "batchjob":
        sys.stdout.write(prepared(given.shell).read_text(encoding="utf-8"))
        return 0
    from batchjob_cli.manuals import completions

    module = PROGRAMS[given.program]
    sys.stdout.write(completions({given.program: module}, given.shell)[given.program])
    return 0

"""`batchjob completion` and `batchjob manual`: what packages install, for other installations."""

import sys

from batchjob.runtime.logins import expand_home
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import Parser, SettingsError
from batchjob_cli import manuals


def run(arguments: list[str]) -> int:
    """Print a completion script; the exit status. Raises SettingsError."""
    parser = Parser(
        prog="batchjob completion",
        allow_abbrev=False,
        description="Prints a completion script for a shell. "
        'For bash: eval "$(batchjob completion bash)".',
    )
    parser.add_argument("shell", choices=manuals.SHELLS)
    parser.add_argument("--program", choices=tuple(manuals.PROGRAMS), default="batchjob",
                      help="program to complete (default: batchjob)")  # fmt: skip
    given = parser.parse_args(arguments)
    module = manuals.PROGRAMS[given.program]
    sys.stdout.write(manuals.completions({given.program: module}, given.shell)[given.program])
    return 0


def manual(arguments: list[str]) -> int:
    """Print a manual page, or write all of them; the exit status. Raises SettingsError."""
    parser = Parser(
        prog="batchjob manual",
        allow_abbrev=False,
        description="Prints a manual page, for man -l -, or writes all pages into a directory.",
    )
    parser.add_argument("program", nargs="?", choices=tuple(manuals.PROGRAMS), default="batchjob",
                      help="program to describe (default: batchjob)")  # fmt: skip
    parser.add_argument("--directory", default="", metavar="DIRECTORY",
                      help="write all pages there, such as ~/.local/share/man/man1")  # fmt: skip
    given = parser.parse_args(arguments)
    if not given.directory:
        (text,) = manuals.manuals({given.program: manuals.PROGRAMS[given.program]}).values()
        sys.stdout.write(text)
        return 0
    try:
        target = expand_home(given.directory)
        target.mkdir(parents=True, exist_ok=True)
        for name, text in manuals.manuals(manuals.PROGRAMS).items():
            (target / name).write_text(text, encoding="utf-8")
            print(target / name)
    except OSError as error:
        raise SettingsError(f"--directory: {error.filename}: {reason(error)}") from error
    return 0

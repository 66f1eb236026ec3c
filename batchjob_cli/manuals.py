"""Manual pages and shell completion, generated from the command lines.

Packages install them; `batchjob completion` and `batchjob manual` are for other installations.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import shtab
from argparse_manpage.manpage import Manpage

from batchjob import __version__
from batchjob.runtime.logins import expand_home
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import Parser, SettingsError

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = {
    "batchjob": "batchjob_cli.main",
    "batchjob_exporter": "batchjob_exporter.main",
    "batchjob_helper": "batchjob_exporter.helper",
    "batchjob_stats_db": "batchjob_stats_db.main",
    "batchjob_stats_server": "batchjob_stats_server.main",
}
"""Program -> module with its `main`, and its COMMANDS where each is a module of its own."""


class _ParserFound(Exception):
    """The parser that a command was about to use."""


def parser_of(main: Callable[[list[str]], object]) -> argparse.ArgumentParser:

    def raise_parser(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise _ParserFound(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", raise_parser):
        try:
            main(["--help"])
        except _ParserFound as caught:
            found: argparse.ArgumentParser = caught.args[0]
            return found
    raise AssertionError(f"{main}: it has not read its command line")


def _parser(name: str, module: str) -> argparse.ArgumentParser:
    program = importlib.import_module(module)
    if not hasattr(program, "COMMANDS"):
        return parser_of(program.main)
    parser = argparse.ArgumentParser(
        name, description="Resource usage, energy and emissions of batch jobs."
    )
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in program.COMMANDS:
        try:
            whole = parser_of(command.load())
        except ModuleNotFoundError:  # an extra that is not installed here
            continue
        commands.add_parser(
            command.name,
            parents=[whole],
            add_help=False,
            help=command.description,
            description=whole.description,
        )
    return parser


def manuals(commands: Mapping[str, str]) -> dict[str, str]:
    """File name -> page of section 1, for each command and its module."""
    return {f"{name}.1": _manual(_parser(name, module)) for name, module in commands.items()}


def _manual(parser: argparse.ArgumentParser) -> str:
    description = parser.description or ""
    data: dict[str, Any] = {
        "project_name": "batchjob",
        "version": __version__,
        "prog": parser.prog,
        "description": description.partition(". ")[0].rstrip("."),
        "manual_title": "batchjob",
        "authors": [],
        "url": None,
    }
    return str(Manpage(parser, _data=data))


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    """Let shells complete files and directories for arguments that are paths."""
    kinds = {"FILE": shtab.FILE, "DIRECTORY": shtab.DIRECTORY}
    for action in parser._actions:  # argparse has no public API for this
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_paths(command)
        elif isinstance(action.metavar, str) and action.metavar in kinds:
            # shtab reads this attribute, which argparse does not have.
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]


def completions(commands: Mapping[str, str], shell: str) -> dict[str, str]:
    """Command -> completion script for one of shtab.SUPPORTED_SHELLS."""
    scripts = {}
    for name, module in commands.items():
        parser = _parser(name, module)
        _complete_paths(parser)
        scripts[name] = shtab.complete(parser, shell=shell)
    return scripts


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="batchjob completion", allow_abbrev=False,
        description="Prints a completion script for a shell. "
        "For bash: eval \"$(batchjob completion bash)\".",
    )  # fmt: skip
    parser.add_argument("shell", choices=SHELLS)
    parser.add_argument("--program", choices=tuple(PROGRAMS), default="batchjob",
                      help="program to complete (default: batchjob)")  # fmt: skip
    given = parser.parse_args(arguments)
    module = PROGRAMS[given.program]
    sys.stdout.write(completions({given.program: module}, given.shell)[given.program])
    return 0


def manual(arguments: list[str]) -> int:
    """Print a manual page, or write all of them; the exit status. Raises SettingsError."""
    parser = Parser(
        prog="batchjob manual", allow_abbrev=False,
        description="Prints a manual page, for man -l -, or writes all pages into a directory.",
    )  # fmt: skip
    parser.add_argument("program", nargs="?", choices=tuple(PROGRAMS), default="batchjob",
                      help="program to describe (default: batchjob)")  # fmt: skip
    parser.add_argument("--directory", default="", metavar="DIRECTORY",
                      help="write all pages there, such as ~/.local/share/man/man1")  # fmt: skip
    given = parser.parse_args(arguments)
    if not given.directory:
        (text,) = manuals({given.program: PROGRAMS[given.program]}).values()
        sys.stdout.write(text)
        return 0
    try:
        target = expand_home(given.directory)
        target.mkdir(parents=True, exist_ok=True)
        for name, text in manuals(PROGRAMS).items():
            (target / name).write_text(text, encoding="utf-8")
            print(target / name)
    except OSError as error:
        raise SettingsError(f"--directory: {error.filename}: {reason(error)}") from error
    return 0

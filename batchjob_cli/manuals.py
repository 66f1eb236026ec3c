"""Manual pages and shell completion, generated from the command lines.

Packages install them; `batchjob completion` and `batchjob manual` are for other installations.
"""

import argparse
import contextlib
import importlib
import shutil
import subprocess
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
from batchjob_cli.completion import PROGRAMS, SHELLS, prepared


def parser_of(main: Callable[[list[str]], object]) -> argparse.ArgumentParser:
    """The parser with which a command was about to read its command line."""
    parse = mock.create_autospec(argparse.ArgumentParser.parse_known_args, side_effect=SystemExit)
    patch = mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse)
    with patch, contextlib.suppress(SystemExit):
        main(["--help"])
    found: argparse.ArgumentParser = parse.call_args.args[0]
    return found


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


_JOBS_COMMAND = (
    "batchjob jobs --limit 200 --columns jobid,name --format csv 2>/dev/null | tail -n +2 "
    # A shell would evaluate what other characters of a name mean.
    "| tr , '\\n' | grep -xE '[A-Za-z0-9._-]+'"
)
_JOBS_FUNCTIONS = {
    "bash": f'_batchjob_jobs() {{ compgen -W "$({_JOBS_COMMAND})" -- "$1"; }}',
    "zsh": f"_batchjob_jobs() {{ compadd -- $({_JOBS_COMMAND}) }}",
    "fish": f"function _batchjob_jobs; {_JOBS_COMMAND}; end",
}
_JOBS = {"bash": "_batchjob_jobs", "zsh": "_batchjob_jobs", "fish": "(_batchjob_jobs)"}


def _complete_values(parser: argparse.ArgumentParser) -> None:
    """Let shells complete files, directories, and ids and names of jobs."""
    kinds = {"FILE": shtab.FILE, "DIRECTORY": shtab.DIRECTORY, "JOB": _JOBS, "RUN": _JOBS}
    for action in parser._actions:  # argparse has no public API for this
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_values(command)
        elif isinstance(action.metavar, str) and action.metavar in kinds:
            # shtab reads this attribute, which argparse does not have.
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]


def completions(commands: Mapping[str, str], shell: str) -> dict[str, str]:
    """Command -> completion script for one of shtab.SUPPORTED_SHELLS."""
    scripts = {}
    for name, module in commands.items():
        parser = _parser(name, module)
        _complete_values(parser)
        scripts[name] = shtab.complete(parser, shell=shell, preamble=_JOBS_FUNCTIONS[shell])
    return scripts


def manual(arguments: list[str]) -> int:
    """Print a manual page, or write all of them; the exit status. Raises SettingsError."""
    parser = Parser(
        prog="batchjob manual",
        allow_abbrev=False,
        description="Prints a manual page, for man -l -, or writes all pages into a directory.",
    )
    parser.add_argument("program", nargs="?", choices=tuple(PROGRAMS), default="batchjob",
                      help="program to describe (default: batchjob)")  # fmt: skip
    parser.add_argument("--directory", default="", metavar="DIRECTORY",
                      help="write all pages there, such as ~/.local/share/man/man1")  # fmt: skip
    given = parser.parse_args(arguments)
    if not given.directory:
        (text,) = manuals({given.program: PROGRAMS[given.program]}).values()
        man = shutil.which("man")
        if man and sys.stdout.isatty():
            argv = [man, "-l", "-"]
            return subprocess.run(argv, input=text, text=True, check=False).returncode  # noqa: S603 (no shell)
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


if __name__ == "__main__":
    for shell in SHELLS:
        scripts = completions({"batchjob": PROGRAMS["batchjob"]}, shell)
        prepared(shell).write_text(scripts["batchjob"], encoding="utf-8")

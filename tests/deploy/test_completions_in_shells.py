"""Completions as offered by the shells themselves: bash, zsh and fish."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from batchjob_cli import completion, manuals
from tests.helpers.processes import run

ROOT = Path(__file__).parents[2]

BASH = """
source {script}
COMP_LINE={line}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_batchjob batchjob "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

# A shell on a terminal of its own; what completion adds is written to a file. Keys are read one
# after the other, so the last line of input is run when the completion is done. Before the shell's
# editor begins to read, ^U would make the terminal itself forget the line: `stty kill undef`.
ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
until_seen() {{ local all= piece; while zpty -r z piece; do all+=$piece; [[ $all = *$1* ]] && return; done }}
zpty -w z 'stty kill undef; PROMPT=; autoload -Uz compinit && compinit -D -u; source {script}; compdef _shtab_batchjob batchjob'
zpty -w z 'compadd() {{ local -a all; builtin compadd -A all "$@"; print -rl -- $all >>{found}; builtin compadd "$@" }}'
zpty -w z 'print rea""dy'; until_seen ready
zpty -n -w z {line}$'\\t\\C-u'
zpty -w z 'print do""ne'; until_seen done
"""  # noqa: E501 (a command of zsh is one line)

FISH = "source {script}; complete -C {line}"


def shell_completions(shell, line, folder):
    """What a shell offers after `line`."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script, found = folder / f"batchjob.{shell}", folder / "found"
    found.unlink(missing_ok=True)
    scripts = manuals.completions({"batchjob": completion.PROGRAMS["batchjob"]}, shell)
    script.write_text(scripts["batchjob"])
    words = " ".join(shlex.quote(word) for word in line.split(" "))
    shell_input = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(
        script=script, found=found, line=shlex.quote(line), words=words
    )
    no_startup_files = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["-N"]}[shell]
    done = run(
        [shell, *no_startup_files, "-c", shell_input],
        timeout=300,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "TERM": "dumb"},
    )
    assert done.returncode == 0, done.stderr
    text = found.read_text() if shell == "zsh" and found.exists() else done.stdout
    return {each.split("\t")[0].strip() for each in text.splitlines() if each.strip()}


SHELLS = pytest.mark.parametrize("shell", completion.SHELLS)


@SHELLS
def test_commands_are_completed(shell, tmp_path):
    assert shell_completions(shell, "batchjob jo", tmp_path) == {"job", "jobs"}
    assert "completion" in shell_completions(shell, "batchjob com", tmp_path)


@SHELLS
def test_options_of_command_are_completed(shell, tmp_path):
    assert shell_completions(shell, "batchjob jobs --pe", tmp_path) == {"--pending"}
    assert "--demo" in shell_completions(shell, "batchjob up --de", tmp_path)


@SHELLS
def test_choices_of_option_are_completed(shell, tmp_path):
    assert shell_completions(shell, "batchjob completion ", tmp_path) == {"bash", "zsh", "fish"}
    assert shell_completions(shell, "batchjob jobs --format ", tmp_path) == {"table", "json", "csv"}


@SHELLS
def test_file_names_are_completed(shell, tmp_path):
    (tmp_path / "tokens.txt").write_text("secret")
    (tmp_path / "folder").mkdir()
    assert "tokens.txt" in shell_completions(shell, "batchjob jobs --token-file tok", tmp_path)
    assert "folder" in {
        word.rstrip("/") for word in shell_completions(shell, "batchjob jobs --data fol", tmp_path)
    }


@SHELLS
def test_names_of_jobs_are_completed(shell, tmp_path, monkeypatch):
    command = tmp_path / "bin" / "batchjob"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m batchjob_cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("BATCHJOB_DATA", str(tmp_path / "data"))
    for name in ("zebra", "ze $(touch evaluated)"):
        assert run([command, "run", "--name", name, "--", "true"], timeout=300).returncode == 0
    assert shell_completions(shell, "batchjob job ze", tmp_path) == {"zebra"}
    assert not (tmp_path / "evaluated").exists()

"""Programs that print recorded output, under the names of other programs."""

from collections.abc import Mapping
from pathlib import Path


def install(directory: Path, name: str, answers: Mapping[str, bytes]) -> Path:
    """Create the program; `answers` is its output by arguments."""
    lines = ["#!/bin/sh", 'case "$*" in']
    for number, (arguments, answer) in enumerate(answers.items()):
        file = directory / f"{name}.{number}"
        file.write_bytes(answer)
        lines.append(f"*'{arguments}'*) cat {file};;")
    lines += ["*) echo \"unrecognized option '$*'\" >&2; exit 1;;", "esac"]
    program = directory / name
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    return program

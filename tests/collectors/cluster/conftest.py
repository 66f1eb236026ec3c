"""Recorded output of schedulers, and fake commands that print it."""

import lzma
from pathlib import Path

import pytest

from tests.simulated import commands

FIXTURES = Path(__file__).parents[2] / "fixtures" / "cluster"


@pytest.fixture
def recorded_output():
    """Function that reads a recorded file."""

    def read(name: str) -> bytes:
        path = FIXTURES / name
        if path.exists():
            return path.read_bytes()
        return lzma.decompress((FIXTURES / f"{name}.xz").read_bytes())

    return read


@pytest.fixture
def install_command(tmp_path, monkeypatch):
    """Function that puts a fake command first in PATH; `answers` maps arguments to output."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")

    def install(name: str, **answers: bytes) -> Path:
        return commands.install(directory, name, answers)

    return install

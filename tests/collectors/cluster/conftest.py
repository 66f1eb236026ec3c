"""Recorded answers, and programs that give them under the schedulers' names."""

import lzma
from pathlib import Path

import pytest

from tests.simulated import commands

FIXTURES = Path(__file__).parents[2] / "fixtures" / "cluster"


@pytest.fixture
def recorded():
    """Bytes of a recorded answer."""

    def read(name: str) -> bytes:
        path = FIXTURES / name
        if path.exists():
            return path.read_bytes()
        return lzma.decompress((FIXTURES / f"{name}.xz").read_bytes())

    return read


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put a program into PATH, in front of all others; `answers` by the arguments they need."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")

    def install(name: str, **answers: bytes) -> Path:
        return commands.install(directory, name, answers)

    return install

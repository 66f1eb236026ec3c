"""The README's first command shows all that it promises, soon."""

import os
from pathlib import Path

import pytest

from tests.e2e.first_command import run_first_command

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="numbers of live jobs need a cgroup"),
]

CPU_SECONDS = 15.0  # beside other work, which makes CPUs slower; alone it takes half of that


def test_first_command_shows_jobs_of_all_kinds(tmp_path: Path) -> None:
    assert run_first_command(tmp_path).cpu_seconds < CPU_SECONDS

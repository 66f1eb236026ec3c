"""Commands that take long show a bar on a terminal, and nothing of it in a pipe."""

import json
import os
import pty
import subprocess
import sys

import pytest

from batchjob_stats_db.main import main
from tests.batchjob_stats_db.admin.test_transfer_lines import LINE

JOBS = 3000


def complaints(*arguments, terminal):
    """What `batchjob_stats_db` writes to standard error, a terminal or a pipe."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    argv = [sys.executable, "-m", "batchjob_stats_db", *map(str, arguments)]
    with subprocess.Popen(argv, stderr=theirs, stdout=subprocess.DEVNULL) as running:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 4096):
                said += piece
        except OSError:  # EIO: nobody has the terminal any more
            pass
        os.close(ours)
    assert running.returncode == 0, said
    return said.decode()


@pytest.fixture
def file_of_jobs(tmp_path):
    path = tmp_path / "jobs.jsonl"
    lines = (json.dumps({**LINE, "jobid": str(number)}) for number in range(JOBS))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_bar_is_for_terminals(tmp_path, file_of_jobs, terminal):
    url = f"--db.url=sqlite:///{tmp_path}/jobs.db"
    migrated = complaints(url, "migrate", terminal=terminal)
    imported = complaints(url, "import", file_of_jobs, terminal=terminal)
    for said, bar in ((migrated, "\rmigrate [#"), (imported, f"\r{file_of_jobs} [#")):
        assert (bar in said) == terminal, said
        assert ("\x1b" in said) == terminal, said
    assert migrated.endswith("\r\x1b[K") == terminal  # what is printed next has a line of its own
    assert f"{JOBS} jobs" in imported


def test_short_work_in_one_piece_says_nothing_of_its_time(tmp_path):
    url = f"--db.url=sqlite:///{tmp_path}/jobs.db"
    assert main([url, "migrate"]) == 0
    assert complaints(url, "backup", tmp_path / "copy.db", terminal=False) == ""

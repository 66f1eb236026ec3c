"""Long commands show a progress bar on a terminal, but not in a pipe."""

import json
import os
import pty
import subprocess
import sys

import pytest

from batchjob_stats_db.main import main
from tests.batchjob_stats_db.admin.test_import_lines import LINE

JOBS = 3000


def run_for_stderr(*arguments, terminal):
    """Run `batchjob_stats_db`; what it wrote to standard error, a terminal or a pipe."""
    read_end, write_end = pty.openpty() if terminal else os.pipe()
    argv = [sys.executable, "-m", "batchjob_stats_db", *map(str, arguments)]
    with subprocess.Popen(argv, stderr=write_end, stdout=subprocess.DEVNULL) as process:
        os.close(write_end)
        written = b""
        try:
            while chunk := os.read(read_end, 4096):
                written += chunk
        except OSError:  # EIO: the process closed the terminal
            pass
        os.close(read_end)
    assert process.returncode == 0, written
    return written.decode()


@pytest.fixture
def jobs_file(tmp_path):
    path = tmp_path / "jobs.jsonl"
    lines = (json.dumps({**LINE, "jobid": str(number)}) for number in range(JOBS))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_progress_bar_is_shown_only_on_a_terminal(tmp_path, jobs_file, terminal):
    url = f"--db.url=sqlite:///{tmp_path}/jobs.db"
    migrate_stderr = run_for_stderr(url, "migrate", terminal=terminal)
    import_stderr = run_for_stderr(url, "import", jobs_file, terminal=terminal)
    for written, bar in ((migrate_stderr, "\rmigrate [#"), (import_stderr, f"\r{jobs_file} [#")):
        assert (bar in written) == terminal, written
        assert ("\x1b" in written) == terminal, written
    # The next output starts on an empty line.
    assert migrate_stderr.endswith("\r\x1b[K") == terminal
    assert f"{JOBS} jobs" in import_stderr


def test_elapsed_time_is_not_shown_in_a_pipe(tmp_path):
    url = f"--db.url=sqlite:///{tmp_path}/jobs.db"
    assert main([url, "migrate"]) == 0
    assert run_for_stderr(url, "backup", tmp_path / "copy.db", terminal=False) == ""

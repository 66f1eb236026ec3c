"""Lines that cannot be imported, and how far a long import or migration has got."""

import io
import json
import subprocess
import sys

import pytest

from batchjob_stats_db.admin.progress import Progress
from batchjob_stats_db.main import main

LINE = {
    "cluster": "c", "jobid": "1", "submit_time": 1, "state": "COMPLETED", "state_word": "COMPLETED",
    "source": "sacct",
}  # fmt: skip


@pytest.fixture
def url(tmp_path):
    url = f"--db.url=sqlite:///{tmp_path}/jobs.db"
    assert main([url, "migrate"]) == 0
    return url


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ({**LINE, "jobid": None}, "line 2: jobid: expected text, got None"),
        ({k: v for k, v in LINE.items() if k != "jobid"}, "line 2: the key jobid is missing"),
        ({**LINE, "nods": []}, "line 2: unknown key nods; did you mean nodes?"),
        ({**LINE, "nodes": [{}]}, "line 2: the key node is missing"),
        ({**LINE, "submit_time": "x"}, "line 2: submit_time: expected a whole number, got 'x'"),
        ({**LINE, "submit_time": -(10**30)}, "line 2: submit_time: expected a number of 64 bits"),
        ({**LINE, "state": "FLYING"}, "line 2: state: expected one of PENDING, RUNNING,"),
        ({**LINE, "usage": [{}]}, "line 2: usage: the key source is missing"),
        ({**LINE, "usage": {}}, "line 2: usage: expected a list of objects, got {}"),
        ({**LINE, "emissions": [{"provider": [], "grams": 1}]}, "emissions: provider: expected"),
        ([], "line 2: expected a JSON object"),
        ("[" * 100_000, "line 2: not JSON: nested too deeply"),
        ("{", "line 2: not JSON"),
    ],
)
def test_a_line_that_is_wrong(url, tmp_path, capsys, text, told):
    file = tmp_path / "jobs.jsonl"
    line = text if isinstance(text, str) else json.dumps(text)
    file.write_text(f"{json.dumps(LINE)}\n{line}\n")
    assert main([url, "import", str(file)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert told in error
    assert "__new__" not in error


def test_a_file_that_is_not_there(url, tmp_path, capsys):
    assert main([url, "import", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert error == f"batchjob_stats_db: {tmp_path / 'none'}: No such file or directory\n"


def test_migration_tells_no_steps_of_its_library(tmp_path):
    url = f"--db.url=sqlite:///{tmp_path}/new.db"
    argv = [sys.executable, "-m", "batchjob_stats_db", url, "--log.level=info", "migrate"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "alembic" not in said.stderr
    assert said.stdout.startswith("schema none -> ")


def test_check_says_that_all_is_well(url, capsys):
    assert main([url, "check"]) == 0
    assert capsys.readouterr().out.endswith("OK: 0 jobs, no damage, no gaps\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_work_in_one_piece_is_timed_on_a_terminal():
    import time

    shown = Terminal()
    with Progress.show_elapsed("check", shown):
        time.sleep(1.3)
    assert "\rcheck: 1 s" in shown.getvalue()
    assert shown.getvalue().endswith("\r\x1b[K")
    with Progress.show_elapsed("check", short := Terminal()):
        pass
    assert short.getvalue() == ""

"""Lines that cannot be imported, and what import, migrate and check print."""

import json
import subprocess
import sys

import pytest

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
    ("text", "message"),
    [
        ({**LINE, "jobid": None}, "line 2: jobid is missing"),
        ({k: v for k, v in LINE.items() if k != "jobid"}, "line 2: jobid is missing"),
        ({**LINE, "nods": []}, "line 2: nods: unknown field; did you mean nodes?"),
        ({**LINE, "nodes": [{}]}, "line 2: nodes: node is missing"),
        ({**LINE, "submit_time": "x"}, "line 2: submit_time: expected epoch seconds or a time"),
        ({**LINE, "submit_time": -(10**30)}, "line 2: submit_time: expected epoch seconds"),
        ({**LINE, "source": None}, "line 2: cluster and source: expected the names"),
        ({**LINE, "state": "FLYING"}, "line 2: state: expected one of PENDING, RUNNING,"),
        ({**LINE, "usage": [{}]}, "line 2: usage: the key source is missing"),
        ({**LINE, "usage": {}}, "line 2: usage: expected a list of objects, got {}"),
        ({**LINE, "emissions": [{"provider": [], "grams": 1}]}, "emissions: provider: expected"),
        ([], "line 2: expected a JSON object"),
        ("[" * 100_000, "line 2: not JSON: nested too deeply"),
        ("{", "line 2: not JSON"),
    ],
)
def test_invalid_line_is_reported_with_its_number(url, tmp_path, capsys, text, message):
    file = tmp_path / "jobs.jsonl"
    line = text if isinstance(text, str) else json.dumps(text)
    file.write_text(f"{json.dumps(LINE)}\n{line}\n")
    assert main([url, "import", str(file)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert "__new__" not in error


def test_missing_file_is_reported(url, tmp_path, capsys):
    assert main([url, "import", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert error == f"batchjob_stats_db: {tmp_path / 'none'}: No such file or directory\n"


def test_migrate_does_not_print_alembic_log_lines(tmp_path):
    url = f"--db.url=sqlite:///{tmp_path}/new.db"
    argv = [sys.executable, "-m", "batchjob_stats_db", url, "--log.level=info", "migrate"]
    completed = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "alembic" not in completed.stderr
    assert completed.stdout.startswith("schema none -> ")


def test_check_of_an_empty_database_is_ok(url, capsys):
    assert main([url, "check"]) == 0
    assert capsys.readouterr().out.endswith("OK: 0 jobs, no damage, no gaps\n")

"""Jobs as a table for analysts."""

import csv
import io
import json

import pytest

from batchjob_stats_db.main import main

NAMES = ("=cmd()", 'a "quoted", name', "Ünïcode\nline", "")
USAGE = {
    "source": "prometheus", "measured_time": 1_700_000_400, "until_time": 1_700_000_070,
    "samples": 3, "dropped_series": 0, "nodes": 1, "coverage": 1.0, "doubt": "",
    "energy_host_active_joules": 1.5,
}  # fmt: skip


@pytest.fixture
def url(tmp_path):
    url = f"--db.url=sqlite:///{tmp_path}/jobs.db"
    assert main([url, "migrate"]) == 0
    lines = [
        {"cluster": "alpha" if n else "beta", "jobid": str(n), "submit_time": 1_700_000_000 + n,
         "state": "COMPLETED", "state_word": "COMPLETED", "source": "sacct", "name": name,
         "user": "alice", "start_time": 1_700_000_010, "end_time": 1_700_000_070, "nodes": [],
         "steps": [], "usage": [USAGE]}
        for n, name in enumerate(NAMES)
    ]  # fmt: skip
    file = tmp_path / "jobs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([url, "import", str(file)]) == 0
    return url


def exported(url, capsys, *more):
    capsys.readouterr()
    assert main([url, "export", "--format=csv", *more]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_a_row_has_a_job_and_its_usage(url, capsys):
    rows = exported(url, capsys)
    assert [row["name"] for row in rows] == ["'=cmd()", *NAMES[1:]]
    assert {row["usage_energy_host_active_joules"] for row in rows} == {"1.5"}
    assert {row["user"] for row in rows} == {"alice"}
    assert len(exported(url, capsys, "--cluster=beta")) == 1


def test_parquet_has_types_and_texts_as_they_are(url, tmp_path, capsys):
    import duckdb  # only here: it prints what it leaks when the interpreter exits

    target = tmp_path / "jobs.parquet"
    assert main([url, "export", "--format=parquet", f"--output={target}"]) == 0
    assert capsys.readouterr().out.endswith(f"{target}: 4 jobs\n")
    with duckdb.connect() as db:
        query = "SELECT name, submit_time, usage_energy_host_active_joules FROM read_parquet(?)"
        rows = db.execute(f"{query} ORDER BY submit_time", [str(target)]).fetchall()
    assert [row[0] or "" for row in rows] == list(NAMES)
    assert rows[0][1:] == (1_700_000_000, 1.5)
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format=parquet"], "--output: expected with --format parquet"),
        (["--format=csv", "--output=x"], "--output: expected with --format parquet"),
        (["--format=parquet", "--output=/nonexistent/x"], "No such file or directory"),
    ],
)
def test_wrong_usage(url, capsys, arguments, told):
    assert main([url, "export", *arguments]) == 2
    assert told in capsys.readouterr().err

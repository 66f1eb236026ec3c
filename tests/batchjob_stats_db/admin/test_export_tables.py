"""Export of jobs as CSV and Parquet tables."""

import csv
import io
import json

import pytest

from batchjob_stats_db.main import main

NAMES = ("=cmd()", 'a "quoted", name', "Ünïcode\nline", "")
USAGE = {
    "source": "prometheus", "measured_time": 1_700_000_400, "until_time": 1_700_000_070,
    "samples": 3, "dropped_series": 0, "nodes": 1, "coverage": 1.0, "caveats": "",
    "energy_host_active_joules": 1.5,
}  # fmt: skip


@pytest.fixture
def url(tmp_path):
    url = f"--db.url=sqlite:///{tmp_path}/jobs.db"
    assert main([url, "migrate"]) == 0
    lines = [
        {"cluster": "alpha" if n else "beta", "jobid": f"0{n}", "submit_time": 1_700_000_000 + n,
         "state": "COMPLETED", "state_word": "COMPLETED", "source": "sacct", "name": name,
         "user": "alice", "start_time": 1_700_000_010, "end_time": 1_700_000_070, "nodes": [],
         "steps": [], "usage": [USAGE]}
        for n, name in enumerate(NAMES)
    ]  # fmt: skip
    file = tmp_path / "jobs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([url, "import", str(file)]) == 0
    return url


def export_csv(url, capsys, *options):
    capsys.readouterr()
    assert main([url, "export", "--format=csv", *options]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_csv_row_holds_a_job_and_its_usage(url, capsys):
    rows = export_csv(url, capsys)
    assert [row["name"] for row in rows] == ["'=cmd()", *NAMES[1:]]
    assert {row["usage_energy_host_active_joules"] for row in rows} == {"1.5"}
    assert {row["user"] for row in rows} == {"alice"}
    assert len(export_csv(url, capsys, "--cluster=beta")) == 1


def test_parquet_keeps_types_and_texts(url, tmp_path, capsys):
    import duckdb  # only here: it prints what it leaks when the interpreter exits

    target = tmp_path / "jobs.parquet"
    assert main([url, "export", "--format=parquet", f"--output={target}"]) == 0
    assert capsys.readouterr().out.endswith(f"{target}: 4 jobs\n")
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'America/New_York'")  # nothing depends on where it is read
        query = "SELECT name, jobid, usage_energy_host_active_joules FROM read_parquet(?)"
        rows = db.execute(f"{query} ORDER BY submit_time", [str(target)]).fetchall()
        times = db.execute(
            "SELECT epoch(submit_time), epoch(usage_measured_time), expected_start_time "
            "FROM read_parquet(?) ORDER BY submit_time LIMIT 1", [str(target)]
        ).fetchall()  # fmt: skip
        schema = db.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(target)]).fetchall()
    assert [row[0] or "" for row in rows] == list(NAMES)
    assert rows[0][1:] == ("00", 1.5)
    assert times == [(1_700_000_000, 1_700_000_400, None)]
    types = {name: kind for name, kind, *_ in schema}
    assert {kind for name, kind in types.items() if name.endswith("_time")} == {
        "TIMESTAMP WITH TIME ZONE"
    }
    ids = ("jobid", "array_jobid", "het_jobid", "record_id", "sluid")
    assert {types[name] for name in ids} == {"VARCHAR"}
    assert (types["restarts"], types["run"]) == ("BIGINT", "BIGINT")
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format=parquet"], "--output: expected with --format parquet"),
        (["--format=csv", "--output=x"], "--output: expected with --format parquet"),
        (["--format=parquet", "--output=/nonexistent/x"], "No such file or directory"),
    ],
)
def test_invalid_options_are_refused(url, capsys, arguments, message):
    assert main([url, "export", *arguments]) == 2
    assert message in capsys.readouterr().err

"""Lists, reports and totals of this machine's own runs."""

import csv
import io
import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob.local_runs import record
from batchjob.runtime.settings import SettingsError
from batchjob.schedulers.states import JobState
from batchjob_cli import job, jobs, stats
from batchjob_cli.client.problems import NotFoundError
from batchjob_cli.main import main
from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_server.report.forms import as_json
from tests.batchjob_cli.client.local_runs import command_output, finished_run
from tests.batchjob_stats_server.report.test_report import report_of


def test_jobs_table(data, capsys):
    lines = command_output(capsys, jobs, "--data", data).splitlines()
    assert lines[0].split()[:3] == ["JOB", "NAME", "USER"]
    assert len(lines) == 4
    assert all("0:01:00" in line and "90 %" in line and "3 GiB" in line for line in lines[1:])


def test_missing_script_exits_with_3(data, capsys):
    (jobid, *_) = [path.stem for path in (Path(data) / "runs").iterdir()]
    assert main(["job", jobid, "--script", "--data", data]) == 3
    assert "there is no batch script" in capsys.readouterr().err


def test_pending_jobs_come_first(data, capsys):
    waiting = finished_run("later", JobState.PENDING)._replace(
        start_time=None, end_time=None, exit_code=None, supervisor=record.current_process()
    )
    record.write(Path(data) / "runs", waiting)
    first, *rest = json.loads(command_output(capsys, jobs, "--data", data, "--format=json"))
    assert (first["jobid"], first["state"], len(rest)) == (waiting.jobid, "PENDING", 3)
    (only,) = json.loads(
        command_output(capsys, jobs, "--data", data, "--state=pending", "--format=json")
    )
    assert only["jobid"] == waiting.jobid
    ended = json.loads(
        command_output(capsys, jobs, "--data", data, "--state=failed", "--format=json")
    )
    assert [each["state"] for each in ended] == ["FAILED"]


def test_stored_script_is_printed(data, capsys):
    record.write(Path(data) / "runs", finished_run("only"))
    command_output(capsys, jobs, "--data", data)  # makes the database
    with writer_engine(parse_url(f"sqlite:///{data}/jobs.db")).begin() as db:
        numbers = db.scalars(sa.select(schema.job.c.id)).all()
        scripts.store(db, numbers, "#!/bin/sh\necho 1\necho 2\n", 17)
    assert job.run(["only", "--script", "--data", data]) == 0
    out, error = capsys.readouterr()
    assert (out, error) == ("#!/bin/sh\necho 1\n", "batchjob: truncated; the script has 24 B\n")


def test_stopped_and_cancelled_runs_have_different_states(data, capsys):
    for name, word in (("ended", "stopped"), ("never", "")):
        run = finished_run(name, JobState.CANCELLED, state_word=word)
        record.write(Path(data) / "runs", run)
    lines = command_output(capsys, jobs, "--data", data, "--state=cancelled").splitlines()[1:]
    assert sorted(line.split()[1] + " " + line.split()[3] for line in lines) == [
        "ended stopped",
        "never cancelled",
    ]


def test_id_of_a_cluster_job_comes_before_a_prefix_of_runs(data, capsys):
    command_output(capsys, jobs, "--data", data)  # makes the database
    with writer_engine(parse_url(f"sqlite:///{data}/jobs.db")).begin() as db:
        failed = schema.job.c.state == "FAILED"
        db.execute(sa.update(schema.job).where(failed).values(name="theirs", jobid="7"))
    for name in ("mine", "mine-too"):
        run = finished_run(name)
        run = run._replace(jobid=f"7{run.jobid[1:]}")
        record.write(Path(data) / "runs", run)
        assert "theirs" in command_output(capsys, job, "7", "--data", data)
    assert run.jobid in command_output(capsys, job, run.jobid[:8], "--data", data)


def test_job_takes_the_id_of_an_array(data, capsys):
    runs = [finished_run(name, workflow="39000") for name in ("first-task", "second-task")]
    record.write(Path(data) / "runs", runs[0])
    assert runs[0].jobid in command_output(capsys, job, "--data", data, "39000")
    record.write(Path(data) / "runs", runs[1])
    with pytest.raises(NotFoundError, match=r"'39000' matches several jobs: .* --workflow 39000"):
        job.run(["--data", data, "39000"])


def test_job_is_found_by_name_record_id_or_id_prefix(data, capsys):
    run = finished_run("train", tool="celery", record_id="5b7c-task", parameters='{"epochs": 3}',
                   error="no mesh", submit_line="worker -A site", work_dir="/srv")  # fmt: skip
    record.write(Path(data) / "runs", run)
    for text in ("train", "5b7c-task", run.jobid[:13]):
        out = command_output(capsys, job, "--data", data, text)
        expected = ("worker -A site", "/srv", "celery", '{"epochs": 3}', "no mesh", "5b7c-task")
        assert all(each in out for each in (run.jobid, *expected)), out
        assert "54 s (user 50 s, system 4 s)" in out


def test_table_of_tracked_work_has_tool_cpu_time_and_error(data, capsys):
    record.write(Path(data) / "runs", finished_run("mesh", tool="openfoam", error="no mesh"))
    head, *rows = command_output(capsys, jobs, "--data", data, "--name", "mesh").splitlines()
    assert head.split()[-4:] == ["TOOL", "CPU", "TIME", "ERROR"]
    assert all(each in rows[0] for each in ("openfoam", "54 s", "no mesh"))


def test_run_without_name_is_listed_by_its_command(data, capsys):
    record.write(Path(data) / "runs", finished_run("", submit_line="python train.py --epochs 3"))
    assert "python train.py --epochs" in command_output(capsys, jobs, "--data", data)


def test_control_characters_in_names_are_replaced(data, capsys):
    out = command_output(capsys, jobs, "--data", data)
    assert "\x1b" not in out
    assert "plot?[2J" in out


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--name", "align"], 2),
        (["--tool", "blast", "--state", "failed"], 1),
        (["--user", "bob"], 0),
        (["--since", "1m"], 0),
        (["--since", "10m"], 3),
        (["--limit", "2"], 2),
        (["--running"], 0),
    ],
)
def test_filters(data, capsys, arguments, count):
    rows = json.loads(command_output(capsys, jobs, "--data", data, "--format", "json", *arguments))
    assert len(rows) == count


def test_csv_values_are_no_formulas(data, capsys):
    text = command_output(capsys, jobs, "--data", data, "--format", "csv")
    assert {row["tool"] for row in csv.DictReader(io.StringIO(text))} == {"blast", "'=cmd()"}


def test_report_by_id_prefix(data, capsys):
    (row,) = json.loads(
        command_output(capsys, jobs, "--data", data, "--format=json", "--state=failed")
    )
    text = command_output(capsys, job, "--data", data, row["jobid"][:8])
    assert f"Job {row['jobid']}" in text
    assert "FAILED" in text


def test_stats_totals_and_success_ratio(data, capsys):
    rows = json.loads(command_output(capsys, stats, "--data", data, "--format=json", "--by=tool"))
    assert [(row["key"], row["jobs"], row["success_ratio"]) for row in rows] == [
        ("blast", 2, 0.5),
        ("=cmd()", 1, 1.0),
        ("", 3, pytest.approx(2 / 3)),
    ]
    assert (rows[0]["cpu_seconds"], rows[0]["mean_cpu_seconds"]) == (108.0, 54.0)
    assert (rows[0]["elapsed_seconds"], rows[0]["mean_elapsed_seconds"]) == (120.0, 60.0)
    assert [row["failed"] for row in rows] == [1, 0, 1]
    assert [row["overall"] for row in rows] == [False, False, True]
    assert rows[0]["peak_memory_bytes"] == 3 << 30
    table = command_output(capsys, stats, "--data", data, "--by=tool")
    assert "50 %" in table
    assert table.splitlines()[-1].startswith("all ")


def test_stats_add_only_energy_that_was_measured():
    """Accounting has the energy of whole nodes, once for each of their jobs."""
    row = {
        "name": "train", "state": "COMPLETED", "end_time": 1, "elapsed_seconds": 1.0,
        "cpu_used_seconds": 1.0, "memory_used_bytes": 1, "energy_used_joules": 1440.0,
    }  # fmt: skip
    bases = ("accounting", "accounting", "measured")
    total, _ = stats.totals([{**row, "energy_basis": basis} for basis in bases], "name")
    assert (total["energy_joules"], total["jobs_with_energy"]) == (1440.0, 1)


def test_state_filter_accepts_state_words(data, capsys):
    for name, word in (("broken", "error"), ("gave up", "failed")):
        run = finished_run(name, JobState.FAILED, state_word=word)
        record.write(Path(data) / "runs", run)

    def names(*states):
        given = [f"--state={each}" for each in states]
        return {row["name"] for row in json.loads(
            command_output(capsys, jobs, "--data", data, "--format=json", *given))}  # fmt: skip

    assert names("error") == {"broken"}
    assert {"broken", "gave up"} <= names("failed")
    assert names("success") == names("completed")
    assert names("error", "success") >= {"broken"}


def test_filters_by_record_id_and_workflow(data, capsys):
    for name, own in (("split", "a1"), ("merge", "a2")):
        run = finished_run(name, record_id=own, workflow="order-17", tool="celery")
        record.write(Path(data) / "runs", run)

    def names(*given):
        rows = json.loads(command_output(capsys, jobs, "--data", data, "--format=json", *given))
        return {row["name"] for row in rows}

    assert names("--record-id", "a2") == {"merge"}
    assert names("--workflow", "order-17") == {"split", "merge"}


def test_empty_data_directory_has_no_jobs(tmp_path, capsys):
    assert command_output(capsys, jobs, "--data", str(tmp_path / "new")) == "No job matches.\n"
    assert command_output(capsys, stats, "--data", str(tmp_path / "new")) == "No job matches.\n"


def test_chosen_columns(data, capsys):
    chosen = ("--data", data, "--name=align", "-o", "name,state,elapsed_seconds")
    heading, first, *_ = command_output(capsys, jobs, *chosen).splitlines()
    assert heading.split() == ["NAME", "STATE", "ELAPSED"]
    assert first.split()[0] == "align"
    assert first.split()[2] == "0:01:00"
    assert json.loads(command_output(capsys, jobs, *chosen, "--format=json"))[0].keys() == {
        "name", "state", "elapsed_seconds",
    }  # fmt: skip
    with pytest.raises(SettingsError, match="did you mean elapsed_seconds"):
        jobs.run(["--data", data, "-o", "elapsed_second"])


def test_a_table_has_the_column_by_which_it_is_sorted(data, capsys):
    lines = command_output(capsys, jobs, "--data", data, "--sort=-cpu_unused_seconds").splitlines()
    assert lines[0].endswith("CPU UNUSED")
    assert all(line.endswith(" 6 s") for line in lines[1:])
    assert "CPU EFF" in command_output(capsys, jobs, "--data", data, "--sort=cpu_efficiency")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\n#SBATCH -J train\n#SBATCH --mem=16G\nsrun ./a\n")
    return path


def test_script_is_printed_with_the_advised_request(data, script, capsys, monkeypatch):
    used = {f"usage_memory_peak_{each}": 1 << 30 for each in ("bytes", "node_bytes")}
    reports = {"70007": as_json(report_of(**used)).decode()}
    rows = [{"jobid": "70008", "state": "PENDING"}, {"jobid": "70007", "state": "COMPLETED"}]
    monkeypatch.setattr(job, "query_report", lambda given, query, jobid: reports[jobid])
    monkeypatch.setattr(
        job.connect,
        "job_pages",
        lambda given, wanted, *_: [rows] if wanted["name"] == "train" else [],
    )
    for which in (["70007"], []):
        assert job.run([*which, "--script", str(script), "--data", data]) == 0
        out, error = capsys.readouterr()
        assert out == "#!/bin/sh\n#SBATCH -J train\n#SBATCH --mem=1280M\nsrun ./a\n"
        assert "plus 20 %" in error
    reports["70007"] = as_json(report_of()).decode()
    assert job.run(["70007", "--script", str(script), "--data", data]) == 0
    out, error = capsys.readouterr()
    assert (out, error) == (
        script.read_text(), "batchjob: nothing to change: the report advises no other request\n"
    )  # fmt: skip


def test_script_of_another_scheduler_is_refused(data, script, capsys, monkeypatch):
    used = {f"usage_memory_peak_{each}": 1 << 30 for each in ("bytes", "node_bytes")}
    monkeypatch.setattr(job, "query_report", lambda *_: as_json(report_of(**used)).decode())
    script.write_text("#!/bin/sh\n#PBS -l select=1:mem=16gb\n./a\n")
    assert main(["job", "70007", "--script", str(script), "--data", data]) == 2
    out, error = capsys.readouterr()
    assert not out
    assert "job.sh has lines of #PBS; expected #SBATCH, as the job's scheduler reads" in error


def test_script_that_is_not_there_or_has_no_job_is_explained(data, script, capsys):
    assert main(["job", "--script", "/nowhere/job.sh", "--data", data]) == 2
    assert "--script: /nowhere/job.sh: No such file" in capsys.readouterr().err
    script.write_text("#PBS -N other\ntrue\n")
    assert main(["job", "--script", str(script), "--data", data]) == 3
    assert "no job called 'other' has ended" in capsys.readouterr().err
    assert main(["job", "--script", "--data", data]) == 2
    assert "JOB: expected an id or a name" in capsys.readouterr().err

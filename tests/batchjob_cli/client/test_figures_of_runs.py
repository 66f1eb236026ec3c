"""What lists, reports, pages and the API say of this machine's runs."""

import os
import re
import time
import uuid

import pytest

from batchjob.local_runs import record
from batchjob.quantities.sample import END, JobSample, SampleHeader, SampleKey
from batchjob.runtime.logins import login
from batchjob.schedulers.states import JobState
from batchjob_cli.main import main
from batchjob_cli.run import summary
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.writer import Writer
from tests.batchjob_cli.served_data import plain_text, serve_data


def ended_run(name, seconds, start=None, **more):
    """A run of so many seconds that began an hour ago, without limits."""
    start = int(time.time()) - 3600 if start is None else start
    return record.Run(
        jobid=str(uuid.uuid4()), node=os.uname().nodename, user=login(), uid=os.geteuid(),
        submit_time=start, start_time=start, end_time=start + seconds, wall_seconds=seconds,
        state=JobState.COMPLETED, exit_code=0, name=name,
        supervisor=record.SupervisorProcess(1, 1, "gone"), **more,
    )  # fmt: skip


def write_run(data, run):
    (data / "runs").mkdir(exist_ok=True)
    record.write(data / "runs", run)
    return run


def write_samples(data, run, cpu_seconds, user=None):
    """Samples each 5 s up to its end, at which it has used so many CPU seconds."""
    header = SampleHeader("local", run.jobid, run.user if user is None else user, run.node, 5.0)
    writer = Writer(folder_of(data / "samples", run.jobid), header, run.start_time)
    times = [run.start_time + 5 * n for n in range(1, int(run.wall_seconds / 5) + 1)]
    for at in [*times, run.end_time]:
        part = (at - run.start_time) / run.wall_seconds
        values = {
            SampleKey("cpu_user_seconds"): cpu_seconds * part,
            SampleKey("cpu_system_seconds"): 0.0,
        }
        writer.write(JobSample(at, values | ({END: at} if at == run.end_time else {})))
    writer.close()


def command_output(capsys, data, *arguments):
    assert main([*arguments, f"--data={data}"]) == 0
    return capsys.readouterr().out


def test_unknown_user_is_not_reported_as_another_user(tmp_path, capsys):
    """It was over before its processes were looked at; its only sample names nobody."""
    run = write_run(tmp_path, ended_run("short", 0.4))
    write_samples(tmp_path, run, cpu_seconds=0.3, user="")
    with serve_data(tmp_path) as client:
        (row,) = client.get("/api/v1/jobs").json()
        page = plain_text(client.get(f"/jobs/{run.jobid}").text)
    assert row["usage_user_cpu_seconds"] == pytest.approx(0.3)
    assert (row["usage_caveats"], row["usage_dropped_series"]) == ("user unknown", 0)
    report = command_output(capsys, tmp_path, "job", "short")
    for output in (page, report):
        assert "the job ended before its user was seen" in output
        assert "series of another user" not in output
        assert "0.3 s" in output


def test_half_a_cpu_is_shown_the_same_everywhere(tmp_path, capsys):
    run = write_run(
        tmp_path,
        ended_run("half", 40.0, allocated_cpus=0.5, user_cpu_seconds=19.0, system_cpu_seconds=0.4),
    )
    write_samples(tmp_path, run, cpu_seconds=19.4)
    summary_text = summary.format_report(run)
    assert "97 % of 0.5 CPU" in summary_text
    assert "97 %" in command_output(capsys, tmp_path, "jobs")
    assert "97 %" in command_output(capsys, tmp_path, "job", "half")
    with serve_data(tmp_path) as client:
        (row,) = client.get("/api/v1/jobs").json()
        pages = [client.get(path).text for path in ("/jobs", f"/jobs/{run.jobid}")]
    assert row["allocated_cpus"] == 0.5
    assert row["cpu_efficiency"] == pytest.approx(0.97)
    assert all("97 %" in plain_text(page) for page in pages)


def test_duration_of_20_milliseconds_is_not_rounded(tmp_path, capsys):
    run = write_run(tmp_path, ended_run("quick", 0.02))
    assert " 0.02 s " in command_output(capsys, tmp_path, "jobs")
    assert re.search(r"0\.020? s\b", command_output(capsys, tmp_path, "job", "quick"))
    with serve_data(tmp_path) as client:
        (row,) = client.get("/api/v1/jobs").json()
        pages = [client.get(path).text for path in ("/jobs", f"/jobs/{run.jobid}")]
    assert row["elapsed_seconds"] == 0.02
    assert row["end_time"] - row["start_time"] == 20
    assert all(re.search(r"\b0\.020? s\b", plain_text(page)) for page in pages)


@pytest.fixture
def new_york(monkeypatch):
    """The local time zone, for a test."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_list_and_report_use_the_same_time_zone(tmp_path, capsys, new_york):
    write_run(tmp_path, ended_run("plot", 60.0, start=1_775_300_000))  # 10:53:20 UTC
    shown = [
        command_output(capsys, tmp_path, *arguments) for arguments in (["jobs"], ["job", "plot"])
    ]
    for output in shown:
        assert "2026-04-04 06:53:20 EDT" in output
        assert "10:53" not in output

"""Runs of one second are in order, and their times and durations have milliseconds everywhere."""

import json
import os
import uuid

import pytest

import batchjob
from batchjob.local_runs import record
from batchjob.schedulers.states import JobState
from batchjob_cli import job, jobs

START = 1_775_300_000


@pytest.fixture
def data(tmp_path):
    """Works of one second, written down in another order than they ran in."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for milliseconds in (250, 750, 125, 500):
        start = START + milliseconds / 1000
        run = record.Run(
            jobid=str(uuid.uuid4()), node=os.uname().nodename, user="alice", uid=os.geteuid(),
            submit_time=start, start_time=start, end_time=start + 0.1, wall_seconds=0.100123,
            state=JobState.COMPLETED, name=f"work-{milliseconds}", by="track", tool="t",
            supervisor=record.SupervisorProcess(1, 1, "gone"),
        )  # fmt: skip
        record.write(folder, run)
    return str(tmp_path)


def listed_jobs(capsys, data, *arguments):
    assert jobs.run(["--data", data, "--format", "json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_newest_run_is_first(data, capsys):
    names = ["work-750", "work-500", "work-250", "work-125"]
    assert [each["name"] for each in listed_jobs(capsys, data)] == names
    assert [each["name"] for each in listed_jobs(capsys, data, "--sort", "start_time")] == names[
        ::-1
    ]
    assert [each.name for each in batchjob.history(data=data)] == names


def test_times_and_durations_have_milliseconds(data, capsys):
    newest = listed_jobs(capsys, data)[0]
    assert newest["start_time"] == START * 1000 + 750
    assert newest["start_time_rfc3339"] == "2026-04-04T10:53:20.750Z"
    assert newest["end_time"] == START * 1000 + 850
    assert newest["elapsed_seconds"] == pytest.approx(0.100123)
    assert newest["wait_seconds"] == 0


def test_report_has_milliseconds(data, capsys):
    assert job.run(["--data", data, "--utc", "work-750"]) == 0
    text = capsys.readouterr().out
    assert "2026-04-04 10:53:20.750 UTC" in text
    assert "2026-04-04 10:53:20.850 UTC" in text
    assert "0.100 s" in text

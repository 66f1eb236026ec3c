"""`batchjob seff` prints the same from a server and from this machine's database."""

import time
from pathlib import Path

from batchjob.local_runs import record
from batchjob.schedulers.states import JobState
from batchjob_cli import seff
from batchjob_cli.main import main
from tests.batchjob_cli.client.local_runs import command_output, finished_run


def completed_job(data):
    run = finished_run("well-ended")
    record.write(Path(data) / "runs", run)
    return run.jobid


def test_server_and_local_lines_are_equal(data, server, capsys):
    url, file = server
    jobid = completed_job(data)
    local = command_output(capsys, seff, "--no-color", jobid, "--data", data)
    remote = command_output(capsys, seff, "-n", jobid, "--server", url, "--token-file", file)
    assert remote == local
    lines = local.splitlines()
    assert "State: COMPLETED (exit code 0)" in lines
    assert "Cores: 1" in lines
    assert "CPU Efficiency: 90.00% of 00:01:00 core-walltime" in lines
    assert "Memory Utilized: 3.00 GB" in lines


def test_unknown_job_exits_with_3(data, capsys):
    assert main(["seff", "999", "--data", data]) == 3
    out, error = capsys.readouterr()
    assert (out, "job 999 does not exist" in error) == ("", True)


def test_wait_ends_when_the_job_is_final(data, capsys, monkeypatch):
    """A job that is not on record at first ends while the command waits."""
    runs = iter([None, JobState.RUNNING, JobState.COMPLETED])

    def next_look(seconds):
        if (state := next(runs)) is not None:
            ended = {} if state == JobState.COMPLETED else {"end_time": None, "exit_code": None}
            run = finished_run("late", state)._replace(jobid=jobid, **ended)
            if state == JobState.RUNNING:
                run = run._replace(supervisor=record.current_process())
            record.write(tmp_runs, run)

    jobid = finished_run("late").jobid
    tmp_runs = Path(data) / "runs"
    monkeypatch.setattr(time, "sleep", next_look)
    text = command_output(capsys, seff, jobid, "--wait=60", "--data", data)
    assert "State: COMPLETED (exit code 0)" in text


def test_wait_is_limited(data, capsys):
    assert main(["seff", "999", "--wait=0.1", "--data", data]) == 3

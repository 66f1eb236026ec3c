"""Retention of runs and their output."""

import os
import time

import pytest

from batchjob.local_runs import record
from batchjob.local_runs.directory import create_directory
from batchjob.local_runs.record import Run, current_process
from batchjob.local_runs.retention import RunRetention, sweep, sweep_daily
from batchjob.schedulers.states import JobState


@pytest.fixture
def write_run(tmp_path):
    def write(number: int, age: float, size: int = 10, **changes) -> str:
        jobid = f"{number:08x}-d9cb-469f-a165-70867728950e"
        record.write(
            create_directory(tmp_path, "runs"),
            Run(jobid, os.uname().nodename, "alice", os.geteuid(), 1, 1, JobState.COMPLETED,
                current_process())._replace(**changes),
        )  # fmt: skip
        log = create_directory(tmp_path, "logs", jobid) / "stdout.000000.gz"
        log.write_bytes(b"x" * size)
        for path in (tmp_path / "runs" / f"{jobid}.json", log):
            os.utime(path, (time.time() - age,) * 2)
        return jobid

    return write


def remaining_runs(tmp_path, kind):
    """Numbers of the runs that still have a record ("runs") or output ("logs")."""
    return {int(path.name[:8], 16) for path in (tmp_path / kind).iterdir()}


def test_expired_runs_and_logs_are_deleted(write_run, tmp_path):
    for number, age in enumerate((0, 50, 150)):
        write_run(number, age)
    write_run(3, 500, state=JobState.RUNNING)  # its supervisor is this process
    sweep(tmp_path, RunRetention(records=100, logs=20, logs_bytes=1000))
    assert remaining_runs(tmp_path, "runs") == {0, 1, 3}
    assert remaining_runs(tmp_path, "logs") == {0, 3}


def test_oldest_logs_are_deleted_above_size_limit(write_run, tmp_path):
    for number in range(5):
        write_run(number, age=60 * number, size=100)
    sweep(tmp_path, RunRetention(logs_bytes=250))
    assert remaining_runs(tmp_path, "logs") == {0, 1}


def test_sweep_daily_sweeps_once_a_day(write_run, tmp_path):
    sweep_daily(tmp_path, RunRetention(records=100))
    write_run(1, 1000)
    sweep_daily(tmp_path, RunRetention(records=100))
    assert remaining_runs(tmp_path, "runs") == {1}
    os.utime(tmp_path / ".swept", (0, 0))
    sweep_daily(tmp_path, RunRetention(records=100))
    assert remaining_runs(tmp_path, "runs") == set()

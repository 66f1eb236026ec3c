"""Retention of runs and their output."""

import os
import time

import pytest

from batchjob.local_runs import record
from batchjob.local_runs.directory import create_directory
from batchjob.local_runs.record import Run, current_process
from batchjob.local_runs.retention import sweep, sweep_daily
from batchjob.schedulers.states import JobState


@pytest.fixture
def write_run(tmp_path):
    def write(number: int, size: int = 10, **changes) -> float:
        """Returns a moment after it was written, and before the next one is."""
        jobid = f"{number:08x}-d9cb-469f-a165-70867728950e"
        record.write(
            create_directory(tmp_path, "runs"),
            Run(jobid, os.uname().nodename, "alice", os.geteuid(), 1, 1, JobState.COMPLETED,
                current_process())._replace(**changes),
        )  # fmt: skip
        (create_directory(tmp_path, "logs", jobid) / "stdout.000000.gz").write_bytes(b"x" * size)
        time.sleep(0.03)  # the kernel's clock of files ticks every 10 ms or more often
        at = time.time()
        time.sleep(0.03)
        return at

    return write


def remaining_runs(tmp_path, kind):
    """Numbers of the runs that still have a record ("runs") or output ("logs")."""
    return {int(path.name[:8], 16) for path in (tmp_path / kind).iterdir() if path.name[0] != "."}


def test_expired_runs_and_logs_are_deleted(write_run, tmp_path):
    write_run(3, state=JobState.RUNNING)  # its supervisor is this process
    oldest = write_run(2)
    older = write_run(1)
    write_run(0)
    sweep(tmp_path, records=100, logs=100 - (older - oldest), now=oldest + 100)
    assert remaining_runs(tmp_path, "runs") == {0, 1, 3}
    assert remaining_runs(tmp_path, "logs") == {0, 3}


def test_times_that_users_set_count_for_nothing(write_run, tmp_path):
    at = write_run(1)
    for path in (*(tmp_path / "runs").iterdir(), *(tmp_path / "logs").glob("*/*")):
        os.utime(path, (at + 1e6, at + 1e6))
    sweep(tmp_path, records=100, logs=100, now=at + 200)
    assert remaining_runs(tmp_path, "runs") == remaining_runs(tmp_path, "logs") == set()


def test_oldest_logs_are_deleted_above_size_limit(write_run, tmp_path):
    for number in range(5):
        write_run(number, size=100_000)
    sweep(tmp_path, logs_bytes=250_000)
    assert remaining_runs(tmp_path, "logs") == {3, 4}


def test_sparse_file_counts_what_it_takes_on_the_disk(write_run, tmp_path):
    write_run(1, size=100_000)
    write_run(2)
    ((log,),) = [list(path.iterdir()) for path in (tmp_path / "logs").glob("00000002*")]
    os.truncate(log, 3 << 30)
    sweep(tmp_path, logs_bytes=250_000)
    assert remaining_runs(tmp_path, "logs") == {1, 2}


def test_link_to_a_directory_is_neither_counted_nor_followed(write_run, tmp_path):
    write_run(1, size=100_000)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "large").write_bytes(b"x" * 1_000_000)
    (tmp_path / "logs" / "00000009-d9cb-469f-a165-70867728950e").symlink_to(elsewhere)
    sweep(tmp_path, logs_bytes=250_000)
    assert 1 in remaining_runs(tmp_path, "logs")
    sweep(tmp_path, logs=100, now=time.time() + 200)
    assert list((tmp_path / "logs").iterdir()) == []
    assert (elsewhere / "large").exists()


def test_run_of_another_node_is_believed_to_go_on_until_its_record_expires(write_run, tmp_path):
    at = write_run(1, node="elsewhere", state=JobState.RUNNING)
    ages = {"records": 100, "logs": 10}
    sweep(tmp_path, **ages, now=at + 50)
    assert remaining_runs(tmp_path, "logs") == {1}
    sweep(tmp_path, **ages, now=at + 150)
    assert remaining_runs(tmp_path, "runs") == remaining_runs(tmp_path, "logs") == set()


def test_sweep_daily_sweeps_once_a_day(write_run, tmp_path):
    write_run(0)
    sweep_daily(tmp_path)
    write_run(1)
    sweep_daily(tmp_path, records=0)
    assert remaining_runs(tmp_path, "runs") == {0, 1}
    os.utime(tmp_path / "runs" / f".swept-{os.geteuid()}", (0, 0))
    sweep_daily(tmp_path, records=0)
    assert remaining_runs(tmp_path, "runs") == set()

"""Lines about the lives of runs in the log of `batchjob up`."""

import logging
import time
from pathlib import Path

import pytest

from batchjob.local_runs.record import SupervisorProcess, current_process, new_run, write
from batchjob.runtime.logins import login
from batchjob.schedulers.states import JobState
from batchjob_cli.up.runs import RunLog

RUN, OTHER = (f"{n}b1e5a52-0000-4000-8000-000000000000" for n in (7, 8))


@pytest.fixture
def runs(tmp_path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def look(runs, caplog):
    """Looks at the runs; returns the new lines."""
    caplog.set_level(logging.INFO)
    log = RunLog(runs.parent)

    def look():
        caplog.clear()
        log.look()
        return caplog.messages

    return look


def waiting(jobid: str, **fields):
    run = new_run(jobid, JobState.PENDING, current_process(), name="train", reason="in a minute")
    return run._replace(user="ada", **fields)


def test_each_change_is_a_line(runs, look):
    run = waiting(RUN)
    write(runs, run)
    assert look() == [f"run {RUN} (train) waits: in a minute"]
    run = run._replace(state=JobState.RUNNING, start_time=time.time())
    write(runs, run)
    assert look() == [f"run {RUN} (train) started by {login()}"]
    assert look() == []
    end = run._replace(state=JobState.FAILED, end_time=time.time(), exit_code=3, wall_seconds=2.0)
    write(runs, end)
    assert look() == [f"run {RUN} (train) ended: failed, exit status 3, 2.000 s"]
    assert look() == []


def test_run_between_two_looks_has_both_lines(runs, look):
    look()
    now = time.time()
    write(runs, waiting(RUN, state=JobState.COMPLETED, start_time=now, end_time=now, exit_code=0))
    assert [line.split()[3] for line in look()] == ["started", "ended:"]


def test_killed_run_has_ended(runs, look):
    run = waiting(RUN, state=JobState.RUNNING, start_time=time.time())
    write(runs, run)
    assert len(look()) == 1
    write(runs, run._replace(supervisor=SupervisorProcess(2**22 + 1, 1, "another boot")))
    assert look() == [f"run {RUN} (train) ended: vanished"]
    assert look() == []


def test_run_that_was_stopped_and_deleted_at_once(runs, look):
    write(runs, waiting(RUN, state=JobState.RUNNING, start_time=time.time()))
    look()
    (runs / f"{RUN}.json").unlink()
    assert look() == [f"run {RUN} (train) has ended, and was deleted"]
    assert look() == []


def test_what_happened_before_is_no_news(runs, caplog):
    caplog.set_level(logging.INFO)
    before = time.time() - 100
    run = waiting(RUN, state=JobState.RUNNING, submit_time=before, start_time=before)
    write(runs, run)
    write(runs, waiting(OTHER, state=JobState.FAILED, submit_time=before, end_time=before))
    log = RunLog(runs.parent)
    log.look()
    assert caplog.messages == []
    write(runs, run._replace(state=JobState.COMPLETED, end_time=time.time(), exit_code=0))
    log.look()
    assert [line.split()[3] for line in caplog.messages] == ["ended:"]


def test_tracked_work_is_not_a_run(runs, look):
    write(runs, waiting(RUN, by="celery"))
    assert look() == []

"""Runs and tracked work, asked from Python."""

import os
from functools import partial

import pytest

import batchjob
from batchjob.local_runs import history, record
from batchjob.local_runs.directory import create_directory
from batchjob.local_runs.record import Run, RunFileError, current_process, decode_run
from batchjob.runtime.logins import login
from batchjob.schedulers.states import JobState

START = 1775300000


@pytest.fixture
def written(tmp_path):
    directory = create_directory(tmp_path, "runs")

    def write(number: int, **changes) -> Run:
        run = Run(
            jobid=f"{number:08x}-d9cb-469f-a165-70867728950e", node=os.uname().nodename,
            user=login(), uid=os.geteuid(), submit_time=START, start_time=START + number,
            state=JobState.COMPLETED, supervisor=current_process(), end_time=START + number + 10,
            user_cpu_seconds=3.0, system_cpu_seconds=1.0,
        )._replace(**changes)  # fmt: skip
        record.write(directory, run)
        return run

    return write


def test_newest_first(written, tmp_path):
    first, second = written(1, tool="blast"), written(2, name="b", state=JobState.FAILED)
    data = str(tmp_path)
    assert batchjob.history(data=data) == [second, first]
    assert batchjob.history(data=data, limit=1) == [second]
    assert batchjob.history(data=data, tool="blast") == [first]
    assert batchjob.history(data=data, status="success") == [first]
    assert batchjob.history(data=data, since=START + 2) == [second]
    assert batchjob.history(data=data, until=START + 2) == [first]


def test_run_time_has_no_digits_that_nobody_measured(written):
    assert written(1, end_time=START + 1.154).duration_seconds == 0.154


def test_nothing_has_run_yet(tmp_path):
    assert batchjob.history(data=str(tmp_path / "none")) == []
    with pytest.raises(history.UnknownRun, match="no run has the id or name 'x'"):
        batchjob.job("x", data=str(tmp_path))


def test_one_job(written, tmp_path):
    one = written(0x10, name="train")
    two = written(0x11, name="other")
    ask = partial(batchjob.job, data=str(tmp_path))
    assert (ask(one.jobid), ask("00000010"), ask("other")) == (one, one, two)
    for text in ("0000001", ""):
        with pytest.raises(history.UnknownRun):
            ask(text)
    written(0x12, name="train")
    with pytest.raises(history.UnknownRun, match=r"'train' matches 2 runs: 00000012-.*00000010-"):
        ask("train")


def test_one_job_of_a_user(written, tmp_path):
    run = written(0x10, name="train")
    assert batchjob.job("train", data=str(tmp_path), user=login()) == run
    for text in ("train", run.jobid):
        with pytest.raises(history.UnknownRun, match="no run has"):
            batchjob.job(text, data=str(tmp_path), user="somebody-else")


def test_a_name_goes_before_the_beginning_of_an_id(written, tmp_path):
    written(0xB0000000)
    named = written(0x10, name="b")
    assert batchjob.job("b", data=str(tmp_path)) == named


def test_attempts_of_one_task_are_found_by_its_id(written, tmp_path):
    written(1, record_id="5b7c", restarts=0)
    last = written(2, record_id="5b7c", restarts=1, workflow="order-17")
    data = str(tmp_path)
    assert batchjob.job("5b7c", data) == last
    assert len(batchjob.history(record_id="5b7c", data=data)) == 2
    assert batchjob.history(workflow="order-17", data=data) == [last]


def test_a_run_that_nobody_watches_has_vanished(written, tmp_path):
    here = current_process()
    written(1, state=JobState.RUNNING, end_time=None)
    written(2, state=JobState.RUNNING, supervisor=here._replace(start_ticks=1))
    found = batchjob.history(data=str(tmp_path))
    assert [run.status for run in found] == ["vanished", "running"]


def test_totals(written, tmp_path):
    written(1, tool="a", peak_memory_bytes=5)
    written(2, tool="a", state=JobState.FAILED, peak_memory_bytes=7)
    written(3, tool="b", state=JobState.RUNNING, end_time=None)
    a, b = batchjob.stats(by="tool", data=str(tmp_path))
    assert a == history.Stats("a", 2, 2, 1, 1, 0.5, 20, 10, 8.0, 4.0, 7)
    (overall,) = batchjob.stats(by="all", data=str(tmp_path))
    assert (overall.key, overall.runs, overall.succeeded, overall.failed) == ("all", 3, 1, 1)
    assert (b.runs, b.ended, b.success_ratio, b.peak_memory_bytes) == (1, 0, None, None)
    with pytest.raises(ValueError, match="expected one of name"):
        batchjob.stats(by="color", data=str(tmp_path))


def test_a_run_comes_back(written, tmp_path):
    run = written(1, parameters='{"a": 1}', error="text", restarts=2)
    document = record.read(tmp_path / "runs" / f"{run.jobid}.json")
    assert decode_run(document) == run
    assert decode_run(document | {"of_a_later_version": 1}) == run


@pytest.mark.parametrize(
    "change", [{"state": "X"}, {"supervisor": 1}, {"submit_time": "x"}, {"start_time": "x"}]
)
def test_what_is_no_run(written, tmp_path, change):
    run = written(1)
    document = record.read(tmp_path / "runs" / f"{run.jobid}.json")
    with pytest.raises(RunFileError, match="not a run"):
        decode_run(document | change)


def test_damaged_files_hide_nothing(written, tmp_path):
    run = written(1)
    (tmp_path / "runs" / "x.json").write_text("{")
    assert batchjob.history(data=str(tmp_path)) == [run]

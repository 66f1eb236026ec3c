"""`history`, `job` and `stats` of batchjob: runs and tracked work, read from Python."""

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
def write_run(tmp_path):
    directory = create_directory(tmp_path, "runs")

    def write(number: int, **changes) -> Run:
        """Record a completed run that started `number` seconds after `START`."""
        run = Run(
            jobid=f"{number:08x}-d9cb-469f-a165-70867728950e", node=os.uname().nodename,
            user=login(), uid=os.geteuid(), submit_time=START, start_time=START + number,
            state=JobState.COMPLETED, supervisor=current_process(), end_time=START + number + 10,
            user_cpu_seconds=3.0, system_cpu_seconds=1.0,
        )._replace(**changes)  # fmt: skip
        record.write(directory, run)
        return run

    return write


def test_history_is_filtered_and_newest_first(write_run, tmp_path):
    first, second = write_run(1, tool="blast"), write_run(2, name="b", state=JobState.FAILED)
    data = str(tmp_path)
    assert batchjob.history(data=data) == [second, first]
    assert batchjob.history(data=data, limit=1) == [second]
    assert batchjob.history(data=data, tool="blast") == [first]
    assert batchjob.history(data=data, status="success") == [first]
    assert batchjob.history(data=data, since=START + 2) == [second]
    assert batchjob.history(data=data, until=START + 2) == [first]


def test_duration_has_no_rounding_error(write_run):
    assert write_run(1, end_time=START + 1.154).duration_seconds == 0.154


def test_missing_data_directory_has_no_runs(tmp_path):
    assert batchjob.history(data=str(tmp_path / "none")) == []
    with pytest.raises(history.UnknownRun, match="no run has the id or name 'x'"):
        batchjob.job("x", data=str(tmp_path))


def test_job_is_found_by_id_prefix_or_name(write_run, tmp_path):
    train = write_run(0x10, name="train")
    other = write_run(0x11, name="other")
    find_job = partial(batchjob.job, data=str(tmp_path))
    assert (find_job(train.jobid), find_job("00000010"), find_job("other")) == (train, train, other)
    for text in ("0000001", ""):
        with pytest.raises(history.UnknownRun):
            find_job(text)
    write_run(0x12, name="train")
    with pytest.raises(history.UnknownRun, match=r"'train' matches 2 runs: 00000012-.*00000010-"):
        find_job("train")


def test_job_is_found_for_its_user_only(write_run, tmp_path):
    run = write_run(0x10, name="train")
    assert batchjob.job("train", data=str(tmp_path), user=login()) == run
    for text in ("train", run.jobid):
        with pytest.raises(history.UnknownRun, match="no run has"):
            batchjob.job(text, data=str(tmp_path), user="somebody-else")


def test_name_takes_precedence_over_id_prefix(write_run, tmp_path):
    write_run(0xB0000000)
    named = write_run(0x10, name="b")
    assert batchjob.job("b", data=str(tmp_path)) == named


def test_attempts_of_task_are_found_by_record_id(write_run, tmp_path):
    write_run(1, record_id="5b7c", restarts=0)
    last = write_run(2, record_id="5b7c", restarts=1, workflow="order-17")
    data = str(tmp_path)
    assert batchjob.job("5b7c", data) == last
    assert len(batchjob.history(record_id="5b7c", data=data)) == 2
    assert batchjob.history(workflow="order-17", data=data) == [last]


def test_running_run_without_supervisor_has_vanished(write_run, tmp_path):
    own_process = current_process()
    write_run(1, state=JobState.RUNNING, end_time=None)
    write_run(2, state=JobState.RUNNING, supervisor=own_process._replace(start_ticks=1))
    found = batchjob.history(data=str(tmp_path))
    assert [run.status for run in found] == ["vanished", "running"]


def test_stats_by_tool_and_of_all_runs(write_run, tmp_path):
    write_run(1, tool="a", peak_memory_bytes=5)
    write_run(2, tool="a", state=JobState.FAILED, peak_memory_bytes=7)
    write_run(3, tool="b", state=JobState.RUNNING, end_time=None)
    a, b = batchjob.stats(by="tool", data=str(tmp_path))
    assert a == history.Stats("a", 2, 2, 1, 1, 0.5, 20, 10, 8.0, 4.0, 7)
    (overall,) = batchjob.stats(by="all", data=str(tmp_path))
    assert (overall.key, overall.runs, overall.succeeded, overall.failed) == ("all", 3, 1, 1)
    assert (b.runs, b.ended, b.success_ratio, b.peak_memory_bytes) == (1, 0, None, None)
    with pytest.raises(ValueError, match="expected one of name"):
        batchjob.stats(by="color", data=str(tmp_path))


def test_run_record_round_trip(write_run, tmp_path):
    run = write_run(1, parameters='{"a": 1}', error="text", restarts=2)
    document = record.read(tmp_path / "runs" / f"{run.jobid}.json")
    assert decode_run(document) == run
    assert decode_run(document | {"of_a_later_version": 1}) == run


@pytest.mark.parametrize(
    "change", [{"state": "X"}, {"supervisor": 1}, {"submit_time": "x"}, {"start_time": "x"}]
)
def test_invalid_run_record_is_rejected(write_run, tmp_path, change):
    run = write_run(1)
    document = record.read(tmp_path / "runs" / f"{run.jobid}.json")
    with pytest.raises(RunFileError, match="not a run"):
        decode_run(document | change)


def test_damaged_file_does_not_hide_other_runs(write_run, tmp_path):
    run = write_run(1)
    (tmp_path / "runs" / "x.json").write_text("{")
    assert batchjob.history(data=str(tmp_path)) == [run]

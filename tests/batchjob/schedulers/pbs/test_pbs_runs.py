"""The runs of one PBS job, from the lines of its accounting log."""

from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.pbs.accounting import pbs_log
from batchjob.schedulers.pbs.accounting.pbs_log import PbsLog
from batchjob.schedulers.records import merge_records
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.pbs.pbs import END_HEAD, END_TAIL, LOG, log_line, read_all


def test_rerun_is_a_separate_record(write_log):
    jobs = read_all(write_log(LOG))[0]
    first, second = jobs["16.pbs01", 1], jobs["16.pbs01", 2]
    assert (first.state, first.end_time) == (JobState.REQUEUED, 1795175582)
    assert (second.state, second.start_time) == (JobState.CANCELLED, 1795175583)
    assert first.submit_time == second.submit_time


def test_second_start_without_an_end_is_another_run(write_log):
    unfinished = {"5.s": UnfinishedJob(1775296800, 1, 1775296801)}
    start_line = (
        "04/04/2026 12:30:00;S;5.s;user=a ctime=1775296800 start=1775298600 exec_host=n/0\n"
    )
    jobs = read_all(write_log(start_line), unfinished=unfinished)[0]
    assert jobs["5.s", 1].state == JobState.REQUEUED
    assert (jobs["5.s", 2].state, jobs["5.s", 2].start_time) == (JobState.RUNNING, 1775298600)


def test_reused_id_is_another_job(write_log):
    unfinished = {"101.srv": UnfinishedJob(1675296800, 3, 1675296900)}
    jobs = read_all(write_log(f"{END_HEAD} {END_TAIL}\n"), unfinished=unfinished)[0]
    assert list(jobs) == [("101.srv", 1)]


def test_torque_run_ends_when_it_is_rerun(write_log):
    """Torque logs a rerun with nothing but the id."""
    begin = 1_795_100_000
    start = f"ctime={begin} user=alice queue=q exec_host=n1/0 start="
    text = (
        log_line(begin, "Q", "7.srv", "queue=q")
        + log_line(begin + 10, "S", "7.srv", f"{start}{begin + 10}")
        + log_line(begin + 3610, "R", "7.srv")
        + log_line(begin + 7000, "S", "7.srv", f"{start}{begin + 7000}")
        + log_line(
            begin + 8000, "E", "7.srv", f"{start}{begin + 7000} end={begin + 8000} Exit_status=0"
        )
    )
    jobs, _, quarantined = read_all(write_log(text))
    assert quarantined == []
    first, second = jobs["7.srv", 1], jobs["7.srv", 2]
    assert (first.state, first.end_time, first.elapsed_seconds) == (
        JobState.REQUEUED, begin + 3610, 3600,
    )  # fmt: skip
    assert (second.start_time, second.end_time) == (begin + 7000, begin + 8000)
    assert len(jobs) == 2


def test_run_without_a_logged_end_ends_where_the_next_begins(write_log):
    begin = 1_795_100_000
    start = f"ctime={begin} user=alice queue=q exec_host=n1/0 start="
    text = log_line(begin + 10, "S", "7.srv", f"{start}{begin + 10}")
    text += log_line(begin + 7000, "S", "7.srv", f"{start}{begin + 7000}")
    jobs, _, _ = read_all(write_log(text))
    lost = jobs["7.srv", 1]
    assert (lost.state, lost.end_time, lost.elapsed_seconds) == (
        JobState.REQUEUED, begin + 7000, 6990,
    )  # fmt: skip
    assert lost.reason == "its end was not logged"
    assert jobs["7.srv", 2].state is JobState.RUNNING


@given(st.data())
def test_lines_out_of_order_give_the_same_runs(tmp_path_factory, data):
    """Lines jittered by up to 20 s; a job of three runs, each longer than that."""
    begin = 1_795_100_000
    times = f"ctime={begin} user=alice queue=q exec_host=n1/0*2"
    events = [(begin, "Q", f"ctime={begin} queue=q")]
    for run, (start, end) in enumerate([(30, 600), (630, 900), (930, 4000)], 1):
        start_attributes = f"{times} start={begin + start}"
        events.append((begin + start, "S", start_attributes))
        kind = "E" if run == 3 else "R"
        end_attributes = f"{start_attributes} end={begin + end} run_count={run} Exit_status=0"
        events.append((begin + end, kind, end_attributes))
    jitter = st.integers(0, 40)
    shuffled = sorted(events, key=lambda event: event[0] + data.draw(jitter))
    folder = tmp_path_factory.mktemp("logs")
    (folder / "20261120").write_text(
        "".join(log_line(at, kind, "7.srv", a) for at, kind, a in shuffled)
    )
    source = PbsLog("c1", pbs_log.PbsLogOptions(path=str(folder), time_zone="UTC"))
    records = [job for batch in source.read('{"since": 0}', {}) for job in batch.jobs]
    runs = {}
    for job in records:
        runs[job.run] = merge_records(runs[job.run], job) if job.run in runs else job
    assert {run: (job.start_time, job.end_time) for run, job in sorted(runs.items())} == {
        1: (begin + 30, begin + 600), 2: (begin + 630, begin + 900), 3: (begin + 930, begin + 4000),
    }  # fmt: skip
    assert [runs[run].state for run in (1, 2, 3)] == [
        JobState.REQUEUED, JobState.REQUEUED, JobState.COMPLETED,
    ]  # fmt: skip

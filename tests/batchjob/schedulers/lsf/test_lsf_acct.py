"""LSF's lsb.acct and lsb.stream, on lines made after the documented formats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.accounting import SourceError
from batchjob.schedulers.lsf.accounting import lsb_acct, lsb_stream
from batchjob.schedulers.lsf.accounting.event_records import join_records, split_words
from batchjob.schedulers.lsf.accounting.lsb_acct import job_from_finish
from batchjob.schedulers.lsf.accounting.lsb_stream import job_from_finish2
from batchjob.schedulers.records import NodeShare, Reallocation
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.lsf.lsf import FINISH_PARTS, finish_line, read

GB = 1024**3


def finished_job(text: str):
    job, complaints = job_from_finish("c1", split_words(text))
    assert not complaints
    return job


def test_finished_job():
    job = finished_job(finish_line())
    assert (job.jobid, job.array_jobid, job.array_index) == ("4242[3]", "4242", 3)
    assert (job.user, job.uid, job.account, job.partition) == ("alice", 1001, "projA", "gpu")
    assert (job.submit_time, job.start_time, job.end_time) == (1775300000, 1775300100, 1775304000)
    assert (job.state, job.state_word, job.exit_code, job.exit_signal) == (
        "COMPLETED",
        "DONE",
        0,
        0,
    )
    assert job.submit_line == 'python train.py --msg "hello world"'
    assert job.nodes == (NodeShare("node01", 2), NodeShare("node02", 2))
    assert (job.requested_cpus, job.allocated_cpus, job.allocated_nodes) == (4, 4, 2)
    assert (job.time_limit_seconds, job.elapsed_seconds) == (7200, 3900)
    assert job.cpu_seconds == pytest.approx(3613.75)
    assert job.peak_memory_bytes == 2 * GB
    assert job.requested_gpus is None  # for each host or for the job? two hosts: not known
    assert (job.work_dir, job.stdout_path) == ("/home/alice/run", "out.%J")


def test_job_killed_while_pending():
    head = FINISH_PARTS["head"].replace("1775300100", "0")
    parts = {"head": head, "status": "32 0.0", "info": "14", "rusage": "-1 " * 18 + "-1"}
    for planned in ({"hosts": "0", "slots": "0"}, {}):  # hosts may be named; it held none
        job = finished_job(finish_line(**parts, **planned))
        assert (job.state, job.reason) == (JobState.CANCELLED, "TERM_OWNER")
        assert (job.start_time, job.exit_code, job.cpu_seconds) == (None, None, None)
        assert (job.nodes, job.node_list, job.allocated_nodes) == ((), "", None)


@pytest.mark.parametrize(
    ("status", "wait", "info", "state", "code", "signal"),
    [
        (32, 256, 0, JobState.FAILED, 1, 0),
        (32, 65280, 0, JobState.FAILED, 255, 0),
        (32, 9, 16, JobState.OUT_OF_MEMORY, 0, 9),
        (32, 35584, 5, JobState.TIMEOUT, 139, 0),
        (96, 0, 0, JobState.COMPLETED, 0, 0),
        (192, 0, 0, JobState.COMPLETED, 0, 0),
    ],
)
def test_end_state_and_exit_code(status, wait, info, state, code, signal):
    text = finish_line(
        status=f"{status} 12.5",
        exit=FINISH_PARTS["exit"].replace(" 0 4 ", f" {wait} 4 ", 1),
        info=str(info),
    )
    job = finished_job(text)
    assert (job.state, job.exit_code, job.exit_signal) == (state, code, signal)


def test_requeued_run_has_a_key_of_its_own():
    requeued = finished_job(finish_line(status="32 12.5", info="10"))
    assert requeued.state == JobState.REQUEUED
    assert requeued.key != finished_job(finish_line()).key


@pytest.mark.parametrize("usage", ['1 "n1" 5 6 7 8', '2 n1 5 6 7 8 n2 5 6 7 8',
                                   '2 "n1" 5 6 7 8 0 "n2" 5 6 7 8 0'])  # fmt: skip
def test_host_usage_has_five_or_six_values(usage):
    assert finished_job(finish_line(usage=usage)).time_limit_seconds == 7200


def test_abbreviated_and_requested_hosts():
    text = finish_line(
        file='"1775300000.4242" 1 "pac"', hosts='2 "16*node01" "16*node02"', slots=""
    )
    text = text.replace("  ", " ").removesuffix(FINISH_PARTS["end"]).strip()  # as LSF 9.11 ends
    assert finished_job(text).nodes == (NodeShare("node01", 16), NodeShare("node02", 16))


@pytest.mark.parametrize("last", ["info", "more", "ext", "usage", "limits", "resreq", "rest"])
def test_shorter_records_of_older_versions(last):
    names = list(FINISH_PARTS)
    text = " ".join(FINISH_PARTS[name] for name in names[: names.index(last) + 1])
    job, _ = job_from_finish("c1", split_words(text))
    assert (job.jobid, job.state, job.cpu_seconds) == ("4242[3]", "COMPLETED", 3613.75)


def finish_line_of(jobid: int) -> str:
    return finish_line(head=FINISH_PARTS["head"].replace("4242", str(jobid))) + "\n"


def test_bad_records_go_to_quarantine_and_reading_continues(write_acct):
    text = (
        "#1234\n"
        + finish_line_of(1)
        + finish_line(hosts="4 x").partition(" 64 12.5")[0] + "\n"
        + finish_line_of(2)
        + "garbage that LSF did not write\n"
        + '"EVENT_ADRSV_FINISH" "10.1" 1775304000 1\n'
        + '"JOB_FINISH" "10.1" 1775304000 9 1001\n'
        + finish_line_of(3)
    )  # fmt: skip
    jobs, _, quarantined = read(write_acct(text))
    assert [job.array_jobid for job in jobs] == ["1", "2", "3"]
    assert len(quarantined) == 2


def test_record_with_a_line_break_is_joined(write_acct):
    text = finish_line_of(1).replace("hello world", "hello\r\nworld") + finish_line_of(2)
    jobs, _, quarantined = read(write_acct(text))
    assert [job.array_jobid for job in jobs] == ["1", "2"]
    assert "hello world" in jobs[0].submit_line
    assert not quarantined


def test_invalid_utf8_is_escaped(write_acct):
    jobs, _, _ = read(write_acct(finish_line_of(1).encode().replace(b"train[", b"tr\xe4in[")))
    assert jobs[0].name == "tr\\xe4in[1-9]"


def test_rotation(write_acct, tmp_path):
    _, watermark, _ = read(write_acct(finish_line_of(1)))
    write_acct(finish_line_of(1) + finish_line_of(2))
    (tmp_path / "lsb.acct").rename(tmp_path / "lsb.acct.1")
    jobs, watermark, _ = read(write_acct(finish_line_of(3)), watermark)
    assert [job.array_jobid for job in jobs] == ["2", "3"]
    (tmp_path / "lsb.acct.1").rename(tmp_path / "lsb.acct.2")
    (tmp_path / "lsb.acct").rename(tmp_path / "lsb.acct.1")
    jobs, _, _ = read(write_acct(finish_line_of(4)), watermark)
    assert [job.array_jobid for job in jobs] == ["4"]


def test_record_that_was_cut_is_set_aside(write_acct):
    whole = finish_line_of(1)
    write_acct(whole + whole.rstrip("\n")[:-10], "lsb.acct.1")
    jobs, _, quarantined = read(write_acct(finish_line_of(2)))
    assert [job.array_jobid for job in jobs] == ["1", "2"]
    assert [row.reason for row in quarantined] == ["the file ends within this record"]


def test_rotation_by_copying_and_truncating(write_acct, tmp_path):
    first = "".join(finish_line_of(jobid) for jobid in range(1, 9))
    _, watermark, _ = read(write_acct(first))
    (tmp_path / "lsb.acct.1").write_text(first + finish_line_of(9))
    (tmp_path / "lsb.acct.2").write_text(finish_line_of(99))  # read long ago
    jobs, watermark, _ = read(write_acct(finish_line_of(10)), watermark)
    assert [job.array_jobid for job in jobs] == ["9", "10"]
    jobs, _, _ = read(write_acct(finish_line_of(10) + finish_line_of(11)), watermark)
    assert [job.array_jobid for job in jobs] == ["11"]


def test_large_file_is_read_in_batches(write_acct):
    source = write_acct("".join(finish_line_of(jobid) for jobid in range(1, 5001)))
    batches = list(source.read('{"since": 0}', {}))
    assert [len(batch.jobs) for batch in batches] == [2000, 2000, 1000]
    remaining = list(source.read(batches[1].watermark, {}))
    assert [batch.jobs for batch in remaining] == [batches[2].jobs]


def test_missing_file_is_an_error(tmp_path):
    source = lsb_acct.build("c1", lsb_acct.EventFileOptions(path=str(tmp_path / "lsb.acct")))
    assert "No such file" in source.check()[0]
    with pytest.raises(SourceError, match="No such file"):
        read(source)


text = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]) | st.just(" "), max_size=30)


@given(text, text)
def test_quoted_strings_round_trip(name, command):
    quoted = [f'"{each.replace(chr(34), chr(34) * 2)}"' for each in (name, command)]
    job = finished_job(finish_line(name=quoted[0], command=quoted[1]))
    assert (job.name, job.submit_line) == (name, command)


@given(st.lists(st.binary(max_size=50)))
def test_any_lines_can_be_joined_and_split(lines):
    for record in join_records(lines):
        split_words(record)


STREAM_LINE = (
    '"JOB_FINISH2" "10.1" 1775304000 4242 20 "userId" "1001" "userName" "alice" "numProcessors" "4"'
    ' "jStatus" "64" "submitTime" "1775300000" "startTime" "1775300100" "endTime" "1775304000"'
    ' "queue" "gpu" "fromHost" "login01" "numExHosts" "2" "execHosts" "node01" "slotUsages" "2"'
    ' "execHosts" "node02" "slotUsages" "2" "cpuTime" "3613.750000" "runtime" "3900"'
    ' "maxMem" "2097152" "projectName" "projA" "jobName" "say ""hi"""'
)


def test_lsb_stream_agrees_with_lsb_acct():
    job, complaints = job_from_finish2("c1", split_words(STREAM_LINE))
    same = finished_job(finish_line())._replace(array_jobid="", array_index=None, jobid="4242")
    assert not complaints
    for name in (
        "key", "state", "user", "uid", "account", "partition", "start_time", "end_time",
        "exit_code", "nodes", "allocated_cpus", "cpu_seconds", "peak_memory_bytes",
    ):  # fmt: skip
        assert getattr(job, name) == getattr(same, name), name
    assert job.name == 'say "hi"'


def test_lsb_stream_rotation(tmp_path):
    source = lsb_stream.build("c1", lsb_acct.EventFileOptions(path=str(tmp_path / "lsb.stream")))
    (tmp_path / "lsb.stream").write_text(f"{STREAM_LINE}\n")
    _, watermark, _ = read(source)
    (tmp_path / "lsb.stream").rename(tmp_path / "lsb.stream.1775304000")
    (tmp_path / "lsb.stream").write_text(
        STREAM_LINE.replace("4242", "4243") + '\n"JOB_NEW" "10.1" 1\n'
    )
    jobs, _, quarantined = read(source, watermark)
    assert [job.jobid for job in jobs] == ["4243"]
    assert not quarantined


def test_resized_job_held_the_sum_of_its_phases(write_acct):
    """Eight slots for 1800 s, two for 600 s, then four until its end after 3900 s.

    The records are made from IBM's lsb.acct(5), since there is no recording: the hosts before and
    of the change, the slots before and of the change, each after their number.
    """
    head = '"JOB_RESIZE" "10.1" {at} 4242 3 1775300100 1001 "alice" {kind} {since} '
    shrunk = '2 "2*node03" "6*node02" 1 "6*node02" 2 "2*node03" "6*node02" 1 "6*node02"'
    first = head.format(at=1775301900, since=1775300100, kind=1) + shrunk
    grown = '1 "node03" 1 "node02" 1 "2*node03" 1 "2*node02"'  # tasks of two slots each
    second = head.format(at=1775302500, since=1775301900, kind=0) + grown
    source = write_acct(f"{first}\n")
    jobs, watermark, quarantined = read(source)
    assert (jobs, quarantined) == ([], [])
    write_acct(f"{first}\n{second}\n{finish_line()}\n")
    (job,), watermark, quarantined = read(source, watermark)  # after a restart as well
    assert quarantined == []
    held = job.allocated_cpus * job.elapsed_seconds + job.resized_cpu_seconds
    assert held == 8 * 1800 + 2 * 600 + 4 * (3900 - 2400)
    assert job.reallocations == (Reallocation(1775301900, 6), Reallocation(1775302500, -2))
    until = {share.node: share.until_time for share in job.nodes}
    assert until == {"node01": None, "node02": None, "node03": 1775302500}
    assert job.allocated_nodes == 3
    assert "phases" not in watermark


def test_damaged_record_of_a_resized_job_is_set_aside(write_acct):
    head = '"JOB_RESIZE" "10.1" 1775301900 4242 3 1775300100 1001 "alice" 1 1775300100'
    for damaged in ('"JOB_RESIZE" "10.1" 1 2 x', f'{head} 9 "node01"', f'{head} -1 "a"'):
        jobs, _, quarantined = read(write_acct(f"{damaged}\n{finish_line()}\n"))
        assert [job.reallocations for job in jobs] == [()]
        assert "not a record of a resized job" in quarantined[0].reason


def test_suspended_job_ran_as_long_as_lsf_counted(write_acct):
    rest = FINISH_PARTS["rest"].replace("3900", "900")
    (job,), _, _ = read(write_acct(finish_line(rest=rest) + "\n"))
    assert (job.elapsed_seconds, job.suspended_seconds) == (900, 3000)

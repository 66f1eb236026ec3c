"""LSF: lsb.acct, lsb.stream and bjobs, on lines made after the documented formats."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.subprocesses import NotJsonError
from batchjob.schedulers.accounting import ShrunkenError, SourceError, UnfinishedJob
from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.lsf.accounting import bjobs, lsb_acct, lsb_stream
from batchjob.schedulers.lsf.accounting.bjobs import Bjobs
from batchjob.schedulers.lsf.accounting.lsb_acct import job_from_finish
from batchjob.schedulers.lsf.accounting.lsb_line import join_records, split_words
from batchjob.schedulers.lsf.accounting.lsb_stream import job_from_finish2
from batchjob.schedulers.lsf.formats import lsf_time
from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.states import JobState

KB, MB, GB = 1024, 1024**2, 1024**3

RUSAGE = "3601.250000 12.500000 2097152 0 -1 0 0 51200 3 0 0 0 -1 0 0 0 900 40 -1"
RAN = {
    "head": '"JOB_FINISH" "10.1" 1775304000 4242 1001 33554435 4 1775300000 0 0 1775300100 "alice"',
    "where": '"gpu" "rusage[mem=4096]" "" "" "login01" "/home/alice/run" "" "out.%J" "err.%J"',
    "file": '"1775300000.4242" 0',
    "hosts": '4 "node01" "node01" "node02" "node02"',
    "status": "64 12.5",
    "name": '"train[1-9]"',
    "command": '"python train.py --msg ""hello world"""',
    "rusage": RUSAGE,
    "exit": '"" "projA" 0 4 "" "" 3 2097152 4194304 "" "" "" "" 0 ""',
    "info": "0",
    "more": '"" -1 "/projA/alice" "" "ml" "" -1 "" "" 5136 "" 1775300100 "" ""',
    "ext": '2 1032 "0" 1033 "0"',
    "usage": "0",
    "limits": "7200 4194304 1500000",
    "resreq": '"select[type == any] order[r15s:pg] rusage[mem=4096.00,ngpus_physical=1.00] "',
    "rest": '"" -1 "" -1 0 "" 0 0 "" 3900 "/home/alice/run" 0 "" 0.000000 0.00 0.00 0.00 0.00',
    "slots": '4 "node01" "node01" "node02" "node02"',
    "end": '-1 0 0 0 0 1 "schedulingOverhead" "0.00"',
}


def line(**changes) -> str:
    return " ".join((RAN | changes).values())


def finished(text: str):
    job, complaints = job_from_finish("c1", split_words(text))
    assert not complaints
    return job


def test_a_job_that_ran():
    job = finished(line())
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


def test_a_job_killed_while_it_waited():
    head = RAN["head"].replace("1775300100", "0")
    waits = line(
        head=head, hosts="0", status="32 0.0", slots="0", info="14", rusage="-1 " * 18 + "-1"
    )
    job = finished(waits)
    assert (job.state, job.reason) == (JobState.CANCELLED, "TERM_OWNER")
    assert (job.start_time, job.nodes, job.exit_code, job.cpu_seconds) == (None, (), None, None)


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
def test_how_jobs_ended(status, wait, info, state, code, signal):
    text = line(
        status=f"{status} 12.5", exit=RAN["exit"].replace(" 0 4 ", f" {wait} 4 ", 1), info=str(info)
    )
    job = finished(text)
    assert (job.state, job.exit_code, job.exit_signal) == (state, code, signal)


def test_a_requeued_run_does_not_stand_in_the_way_of_the_last():
    requeued = finished(line(status="32 12.5", info="10"))
    assert requeued.state == JobState.REQUEUED
    assert requeued.key != finished(line()).key


@pytest.mark.parametrize("usage", ['1 "n1" 5 6 7 8', '2 n1 5 6 7 8 n2 5 6 7 8',
                                   '2 "n1" 5 6 7 8 0 "n2" 5 6 7 8 0'])  # fmt: skip
def test_usage_of_hosts_has_five_or_six_values(usage):
    assert finished(line(usage=usage)).time_limit_seconds == 7200


def test_short_hosts_and_asked_hosts():
    text = line(file='"1775300000.4242" 1 "pac"', hosts='2 "16*node01" "16*node02"', slots="")
    text = text.replace("  ", " ").removesuffix(RAN["end"]).strip()  # as LSF 9.11 ends
    assert finished(text).nodes == (NodeShare("node01", 16), NodeShare("node02", 16))


@pytest.mark.parametrize("last", ["info", "more", "ext", "usage", "limits", "resreq", "rest"])
def test_older_and_shorter_records(last):
    names = list(RAN)
    text = " ".join(RAN[name] for name in names[: names.index(last) + 1])
    job, _ = job_from_finish("c1", split_words(text))
    assert (job.jobid, job.state, job.cpu_seconds) == ("4242[3]", "COMPLETED", 3613.75)


@pytest.fixture
def acct(tmp_path):
    """`acct(text, "lsb.acct.1")` writes a file and gives the source."""

    def write(text, name="lsb.acct"):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        return lsb_acct.build("c1", lsb_acct.LsbAcctOptions(path=str(tmp_path / "lsb.acct")))

    return write


def read(source, watermark="", unfinished=None):
    found, bad = [], []
    for batch in source.read(watermark or source.watermark_at(0), unfinished or {}):
        watermark = batch.watermark
        found += batch.jobs
        bad += batch.quarantined
    return found, watermark, bad


def other(jobid: int) -> str:
    return line(head=RAN["head"].replace("4242", str(jobid))) + "\n"


def test_bad_records_go_to_quarantine_and_the_next_one_is_read(acct):
    text = (
        "#1234\n"
        + other(1)
        + line(hosts="4 x").partition(" 64 12.5")[0] + "\n"
        + other(2)
        + "garbage that LSF did not write\n"
        + '"EVENT_ADRSV_FINISH" "10.1" 1775304000 1\n'
        + '"JOB_FINISH" "10.1" 1775304000 9 1001\n'
        + other(3)
    )  # fmt: skip
    found, _, bad = read(acct(text))
    assert [job.array_jobid for job in found] == ["1", "2", "3"]
    assert len(bad) == 2


def test_a_record_cut_by_a_line_break_is_one(acct):
    text = other(1).replace("hello world", "hello\r\nworld") + other(2)
    found, _, bad = read(acct(text))
    assert [job.array_jobid for job in found] == ["1", "2"]
    assert "hello world" in found[0].submit_line
    assert not bad


def test_bytes_that_are_no_utf_8(acct):
    found, _, _ = read(acct(other(1).encode().replace(b"train[", b"tr\xe4in[")))
    assert found[0].name == "tr\\xe4in[1-9]"


def test_rotation(acct, tmp_path):
    _, watermark, _ = read(acct(other(1)))
    acct(other(1) + other(2))
    (tmp_path / "lsb.acct").rename(tmp_path / "lsb.acct.1")
    found, watermark, _ = read(acct(other(3)), watermark)
    assert [job.array_jobid for job in found] == ["2", "3"]
    (tmp_path / "lsb.acct.1").rename(tmp_path / "lsb.acct.2")
    (tmp_path / "lsb.acct").rename(tmp_path / "lsb.acct.1")
    found, _, _ = read(acct(other(4)), watermark)
    assert [job.array_jobid for job in found] == ["4"]


def test_rotation_by_copying_and_truncating(acct, tmp_path):
    first = "".join(other(jobid) for jobid in range(1, 9))
    _, watermark, _ = read(acct(first))
    (tmp_path / "lsb.acct.1").write_text(first + other(9))
    (tmp_path / "lsb.acct.2").write_text(other(99))  # read long ago
    found, watermark, _ = read(acct(other(10)), watermark)
    assert [job.array_jobid for job in found] == ["9", "10"]
    found, _, _ = read(acct(other(10) + other(11)), watermark)
    assert [job.array_jobid for job in found] == ["11"]


def test_a_file_of_many_records_comes_in_batches(acct):
    source = acct("".join(other(jobid) for jobid in range(1, 5001)))
    batches = list(source.read('{"since": 0}', {}))
    assert [len(batch.jobs) for batch in batches] == [2000, 2000, 1000]
    again = list(source.read(batches[1].watermark, {}))
    assert [batch.jobs for batch in again] == [batches[2].jobs]


def test_no_file(tmp_path):
    source = lsb_acct.build("c1", lsb_acct.LsbAcctOptions(path=str(tmp_path / "lsb.acct")))
    assert "No such file" in source.check()[0]
    with pytest.raises(SourceError, match="No such file"):
        read(source)


text = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]) | st.just(" "), max_size=30)


@given(text, text)
def test_quoted_strings_come_back(name, command):
    quoted = [f'"{each.replace(chr(34), chr(34) * 2)}"' for each in (name, command)]
    job = finished(line(name=quoted[0], command=quoted[1]))
    assert (job.name, job.submit_line) == (name, command)


@given(st.lists(st.binary(max_size=50)))
def test_any_lines_give_records(lines):
    for record in join_records(lines):
        split_words(record)


STREAM = (
    '"JOB_FINISH2" "10.1" 1775304000 4242 20 "userId" "1001" "userName" "alice" "numProcessors" "4"'
    ' "jStatus" "64" "submitTime" "1775300000" "startTime" "1775300100" "endTime" "1775304000"'
    ' "queue" "gpu" "fromHost" "login01" "numExHosts" "2" "execHosts" "node01" "slotUsages" "2"'
    ' "execHosts" "node02" "slotUsages" "2" "cpuTime" "3613.750000" "runtime" "3900"'
    ' "maxMem" "2097152" "projectName" "projA" "jobName" "say ""hi"""'
)


def test_lsb_stream_says_the_same_as_lsb_acct():
    job, complaints = job_from_finish2("c1", split_words(STREAM))
    same = finished(line())._replace(array_jobid="", array_index=None, jobid="4242")
    assert not complaints
    for name in (
        "key", "state", "user", "uid", "account", "partition", "start_time", "end_time",
        "exit_code", "nodes", "allocated_cpus", "cpu_seconds", "peak_memory_bytes",
    ):  # fmt: skip
        assert getattr(job, name) == getattr(same, name), name
    assert job.name == 'say "hi"'


def test_lsb_stream_follows_its_rotation(tmp_path):
    source = lsb_stream.build("c1", lsb_stream.LsbStreamOptions(path=str(tmp_path / "lsb.stream")))
    (tmp_path / "lsb.stream").write_text(f"{STREAM}\n")
    _, watermark, _ = read(source)
    (tmp_path / "lsb.stream").rename(tmp_path / "lsb.stream.1775304000")
    (tmp_path / "lsb.stream").write_text(STREAM.replace("4242", "4243") + '\n"JOB_NEW" "10.1" 1\n')
    found, _, bad = read(source, watermark)
    assert [job.jobid for job in found] == ["4243"]
    assert not bad


RECORD = {
    "JOBID": "4242", "JOBINDEX": "3", "STAT": "RUN", "USER": "alice", "QUEUE": "gpu",
    "JOB_NAME": "train[3]", "PROJ_NAME": "projA", "ALLOC_SLOT": "node01:node01:2*node02",
    "SUBMIT_TIME": "Apr  4 12:00:00 2026", "START_TIME": "Apr  4 12:01:40 2026",
    "FINISH_TIME": "Apr  4 14:01:40 2026 L", "CPU_USED": "12.3 second(s)", "MAX_MEM": "2 Gbytes",
    "MEMLIMIT": "", "RUNTIMELIMIT": "120.0", "GPU_NUM": "2", "EXIT_CODE": "", "EXIT_REASON": "",
}  # fmt: skip
NOW = 1775306000  # 4 April 2026, 12:33:20 UTC


@pytest.fixture
def source(tmp_path):
    """`source(output)` is a source whose bjobs prints it."""

    def make(output: bytes, status=0) -> Bjobs:
        (tmp_path / "output").write_bytes(output)
        script = tmp_path / "bjobs"
        script.write_text(f"#!/bin/sh\ncat {tmp_path}/output\nexit {status}\n")
        script.chmod(0o755)
        return Bjobs("c1", bjobs.BjobsOptions(bjobs=str(script)), lambda: NOW)

    return make


def printed(*changes) -> bytes:
    rows = [RECORD | change for change in changes]
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(rows), "RECORDS": rows}).encode()


def test_bjobs(source):
    (job,), watermark, bad = read(source(b"Cannot connect to LSF. Please wait ...\n" + printed({})))
    assert not bad
    assert watermark == str(NOW)
    assert (job.jobid, job.state, job.end_time) == ("4242[3]", JobState.RUNNING, None)
    assert (job.submit_time, job.start_time) == (1775304000, 1775304100)
    assert job.nodes == (NodeShare("node01", 2), NodeShare("node02", 2))
    assert (job.peak_memory_bytes, job.cpu_seconds, job.time_limit_seconds) == (2 * GB, 12.3, 7200)


@pytest.mark.parametrize(
    ("change", "state", "code"),
    [
        ({"STAT": "DONE"}, JobState.COMPLETED, 0),
        ({"STAT": "EXIT", "EXIT_CODE": "3"}, JobState.FAILED, 3),
        ({"STAT": "EXIT", "EXIT_CODE": "130", "EXIT_REASON": "TERM_RUNLIMIT: job killed"},
         JobState.TIMEOUT, 130),
    ],
)  # fmt: skip
def test_bjobs_of_ended_jobs(source, change, state, code):
    (job,), _, _ = read(source(printed(change)))
    assert (job.state, job.exit_code, job.end_time) == (state, code, 1775311300)


def test_a_record_that_cannot_be_read_goes_to_quarantine_alone(source):
    output = printed({"JOBID": "x"}, {"SUBMIT_TIME": "soon"}, {"MAX_MEM": "much"})
    found, _, bad = read(source(output))
    assert len(found) == 1
    assert [row.reason.partition(":")[0] for row in bad] == ["JOBID", "SUBMIT_TIME", "MAX_MEM"]


def test_no_jobs_are_no_error_unless_there_were_some(source):
    nothing = source(b"No job found\n", status=255)
    assert read(nothing)[0] == []
    with pytest.raises(ShrunkenError):
        read(nothing, str(NOW - 60), {"1": UnfinishedJob(1, 1, None)})
    with pytest.raises(NotJsonError, match="expected a JSON object, got 'LSF is down'"):
        read(source(b"LSF is down"))


def test_a_name_that_is_not_utf_8_keeps_no_job_out(source):
    output = printed({"JOB_NAME": "caf?"}, {"JOBID": "7"}).replace(b"caf?", b"caf\xe9")
    jobs, _, bad = read(source(output))
    assert not bad
    assert [job.name for job in jobs] == ["caf\ufffd", RECORD["JOB_NAME"]]


def test_after_a_longer_absence_than_lsf_remembers_missing_jobs_have_ended(source):
    known = {str(number): UnfinishedJob(1, 1, None) for number in range(50)}
    (*_, last) = source(b"No job found\n", status=255).read(str(NOW - 3601), known)
    assert len(last.vanished) == 50


def test_a_time_without_seconds_finds_the_job_it_means(source, acct):
    vague = source(printed({"SUBMIT_TIME": "Apr  4 12:00"}))
    known = {"4242[3]": UnfinishedJob(1775304007, 1, None)}
    assert read(vague, "0", known)[0][0].submit_time == 1775304007
    known = {"4242[3]": UnfinishedJob(1775299980, 1, None)}
    (job,) = read(acct(line() + "\n"), unfinished=known)[0]
    assert job.submit_time == 1775299980


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("Apr  4 12:00", 1775304000),
        ("Apr  4 12:00:30 X", 1775304030),
        ("Dec 31 23:59", 1767225540),
        ("Feb 29 12:00", 1709208000),
        ("-", None),
    ],
)
def test_times_without_a_year_are_the_last_that_were(written, at):
    assert lsf_time(written, NOW) == at


@pytest.mark.parametrize(
    ("text", "seconds"), [("120.0", 7200), ("120.0/host1", 7200), ("26:00:30", 93630)]
)
def test_limits_of_bjobs_with_and_without_lsb_hms_time_format(text, seconds):
    row = FieldReader({"JOBID": "7", "STAT": "RUN", "SUBMIT_TIME": "Apr 12 18:20:00 2026"})
    row.values["RUNTIMELIMIT"] = text
    job = bjobs.job_record("c1", row, 1_795_000_000)
    assert (job.time_limit_seconds, row.parse_errors) == (seconds, [])

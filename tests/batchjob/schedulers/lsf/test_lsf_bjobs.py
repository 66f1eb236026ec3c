"""Jobs of `bjobs -json`, on output made after the documented format."""

import json

import pytest

from batchjob.runtime.subprocesses import NotJsonError, SchedulerError
from batchjob.schedulers.accounting import SourceError, UnfinishedJob
from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.lsf.accounting import bjobs
from batchjob.schedulers.lsf.accounting.bjobs import Bjobs
from batchjob.schedulers.lsf.formats import lsf_time
from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.lsf.lsf import finish_line, read

GB = 1024**3

BJOBS_RECORD = {
    "JOBID": "4242", "JOBINDEX": "3", "STAT": "RUN", "USER": "alice", "QUEUE": "gpu",
    "JOB_NAME": "train[3]", "PROJ_NAME": "projA", "ALLOC_SLOT": "node01:node01:2*node02",
    "SUBMIT_TIME": "Apr  4 12:00:00 2026", "START_TIME": "Apr  4 12:01:40 2026",
    "FINISH_TIME": "Apr  4 14:01:40 2026 L", "CPU_USED": "12.3 second(s)", "MAX_MEM": "2 Gbytes",
    "MEMLIMIT": "", "RUNTIMELIMIT": "120.0", "GPU_NUM": "2", "EXIT_CODE": "", "EXIT_REASON": "",
}  # fmt: skip

NOW = 1775306000  # 4 April 2026, 12:33:20 UTC


@pytest.fixture
def bjobs_printing(tmp_path):
    """`bjobs_printing(output)` returns a source whose bjobs prints it."""

    def make(output: bytes, status=0) -> Bjobs:
        (tmp_path / "output").write_bytes(output)
        script = tmp_path / "bjobs"
        script.write_text(f"#!/bin/sh\ncat {tmp_path}/output\nexit {status}\n")
        script.chmod(0o755)
        return Bjobs("c1", bjobs.BjobsOptions(bjobs=str(script)), lambda: NOW)

    return make


def bjobs_output(*changes) -> bytes:
    rows = [BJOBS_RECORD | change for change in changes]
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(rows), "RECORDS": rows}).encode()


def test_check_names_a_command_that_does_not_answer(bjobs_printing, tmp_path):
    assert bjobs_printing(bjobs_output({})).check() == ()
    absent = Bjobs("c1", bjobs.BjobsOptions(bjobs=str(tmp_path / "absent")), lambda: NOW)
    with pytest.raises(SchedulerError, match="absent"):
        absent.check()
    with pytest.raises(SchedulerError):
        bjobs_printing(b"Failed in an LSF library call\n", status=255).check()


def test_running_job(bjobs_printing):
    (job,), watermark, quarantined = read(
        bjobs_printing(b"Cannot connect to LSF. Please wait ...\n" + bjobs_output({}))
    )
    assert not quarantined
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
def test_ended_jobs(bjobs_printing, change, state, code):
    (job,), _, _ = read(bjobs_printing(bjobs_output(change)))
    assert (job.state, job.exit_code, job.end_time) == (state, code, 1775311300)


def test_invalid_records_go_to_quarantine_alone(bjobs_printing):
    output = bjobs_output({"JOBID": "x"}, {"SUBMIT_TIME": "soon"}, {"MAX_MEM": "much"})
    jobs, _, quarantined = read(bjobs_printing(output))
    assert len(jobs) == 1
    assert [row.reason.partition(":")[0] for row in quarantined] == [
        "JOBID",
        "SUBMIT_TIME",
        "MAX_MEM",
    ]


def test_empty_output_is_an_error_only_while_jobs_are_unfinished(bjobs_printing):
    empty_source = bjobs_printing(b"No job found\n", status=255)
    assert read(empty_source)[0] == []
    with pytest.raises(SourceError):
        read(empty_source, str(NOW - 60), {"1": UnfinishedJob(1, 1, None)})
    with pytest.raises(NotJsonError, match="expected a JSON object, got 'LSF is down'"):
        read(bjobs_printing(b"LSF is down"))


def test_job_name_with_invalid_utf8_is_replaced(bjobs_printing):
    output = bjobs_output({"JOB_NAME": "caf?"}, {"JOBID": "7"}).replace(b"caf?", b"caf\xe9")
    jobs, _, quarantined = read(bjobs_printing(output))
    assert not quarantined
    assert [job.name for job in jobs] == ["caf\ufffd", BJOBS_RECORD["JOB_NAME"]]


def test_missing_jobs_vanish_after_a_gap_longer_than_lsf_keeps_jobs(bjobs_printing):
    unfinished = {str(number): UnfinishedJob(1, 1, None) for number in range(50)}
    (*_, last) = bjobs_printing(b"No job found\n", status=255).read(str(NOW - 3601), unfinished)
    assert len(last.vanished) == 50


def test_submit_time_without_seconds_is_matched_to_the_known_job(bjobs_printing, write_acct):
    source_without_seconds = bjobs_printing(bjobs_output({"SUBMIT_TIME": "Apr  4 12:00"}))
    unfinished = {"4242[3]": UnfinishedJob(1775304007, 1, None)}
    assert read(source_without_seconds, "0", unfinished)[0][0].submit_time == 1775304007
    unfinished = {"4242[3]": UnfinishedJob(1775299980, 1, None)}
    (job,) = read(write_acct(finish_line() + "\n"), unfinished=unfinished)[0]
    assert job.submit_time == 1775299980


@pytest.mark.parametrize(
    ("time_text", "seconds"),
    [
        ("Apr  4 12:00", 1775304000),
        ("Apr  4 12:00:30 X", 1775304030),
        ("Dec 31 23:59", 1767225540),
        ("Feb 29 12:00", 1709208000),
        ("-", None),
    ],
)
def test_time_without_a_year_is_the_latest_past_one(time_text, seconds):
    assert lsf_time(time_text, NOW) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("120.0", 7200), ("120.0/host1", 7200), ("26:00:30", 93630)]
)
def test_run_limit_with_and_without_lsb_hms_time_format(text, seconds):
    row = FieldReader({"JOBID": "7", "STAT": "RUN", "SUBMIT_TIME": "Apr 12 18:20:00 2026"})
    row.values["RUNTIMELIMIT"] = text
    job = bjobs.job_record("c1", row, 1_795_000_000)
    assert (job.time_limit_seconds, row.parse_errors) == (seconds, [])


def test_suspended_and_resumed_job(bjobs_printing):
    suspended = {"STAT": "USUSP", "RUN_TIME": "600 second(s)"}
    (job,), _, _ = read(bjobs_printing(bjobs_output(suspended)))
    assert (job.state, job.elapsed_seconds) == (JobState.SUSPENDED, 600)
    known = UnfinishedJob(job.submit_time, 1, job.start_time, "SUSPENDED", 600)
    resumed = {"RUN_TIME": "700 second(s)"}
    (job,), _, _ = read(bjobs_printing(bjobs_output(resumed)), "", {job.jobid: known})
    assert (job.state, job.suspended_seconds) == (JobState.RUNNING, NOW - job.start_time - 700)

"""Jobs of `qstat -f`, on what OpenPBS 23.06 printed."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.accounting import SourceError, UnfinishedJob
from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.pbs.accounting import qstat
from batchjob.schedulers.pbs.accounting.qstat import Qstat
from batchjob.schedulers.pbs.accounting.records import RecordOptions
from batchjob.schedulers.pbs.qstat_jobs import parse_json_jobs, parse_text_jobs
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.pbs.pbs import LOG, QSTAT, read_all

OPTIONS = RecordOptions("c1", "qstat")


def test_log_and_qstat_agree(write_log, tmp_path):
    logged = read_all(write_log(LOG))[0]
    for jobid, row in parse_json_jobs(QSTAT).items():
        if jobid.startswith("17[") or "[]" in jobid:
            continue  # sub-jobs that never ran are not in the log
        job = qstat.finished_record(OPTIONS, jobid, FieldReader(row))
        same = logged[jobid, job.run]
        for name in (
            "submit_time", "start_time", "user", "group", "account", "partition", "name", "state",
            "exit_code", "exit_signal", "reason", "requested_cpus", "requested_memory_bytes",
            "requested_gpus", "allocated_cpus", "nodes", "array_jobid", "array_index",
            "cpu_seconds", "peak_memory_bytes", "time_limit_seconds",
        ):  # fmt: skip
            assert getattr(job, name) == getattr(same, name), (jobid, name)
        assert abs(job.end_time - same.end_time) <= 1


def test_sub_job_that_never_ran_is_cancelled_without_a_start():
    row = parse_json_jobs(QSTAT)["17[2].pbs01"]
    job = qstat.finished_record(OPTIONS, "17[2].pbs01", FieldReader(row))
    assert (job.state, job.start_time, job.exit_code) == (JobState.CANCELLED, None, None)


def write_qstat_program(tmp_path, output: bytes, plain: bytes = b"", server: str = "") -> str:
    (tmp_path / "json").write_bytes(output)
    (tmp_path / "plain").write_bytes(plain)
    (tmp_path / "server").write_text(server)
    script = tmp_path / "qstat"
    script.write_text(f"""#!/bin/sh
cd {tmp_path}; case "$*" in *-B*) cat server;; *json*) cat json;; *) cat plain;; esac
""")
    script.chmod(0o755)
    return str(script)


def test_recorded_qstat_output(tmp_path):
    source = Qstat(
        "c1", qstat.QstatOptions(qstat=write_qstat_program(tmp_path, QSTAT)), lambda: 1795176000
    )
    jobs, watermark, quarantined = read_all(
        source, "0", {"99.pbs01": UnfinishedJob(1795170000, 1, None)}
    )
    assert len(jobs) == 24
    assert not quarantined
    assert watermark == "1795176000"
    job = jobs["0.pbs01", 1]
    assert job.submit_line == "qsub -A physics /srv/pbsmini/jobs/cpu.pbs"
    assert (job.work_dir, job.stdout_path.rpartition("/")[2]) == (
        "/srv/pbsmini/home/alice",
        "cpuburn.o0",
    )
    (*_, last) = source.read("0", {"99.pbs01": UnfinishedJob(1795170000, 1, None)})
    assert last.vanished == ("99.pbs01",)


@pytest.mark.parametrize("name", ["123", "1e5", "true", "null", "1.50"])
def test_job_names_that_look_like_json_values_stay_text(name):
    document = f'{{"Jobs": {{"1.s": {{"Job_Name": {name}, "Resource_List": {{"ncpus": 2}}}}}}}}'
    row = parse_json_jobs(document.encode())["1.s"]
    assert (row["jobname"], row["Resource_List.ncpus"]) == (name, "2")


def test_invalid_json_falls_back_to_the_text_format(tmp_path):
    broken = QSTAT.replace(b'"cpuburn"', b'"cpu"burn"').replace(b'"physics"', b"007")
    plain = b"""Job Id: 0.pbs01
    Job_Name = cpu"burn
    Job_Owner = alice@pbs01
    job_state = R
    ctime = Fri Nov 20 11:45:47 2026
    stime = Fri Nov 20 11:45:48 2026
    exec_host = pbs01/0
    Variable_List = PBS_O_HOME=/srv,PBS_O_LANG=C.UTF-8,
\tPBS_O_WORKDIR=/srv/al
\tice,PBS_O_SYSTEM=Linux
    run_count = 1

"""
    program = write_qstat_program(tmp_path, broken, plain)
    job = read_all(Qstat("c1", qstat.QstatOptions(qstat=program)), "0")[0]["0.pbs01", 1]
    assert (job.name, job.user, job.state) == ('cpu"burn', "alice", JobState.RUNNING)
    assert (job.start_time, job.work_dir) == (1795175148, "/srv/alice")


def test_deeply_nested_json_falls_back_to_the_text_format(tmp_path):
    nested = QSTAT.replace(b'"cpuburn"', b"[" * 100_000)
    program = write_qstat_program(tmp_path, nested, b"Job Id: 0.pbs01\n    ctime = 1795175147\n")
    assert list(read_all(Qstat("c1", qstat.QstatOptions(qstat=program)), "0")[0]) == [
        ("0.pbs01", 1)
    ]


def test_job_name_with_invalid_utf8_is_replaced(tmp_path):
    program = write_qstat_program(tmp_path, QSTAT.replace(b'"cpuburn"', b'"caf\xe9"'))
    jobs = read_all(Qstat("c1", qstat.QstatOptions(qstat=program)), "0")[0]
    assert jobs["0.pbs01", 1].name == "caf\ufffd"


def test_user_variables_cannot_overwrite_attributes():
    plain = b"Job Id: 1.s\n    job_state = Q\n    Variable_List = A=1,\n    job_state = R\n\tB=2\n"
    assert parse_text_jobs(plain)["1.s"]["job_state"] == "Q"


_ENDED = (
    b"Job Id: 1.s\n    Job_Owner = alice@s\n    job_state = F\n    Account_Name = a\n%s"
    b"    ctime = 1795175100\n    stime = 1795175200\n    exec_host = n1/0\n"
    b"    Exit_status = 0\n    history_timestamp = 1795175900\n"
)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("exec_host", (b"{", _ENDED % b"    exec_host = n9/0\n")),
        ("start", (b"{", _ENDED % b"    stime = 1795175800\n")),
        ("jobname", (b'{"Jobs": {"1.s": {"Job_Owner": "a@s", "ctime": 1795175100, "job_state": '
                     b'"F", "exec_host": "n1/0", "Job_Name": "x", "Job_Name": "y"}}}',)),
        ("Resource_List.ncpus", (
            b'{"Jobs": {"1.s": {"Job_Owner": "a@s", "ctime": 1795175100, "exec_host": "n1/0", '
            b'"job_state": "F", "Resource_List": {"ncpus": 1, "ncpus": 2}}}}',)),
    ],
)  # fmt: skip
def test_attribute_that_stands_twice_is_damage(tmp_path, name, output):
    """It has no value, the row is in quarantine, and the job counts as one that ran."""
    program = write_qstat_program(tmp_path, *output)
    source = Qstat("c1", qstat.QstatOptions(qstat=program), lambda: 1795176000)
    (job,), (row,) = (
        [each for batch in source.read("1795175000", {}) for each in getattr(batch, part)]
        for part in ("jobs", "quarantined")
    )
    assert row.reason.startswith(f"{name} stands twice")
    assert row.jobid == job.jobid == "1.s"
    assert job.state is not JobState.CANCELLED
    assert "n9" not in job.node_list
    assert job.start_time in (None, 1795175200)
    assert job.name == ""


def test_private_variables_of_users_are_in_no_quarantine(tmp_path):
    job = {"ctime": "x", "Variable_List": {"SECRET": "s3cret", "PBS_O_WORKDIR": "/srv"}}
    program = write_qstat_program(tmp_path, json.dumps({"Jobs": {"1.s": job}}).encode())
    source = Qstat("c1", qstat.QstatOptions(qstat=program), lambda: 1795176000)
    (row,) = [each for batch in source.read("1795175000", {}) for each in batch.quarantined]
    assert "/srv" in row.raw
    assert "s3cret" not in row.raw


def test_empty_output_is_an_error_while_jobs_are_unfinished(tmp_path):
    program = write_qstat_program(tmp_path, b'{"timestamp": 1}')
    source = Qstat("c1", qstat.QstatOptions(qstat=program), lambda: 1795176000)
    with pytest.raises(SourceError):
        list(source.read("1795175000", {"1.s": UnfinishedJob(1, 1, None)}))
    assert [batch.jobs for batch in source.read("1795175000", {})] == [()]


_REPEATED_JSON = (
    b'{"Jobs": {"1.s": {"job_state": "R"}, "2.s": {"job_state": "Q"}, "1.s": {"job_state": "Q"}}}'
)
_REPEATED_TEXT = (
    b"Job Id: 1.s\n    job_state = R\n\nJob Id: 2.s\n    Variable_List = A=\n"
    b"Job Id: 1.s\n    job_state = Q\n"
)


@pytest.mark.parametrize("output", [(_REPEATED_JSON,), (b"{", _REPEATED_TEXT)])
def test_job_that_stands_twice_is_kept_as_it_was(tmp_path, output):
    program = write_qstat_program(tmp_path, *output)
    source = Qstat("c1", qstat.QstatOptions(qstat=program, trust_missing=True), lambda: 1795176000)
    unfinished = {"1.s": UnfinishedJob(1, 1, None), "3.s": UnfinishedJob(1, 1, None)}
    (*_, last) = source.read("1795175000", unfinished)
    assert last.vanished == ("3.s",)
    assert "the job's id stands twice" in {row.reason for row in last.quarantined}


def test_missing_jobs_vanish_after_a_gap_longer_than_the_history(tmp_path):
    program = write_qstat_program(tmp_path, b'{"timestamp": 1}')
    options = qstat.QstatOptions(qstat=program, history=3600)
    unfinished = {f"{number}.s": UnfinishedJob(1, 1, None) for number in range(50)}
    source = Qstat("c1", options, lambda: 1795176000)
    with pytest.raises(SourceError):
        list(source.read(str(1795176000 - 3600), unfinished))
    (*_, last) = source.read(str(1795176000 - 3601), unfinished)
    assert len(last.vanished) == 50


def test_expected_start_time_of_a_pending_job(tmp_path):
    attributes = {
        "ctime": "Fri Nov 20 11:45:47 2026", "Job_Owner": "alice@pbs01", "job_state": "Q",
        "estimated": {"start_time": "Fri Nov 20 13:00:00 2026"},
    }  # fmt: skip
    program = write_qstat_program(tmp_path, json.dumps({"Jobs": {"1.pbs01": attributes}}).encode())
    jobs, _, _ = read_all(
        Qstat("c1", qstat.QstatOptions(qstat=program), lambda: 1795176000), "1795175100", {}
    )
    at = jobs["1.pbs01", 1].expected_start_time
    assert datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") == "13:00:00"


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ({"job_state": "R", "stime": "Fri Nov 20 11:58:00 2026"}, "11:58:00"),
        ({"job_state": "Q", "mtime": "Fri Nov 20 11:57:00 2026"}, "11:57:00"),
    ],
)
def test_run_before_the_one_shown_by_qstat_has_ended(tmp_path, change, end):
    attributes = {"ctime": "Fri Nov 20 11:45:47 2026", "Job_Owner": "alice@pbs01", "run_count": 2}
    attributes["run_count"] -= change["job_state"] == "Q"  # it counts runs that began
    program = write_qstat_program(
        tmp_path, json.dumps({"Jobs": {"1.pbs01": attributes | change}}).encode()
    )
    source = Qstat("c1", qstat.QstatOptions(qstat=program), lambda: 1795176000)
    unfinished = {"1.pbs01": UnfinishedJob(1795175147, 1, 1795175200)}
    jobs, _, _ = read_all(source, "1795175900", unfinished)
    before, now = jobs["1.pbs01", 1], jobs["1.pbs01", 2]
    assert (before.state, now.state.is_live) == (JobState.REQUEUED, True)
    assert datetime.fromtimestamp(before.end_time, UTC).strftime("%H:%M:%S") == end
    assert before.reason == "its end was not logged"


def test_check_reports_missing_rights_and_history(tmp_path):
    permissive = "Server: s\n    query_other_jobs = True\n    job_history_enable = True\n"
    assert (
        Qstat(
            "c1", qstat.QstatOptions(qstat=write_qstat_program(tmp_path, b"", server=permissive))
        ).check()
        == ()
    )
    source = Qstat(
        "c1", qstat.QstatOptions(qstat=write_qstat_program(tmp_path, b"", server="Server: s\n"))
    )
    assert [message.split("'")[1] for message in source.check()] == [
        "set server query_other_jobs = True",
        "set server job_history_enable = True",
    ]


@given(st.text() | st.from_regex(r"(Job Id: [0-9]{1,3}\n|    [a-z]+ = .*\n|\t.*\n)*"))
def test_any_text_can_be_parsed(output):
    for job in parse_text_jobs(output.encode("utf-8", "replace")).values():
        json.dumps(job)

"""Jobs of PBS and Torque accounting logs, on what OpenPBS 23.06 wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.pbs.accounting.log_line import parse_attributes
from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.pbs.pbs import END_HEAD, END_TAIL, LOG, log_line, read_all

MB = 1024**2


def test_all_jobs_of_a_recorded_log(write_log):
    jobs, _, quarantined = read_all(write_log(LOG))
    assert not quarantined
    assert not any("[]" in jobid for jobid, _ in jobs)
    job = jobs["1.pbs01", 1]
    assert (job.user, job.group, job.account, job.name) == ("bob", "bob", "chem", "memhog")
    assert (job.partition, job.state) == ("workq", JobState.COMPLETED)
    assert (job.submit_time, job.start_time, job.end_time) == (1795175147, 1795175147, 1795175222)
    assert (job.exit_code, job.exit_signal, job.elapsed_seconds) == (0, 0, 75)
    assert job.nodes == (NodeShare("pbs01", 1, 500 * MB, None),)
    assert (job.requested_memory_bytes, job.time_limit_seconds) == (500 * MB, 600)
    assert job.peak_memory_bytes == 311808 * 1024
    assert jobs["0.pbs01", 1].cpu_seconds == 74


@pytest.mark.parametrize(
    ("jobid", "state", "code", "signal"),
    [
        ("2[2].pbs01", JobState.FAILED, 7, 0),
        ("4.pbs01", JobState.FAILED, 139, 0),
        ("5.pbs01", JobState.TIMEOUT, None, None),
        ("8.pbs01", JobState.CANCELLED, None, 15),
        ("15.pbs01", JobState.CANCELLED, None, 9),
        ("10.pbs01", JobState.CANCELLED, None, None),
    ],
)
def test_end_state_and_exit_code(write_log, jobid, state, code, signal):
    job = read_all(write_log(LOG))[0][jobid, 1]
    assert (job.state, job.exit_code, job.exit_signal) == (state, code, signal)
    assert job.end_time


def test_array_tasks_gpus_chunks_and_dependencies(write_log):
    jobs = read_all(write_log(LOG))[0]
    assert (jobs["2[3].pbs01", 1].array_jobid, jobs["2[3].pbs01", 1].array_index) == ("2", 3)
    assert jobs["11.pbs01", 1].allocated_gpus == jobs["11.pbs01", 1].requested_gpus == 1
    assert jobs["7.pbs01", 1].nodes == (NodeShare("pbs01", 2, 200 * MB, None),)
    assert jobs["18.pbs01", 1].dependencies == "afterok:15.pbs01@pbs01"
    assert jobs["5.pbs01", 1].reason == "walltime exceeded"


def test_deleted_jobs_name_the_user_who_deleted_them(write_log):
    jobs = read_all(write_log(LOG))[0]
    assert jobs["8.pbs01", 1].cancelled_by == "carol"  # while running
    assert jobs["10.pbs01", 1].cancelled_by == "dave"  # while pending
    assert jobs["10.pbs01", 1].start_time is None


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ("jobname=train queue=q", "train"),
        ('jobname="my train" queue=q', "my train"),
        ("jobname=my train queue=q", "my train"),
        ('jobname="never closed queue=q', '"never closed'),
        ("jobname=a;b;c queue=q", "a;b;c"),
        ("jobname=x user=root queue=q", "x"),
    ],
)
def test_job_names_with_spaces_quotes_and_semicolons(write_log, attributes, name):
    jobs, _, quarantined = read_all(write_log(f"{END_HEAD} {attributes} {END_TAIL}\n"))
    job = jobs["101.srv", 1]
    assert (job.name, job.user, job.partition) == (name, "alice", "q")
    assert not quarantined


def test_torque_job(write_log):
    jobs, _, quarantined = read_all(
        write_log(
            "04/04/2026 13:06:40;Q;7-3.srv;queue=batch\n"
            f"{END_HEAD.replace('101.srv', '7-3.srv')} jobname=t queue=batch ctime=1775296800 "
            "qtime=1775296800 etime=1775296800 start=1775296900 owner=alice@login "
            "exec_host=n1/0-3+n2/0-3 Resource_List.neednodes=2:ppn=4 Resource_List.nodes=2:ppn=4 "
            "total_execution_slots=8 unique_node_count=2 session=1 end=1775300800 Exit_status=271 "
            "resources_used.cput=01:00:00 resources_used.mem=1024kb\n"
        )
    )
    job = jobs["7-3.srv", 1]
    assert not quarantined
    assert (job.array_jobid, job.array_index, job.state) == ("7", 3, JobState.CANCELLED)
    assert job.nodes == (NodeShare("n1", 4), NodeShare("n2", 4))
    assert (job.allocated_cpus, job.allocated_nodes, job.cpu_seconds) == (8, 2, 3600)
    assert job.requested_resources == "2:ppn=4"


def test_suspended_resumed_and_altered_job(write_log):
    lines = """04/04/2026 12:00:00;Q;5.s;user=a ctime=1775296800 queue=q jobname=j
04/04/2026 12:00:01;a;5.s;Resource_List.walltime=01:00:00
04/04/2026 12:00:02;S;5.s;user=a ctime=1775296800 queue=q start=1775296802 exec_host=n/0*2
04/04/2026 12:00:03;z;5.s;resources_used.cput=00:00:01
"""
    jobs, watermark, _ = read_all(write_log(lines))
    assert (jobs["5.s", 1].state, jobs["5.s", 1].time_limit_seconds) == (JobState.SUSPENDED, 3600)
    assert jobs["5.s", 1].name == "j"
    source = write_log(lines + "04/04/2026 12:00:09;r;5.s;\n")
    unfinished = {"5.s": UnfinishedJob(1775296800, 1, 1775296802)}
    assert read_all(source, watermark, unfinished)[0]["5.s", 1].state == JobState.RUNNING


def test_invalid_field_is_dropped_and_reported(write_log):
    bad_line = f"{END_HEAD} {END_TAIL} exec_host=n1 resources_used.mem=lots"
    jobs, _, quarantined = read_all(write_log(bad_line + "\n"))
    assert (jobs["101.srv", 1].state, jobs["101.srv", 1].nodes) == (JobState.COMPLETED, ())
    assert "exec_host: not an exec_host" in quarantined[0].reason
    assert "resources_used.mem: expected a size" in quarantined[0].reason


def test_reservations_licences_and_checkpoints_are_ignored(write_log):
    lines = "".join(f"04/04/2026 12:00:00;{kind};7.s;x=1\n" for kind in "UYBFKkLPpCTuse")
    jobs, _, quarantined = read_all(
        write_log(lines.replace(";e;7.s", ";e;R7.s").replace(";L;7.s", ";L;license"))
    )
    assert (jobs, quarantined) == ({}, [])


@given(st.text())
def test_any_message_can_be_parsed(message):
    assert all(isinstance(value, str) for value in parse_attributes(message).values())


def test_torque_gpus_are_read_from_the_nodes_request(write_log):
    begin = 1_795_100_000
    text = log_line(
        begin + 100, "E", "8.srv",
        f"ctime={begin} user=alice start={begin} end={begin + 100} exec_host=n1/0-27+n2/0-27 "
        "Resource_List.nodes=2:ppn=28:gpus=2+n7:ppn=1:gpus=4 Exit_status=0",
    )  # fmt: skip
    job = read_all(write_log(text))[0]["8.srv", 1]
    assert (job.requested_gpus, job.allocated_gpus) == (8, 8)

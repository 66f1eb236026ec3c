"""Jobs of PBS and Torque accounting logs, on what OpenPBS 23.06 wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.pbs.accounting import pbs_log
from batchjob.schedulers.pbs.accounting.log_line import parse_attributes
from batchjob.schedulers.pbs.accounting.log_replay import RECORD_TYPES
from batchjob.schedulers.pbs.accounting.pbs_log import PbsLog
from batchjob.schedulers.records import NodeShare, Reallocation, merge_records
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.pbs.pbs import (
    END_HEAD,
    END_TAIL,
    LOG,
    log_line,
    read_all,
    unfinished_jobs,
)

MB = 1024**2


def test_all_jobs_of_a_recorded_log(write_log):
    jobs, _, quarantined = read_all(write_log(LOG))
    assert not quarantined
    assert not any("[]" in jobid for jobid, _ in jobs)
    job = jobs["1.pbs01", 1]
    assert (job.user, job.group, job.account, job.name) == ("bob", "bob", "chem", "memhog")
    assert (job.partition, job.state) == ("workq", JobState.COMPLETED)
    assert (job.submit_time, job.start_time, job.end_time) == (1795175147, 1795175147, 1795175222)
    assert (job.exit_code, job.exit_signal, job.elapsed_seconds) == (0, 0, 72)
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
            "resources_used.cput=01:00:00 resources_used.mem=1024kb\n",
        )
    )
    job = jobs["7-3.srv", 1]
    assert not quarantined
    assert (job.array_jobid, job.array_index, job.state) == ("7", 3, JobState.FAILED)
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
    ids = {"L": "license"}
    lines = "".join(
        f"04/04/2026 12:00:00;{letter};{ids.get(letter, '7.s')};x=1\n"
        for letter, handler in RECORD_TYPES.items()
        if isinstance(handler, str)
    )
    jobs, _, quarantined = read_all(write_log(lines))
    assert (jobs, quarantined) == ({}, [])


BEGIN = 1_795_100_000
JOB = f"user=u1 group=g1 jobname=a queue=workq ctime={BEGIN} qtime={BEGIN} etime={BEGIN}"


def test_allocation_in_phases(write_log):
    """Four nodes for an hour, then one for eight: 48 core-hours."""
    four = "exec_host=n1/0*4+n2/0*4+n3/0*4+n4/0*4 exec_vnode=" + "+".join(
        f"(n{number}:ncpus=4:mem=8gb:ngpus=1)" for number in (1, 2, 3, 4)
    )
    one = "exec_host=n1/0*4 exec_vnode=(n1:ncpus=4:mem=8gb:ngpus=1)"
    start = f"{JOB} start={BEGIN}"
    lines = (
        log_line(BEGIN, "S", "8.srv", f"{start} {four}")
        + log_line(BEGIN + 3600, "u", "8.srv", f"{start} {four} end={BEGIN + 3600} session=5")
        + log_line(BEGIN + 3600, "c", "8.srv", f"{start} {one}")
    )
    jobs, watermark, _ = read_all(write_log(lines))
    job = jobs["8.srv", 1]
    assert (job.state, job.allocated_cpus, job.end_time) == (JobState.RUNNING, 4, None)
    assert job.resized_cpu_seconds == 12 * 3600
    assert len(job.nodes) == job.allocated_nodes == 4  # on all of which it ran
    until = {share.node: share.until_time for share in job.nodes}
    assert until == {"n1": None} | dict.fromkeys(("n2", "n3", "n4"), BEGIN + 3600)
    assert job.reallocations == (Reallocation(BEGIN + 3600, 12, 3 * 8 * 1024**3, 3),)
    end = f"end={BEGIN + 9 * 3600} session=5 Exit_status=0 run_count=1"
    lines += log_line(BEGIN + 9 * 3600, "e", "8.srv", f"{start} {one} {end}")
    lines += log_line(BEGIN + 9 * 3600, "E", "8.srv", f"{start} {four} {end}")
    later = read_all(write_log(lines), watermark, unfinished_jobs(jobs))[0]["8.srv", 1]
    job = merge_records(job, later)
    assert len(job.reallocations) == 1
    assert (job.state, job.elapsed_seconds) == (JobState.COMPLETED, 9 * 3600)
    for held, resized, unit in (
        (job.allocated_cpus, job.resized_cpu_seconds, 4),
        (job.allocated_gpus, job.resized_gpu_seconds, 1),
        (job.allocated_memory_bytes, job.resized_memory_byte_seconds, 8 * 1024**3),
    ):
        assert (held * job.elapsed_seconds + resized) / 3600 == unit * (4 + 8)


FIRST_NODE = "exec_host=n1/0 exec_vnode=(n1:ncpus=4)"
BOTH_NODES = "exec_host=n1/0+n2/0 exec_vnode=(n1:ncpus=4)+(n2:ncpus=4)"


def test_nodes_that_failed_at_a_reliable_start_are_not_the_jobs(write_log):
    start = f"{JOB} start={BEGIN}"
    three = "exec_host=n1/0+n2/0+n3/0 exec_vnode=(n1:ncpus=4)+(n2:ncpus=4)+(n3:ncpus=4)"
    lines = log_line(BEGIN, "S", "8.srv", f"{start} {three}")
    two = "exec_host=n1/0+n3/0 exec_vnode=(n1:ncpus=4)+(n3:ncpus=4)"
    lines += log_line(BEGIN + 5, "s", "8.srv", f"{start} {two}")
    end = f"end={BEGIN + 100} session=5 Exit_status=0"
    lines += log_line(BEGIN + 100, "E", "8.srv", f"{start} {three} {end}")
    job = read_all(write_log(lines))[0]["8.srv", 1]
    assert [share.node for share in job.nodes] == ["n1", "n3"]
    assert (job.allocated_cpus, job.allocated_nodes, job.resized_cpu_seconds) == (8, 2, 20)
    assert [change[:2] for change in job.reallocations] == [(BEGIN + 5, 4)]


@pytest.mark.parametrize("at_end", [BOTH_NODES, FIRST_NODE])
def test_end_of_a_reliable_start_names_the_nodes_before_or_after_it(write_log, at_end):
    start = f"{JOB} start={BEGIN}"
    lines = log_line(BEGIN, "S", "8.srv", f"{start} {BOTH_NODES}")
    lines += log_line(BEGIN + 5, "s", "8.srv", f"{start} {FIRST_NODE}")
    end = f"{start} {at_end} end={BEGIN + 100} session=5 Exit_status=0"
    job = read_all(write_log(lines + log_line(BEGIN + 100, "E", "8.srv", end)))[0]["8.srv", 1]
    assert (job.allocated_cpus, job.resized_cpu_seconds) == (4, 20)


def released_at_its_end(end_lines=1):
    """As a job gives back its nodes before its files are copied; its walltime lacks the launch."""
    start = f"{JOB} start={BEGIN}"
    lines = log_line(BEGIN, "S", "8.srv", f"{start} {BOTH_NODES}")
    lines += log_line(BEGIN + 3598, "c", "8.srv", f"{start} {FIRST_NODE}")
    end = f"{start} {BOTH_NODES} end={BEGIN + 3600} session=5 Exit_status=0"
    end += " resources_used.walltime=00:59:50"
    return lines + log_line(BEGIN + 3600, "E", "8.srv", end) * end_lines


@pytest.mark.parametrize("end_lines", [1, 2])
def test_nodes_that_were_released_at_the_end_were_held_until_then(write_log, end_lines):
    job = read_all(write_log(released_at_its_end(end_lines)))[0]["8.srv", 1]
    assert (job.allocated_cpus, job.elapsed_seconds) == (4, 3590)
    assert job.resized_cpu_seconds == 4 * 3598
    assert [share.until_time for share in job.nodes] == [None, BEGIN + 3598]


def test_suspended_job_ran_without_its_suspensions(write_log):
    start = f"{JOB} start={BEGIN} exec_host=n1/0*4 exec_vnode=(n1:ncpus=4)"
    lines = log_line(BEGIN, "S", "5.srv", start)
    for begin, end in ((600, 1000), (2000, 2600)):
        lines += log_line(BEGIN + begin, "z", "5.srv", "resources_used.walltime=00:00:00")
        lines += log_line(BEGIN + end, "r", "5.srv")
    lines += log_line(BEGIN + 4000, "E", "5.srv", f"{start} end={BEGIN + 4000} Exit_status=0")
    job = read_all(write_log(lines))[0]["5.srv", 1]
    assert (job.elapsed_seconds, job.suspended_seconds) == (3000, 1000)
    lost = lines.splitlines()[-1].replace(
        "Exit_status", "session=0 resources_used.walltime=00:50:00 Exit_status"
    )
    job = read_all(write_log(lost + "\n"))[0]["5.srv", 1]  # its suspensions are in a log not read
    assert (job.elapsed_seconds, job.suspended_seconds) == (3000, 1000)


STARTED = f"{JOB} start={BEGIN} exec_host=n1/0*4 exec_vnode=(n1:ncpus=4)"
LATER = STARTED.replace(f" start={BEGIN}", f" start={BEGIN + 2000}")


@pytest.mark.parametrize(
    ("kind", "at", "attributes"),
    [
        ("R", 2000, ""),  # Torque names the job alone
        ("R", 2000, f"{STARTED} session=5 Exit_status=-11"),
        ("S", 2000, LATER),  # the end was not logged
    ],
)
@pytest.mark.parametrize("resumed", [True, False])
def test_run_whose_end_line_has_no_times_ran_without_its_suspensions(
    write_log, kind, at, attributes, resumed
):
    lines = log_line(BEGIN, "S", "5.srv", STARTED) + log_line(BEGIN + 600, "z", "5.srv")
    lines += log_line(BEGIN + 1100, "r", "5.srv") if resumed else ""
    lines += log_line(BEGIN + at, kind, "5.srv", attributes)
    job = read_all(write_log(lines))[0]["5.srv", 1]
    suspended = 500 if resumed else 1400
    assert (job.state, job.end_time) == (JobState.REQUEUED, BEGIN + 2000)
    assert (job.elapsed_seconds, job.suspended_seconds) == (2000 - suspended, suspended)


def test_job_killed_at_its_time_limit_timed_out_unless_somebody_deleted_it(write_log):
    end = (
        f"{JOB} start={BEGIN} exec_host=n1/0 end={BEGIN + 130} Resource_List.walltime=00:02:00 "
        "session=1 Exit_status=271 resources_used.walltime=00:02:05"
    )
    ended = log_line(BEGIN + 130, "E", "5.srv", end)
    assert read_all(write_log(ended))[0]["5.srv", 1].state is JobState.TIMEOUT
    deleted = log_line(BEGIN, "S", "5.srv", f"{JOB} start={BEGIN} exec_host=n1/0")
    deleted += log_line(BEGIN + 128, "D", "5.srv", "requestor=u1@login") + ended
    assert read_all(write_log(deleted))[0]["5.srv", 1].state is JobState.CANCELLED


def test_request_taken_back(write_log):
    lines = log_line(
        BEGIN, "Q", "7.srv", f"{JOB} Resource_List.mem=4gb Resource_List.walltime=03:00:00"
    )
    lines += log_line(
        BEGIN + 5, "a", "7.srv", "Resource_List.walltime=05:00:00 Resource_List.mem=UNSET"
    )
    jobs, _, quarantined = read_all(write_log(lines))
    assert quarantined == []
    assert jobs["7.srv", 1].time_limit_seconds == 5 * 3600
    assert jobs["7.srv", 1].requested_memory_bytes == 0  # which the database stores as NULL
    lines = log_line(BEGIN, "Q", "7.srv", f"{JOB} Resource_List.ngpus=2")
    lines += log_line(BEGIN + 5, "a", "7.srv", "Resource_List.ngpus=UNSET")
    assert read_all(write_log(lines))[0]["7.srv", 1].requested_gpus == 0


@pytest.mark.parametrize(
    ("request_", "vnode", "gpus"),
    [
        ("Resource_List.nodes=1:ppn=4:gpu=2 Resource_List.gpu=2", "n1:ncpus=4", 2),
        ("Resource_List.nodes=1:ppn=4:gpus=3", "n1:ncpus=4", 3),
        ("Resource_List.naccelerators=1", "n1:ncpus=4:naccelerators=1", 1),
        ("Resource_List.ngpus=4", "n1:ncpus=4:ngpus=4", 4),
        ("Resource_List.a100=2", "n1:ncpus=4:a100=2", 2),
        # Of two words, the one that is not used has the server's default.
        (
            "Resource_List.ngpus=0 Resource_List.naccelerators=2",
            "n1:ncpus=4:ngpus=0:naccelerators=2",
            2,
        ),
        ("Resource_List.nodes=1:ppn=4:gpus=1:exclusive#shared", "n1:ncpus=4", 1),
        ("Resource_List.nodes=1:ppn=4", "n1:ncpus=4", None),
    ],
)
def test_words_for_gpus(tmp_path, request_, vnode, gpus):
    options = pbs_log.PbsLogOptions(path=str(tmp_path), qstat="", gpu_resources="a100, v100")
    (tmp_path / "20261120").write_text(
        log_line(
            BEGIN,
            "S",
            "7.srv",
            f"{JOB} start={BEGIN} exec_host=n1/0*4 exec_vnode=({vnode}) {request_}",
        )
    )
    job = read_all(PbsLog("c1", options))[0]["7.srv", 1]
    assert (job.requested_gpus, job.allocated_gpus) == (gpus, gpus)


FORGED = [
    'x" start=1 end=2 y="z',
    'x" Exit_status=0 resources_used.cput=00:00:00 y="',
    'a" user=root b="',
]


@pytest.mark.parametrize("account", FORGED)
def test_users_cannot_forge_what_the_server_writes(write_log, account):
    """The server writes the account between quotes, with its quotes as they are."""
    head = f'user=u1 group=g1 account="{account}" jobname=a queue=q ctime={BEGIN}'
    start = f"{head} start={BEGIN + 10} exec_host=n1/0 exec_vnode=(n1:ncpus=2)"
    lines = log_line(BEGIN + 10, "S", "5.srv", start) + log_line(
        BEGIN + 60, "E", "5.srv",
        f"{start} session=1 end={BEGIN + 60} Exit_status=1 resources_used.cput=00:01:00",
    )  # fmt: skip
    jobs, _, quarantined = read_all(write_log(lines))
    job = jobs["5.srv", 1]
    assert (job.user, job.start_time, job.end_time) == ("u1", BEGIN + 10, BEGIN + 60)
    assert job.cpu_seconds in (60, None)
    assert job.exit_code in (1, None)
    assert "stands twice" in quarantined[-1].reason
    assert len(quarantined) == 2


def test_account_with_quotes():
    pairs = parse_attributes("""account="the "big" one" project='a "b" c' jobname=x""")
    assert pairs == [("account", 'the "big" one'), ("project", 'a "b" c'), ("jobname", "x")]


@pytest.mark.parametrize("letter", "QSsRCTEDALMucearzUYBFKkPp")
def test_every_letter_of_the_log_has_a_handler_or_a_reason_to_be_ignored(letter):
    """Those of PBS' acct.h."""
    assert RECORD_TYPES[letter]


@given(st.text())
def test_any_message_can_be_parsed(message):
    assert all(isinstance(value, str) for _, value in parse_attributes(message))


def test_torque_gpus_are_read_from_the_nodes_request(write_log):
    begin = 1_795_100_000
    text = log_line(
        begin + 100, "E", "8.srv",
        f"ctime={begin} user=alice start={begin} end={begin + 100} exec_host=n1/0-27+n2/0-27 "
        "Resource_List.nodes=2:ppn=28:gpus=2+n7:ppn=1:gpus=4 Exit_status=0",
    )  # fmt: skip
    job = read_all(write_log(text))[0]["8.srv", 1]
    assert (job.requested_gpus, job.allocated_gpus) == (8, 8)

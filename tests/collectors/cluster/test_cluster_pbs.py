"""Recorded answers of OpenPBS 23.06 say what qstat and pbsnodes print for people."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.subprocesses import SchedulerError, parse_json_object
from batchjob.schedulers.cluster import ClusterNode, ClusterOptions
from batchjob.schedulers.pbs import cluster as pbs
from batchjob.schedulers.pbs.qstat_jobs import parse_json_jobs, parse_text_jobs
from batchjob.schedulers.pbs.states import PBS
from batchjob.schedulers.states import JobState


def test_nodes_are_those_of_pbsnodes(recorded):
    (node,) = pbs.nodes(parse_json_object(recorded("openpbs-23.06/pbsnodes-av.json")))
    shown = recorded("openpbs-23.06/pbsnodes-aSj.txt").decode().splitlines()[-1].split()
    free, cpus = shown[6].split("/")
    assert (node.name, node.state) == (shown[0], "allocated")
    assert shown[1] == "job-busy"
    assert (node.cpus, node.cpus_allocated) == (int(cpus), int(cpus) - int(free))
    assert (node.gpus, node.gpus_allocated) == (2, 0)
    assert shown[8] == "2/2"
    assert node.memory_bytes == 23080 << 20
    assert node.memory_allocated_bytes == 102400 << 10


def test_jobs_are_those_of_qstat(recorded):
    jobs = pbs.jobs(parse_json_jobs(recorded("openpbs-23.06/qstat.json")))
    lines = recorded("openpbs-23.06/qstat-xt.txt").decode().splitlines()[2:]
    rows = [line.split() for line in lines]
    shown = Counter((row[-1], PBS[row[-2]]) for row in rows if "[]" not in row[0])
    assert Counter((job.partition, job.state) for job in jobs) == shown
    assert Counter(job.state for job in jobs if job.state.is_live) == {
        JobState.PENDING: 5,
        JobState.RUNNING: 2,
        JobState.SUSPENDED: 1,
    }
    reasons = {job.jobid: job.reason for job in jobs if job.state is JobState.PENDING}
    assert reasons["14.pbs01"] == "Held"
    assert reasons["13.pbs01"] == "Waiting"
    (first,) = [job for job in jobs if job.jobid == "0.pbs01"]
    assert (first.cpus, first.gpus, first.eligible_time) == (1, 0, first.start_time)
    (gpu,) = [job for job in jobs if job.jobid == "11.pbs01"]
    assert gpu.gpus == 1


@pytest.mark.parametrize(
    ("state", "held", "expected"),
    [
        ("free", 0, ("idle", set())),
        ("free", 1, ("mixed", set())),
        ("job-exclusive", 2, ("allocated", {"job_exclusive"})),
        ("offline,job-busy", 2, ("allocated", {"drain"})),
        ("state-unknown,down", 0, ("unknown", {"not_responding"})),
        ("down,offline", 0, ("down", {"drain"})),
        ("", 0, ("unknown", set())),
    ],
)
def test_states_of_a_vnode(state, held, expected):
    vnode = {"state": state, "resources_assigned": {"ncpus": held}}
    (node,) = pbs.nodes({"nodes": {"n1": vnode}})
    assert (node.state, node.flags) == expected


def test_why_an_offline_node_is_offline():
    vnode = {"state": "offline", "comment": "fan 2, ticket 4711", "last_state_change_time": 99}
    (node,) = pbs.nodes({"nodes": {"n1": vnode}})
    assert isinstance(node, ClusterNode)
    assert (node.reason, node.reason_since, node.is_usable) == ("fan 2, ticket", 99, False)


def test_the_schedulers_comment_is_the_reason():
    def reason(comment, state="Q"):
        (job,) = pbs.jobs({"1.s": {"job_state": state, "queue": "q", "comment": comment}})
        return job.reason

    lacking = "Not Running: Insufficient amount of resource: ncpus (R: 4 A: 1 T: 2)"
    assert reason(lacking) == "Insufficient_amount_of_resource"
    assert reason("Job run at Fri Nov 20 at 11:48 on (n1:ncpus=1)") == ""
    assert reason("Job held by bob on Fri Nov 20 11:50:21 2026", "H") == "Held"


TEXT = b"""Job Id: 4.pbs01
    Job_Name = x
    job_state = Q
    queue = workq
    qtime = Fri Nov 20 11:45:47 2026
    Resource_List.ncpus = 3
    Resource_List.ngpus = 2
    Variable_List = A=1,
\tB=2,
    job_state = R

"""


def test_text_is_read_where_the_json_is_broken(command):
    command("qstat", **{"-F json": b'{"Jobs": {"4.pbs01": {"Job_Name": "a"b"', "-t -f": TEXT})
    (job,) = pbs.command_readers(ClusterOptions(timeout=5)).jobs()
    assert (job.partition, job.state, job.cpus, job.gpus) == ("workq", JobState.PENDING, 3, 2)
    assert job.eligible_time == 1795175147


def test_no_job_and_no_node(command):
    command("qstat", **{"-F json": b'{"timestamp": 1}'})
    command("pbsnodes", **{"-F json": b'{"timestamp": 1, "nodes": {}}'})
    sources = pbs.command_readers(ClusterOptions(timeout=5))
    assert sources.jobs() == []
    with pytest.raises(SchedulerError, match="lists no nodes"):
        sources.nodes()


@given(st.text())
def test_any_text_is_read(text):
    pbs.jobs(parse_text_jobs(text.encode("utf-8", "replace")))
    pbs.jobs({"1": {"job_state": text, "comment": text, "etime": text, "user": text}})
    pbs.nodes({"nodes": {"n": {"state": text, "resources_available": {"mem": text}}}})


def test_queues_are_those_of_qstat(recorded):
    (queue,) = pbs.partitions(parse_json_object(recorded("openpbs-23.06/qstat-Qf.json")))
    assert (queue.name, queue.accepts_jobs, queue.starts_jobs) == ("workq", True, True)


def test_owner_and_account(recorded):
    jobs = pbs.jobs(parse_json_jobs(recorded("openpbs-23.06/qstat.json")))
    assert all(job.user for job in jobs)
    assert "_pbs_project_default" not in {job.account for job in jobs}


RESERVATIONS = b"""\
Resv ID: R12.pbs01
Reserve_Name = course
Reserve_Owner = alice@login1
reserve_state = RESV_CONFIRMED
reserve_start = Thu Nov 26 09:00:00 2026
reserve_end = Thu Nov 26 12:00:00 2026
reserve_duration = 10800
queue = R12
Resource_List.ncpus = 64
Resource_List.nodect = 4

Resv ID: S13.pbs01
Reserve_Name = a = b
"""


def test_reservations():
    course, other = pbs.reservations(RESERVATIONS)
    assert (course.name, course.nodes, course.cores) == ("R12.pbs01", 4, 64)
    assert course.end - course.start == 10800
    assert other == ("S13.pbs01", None, None, None, None)
    assert pbs.reservations(b"") == []

"""Nodes and jobs from recorded JSON of OpenPBS 23.06 match the text of pbsnodes and qstat."""

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
from collectors.cluster.collector import find_readers
from tests.helpers.waiting import scaled


def test_nodes_match_pbsnodes(recorded_output):
    (node,) = pbs.nodes(parse_json_object(recorded_output("openpbs-23.06/pbsnodes-av.json")))
    pbsnodes_row = (
        recorded_output("openpbs-23.06/pbsnodes-aSj.txt").decode().splitlines()[-1].split()
    )
    free, cpus = pbsnodes_row[6].split("/")
    assert (node.name, node.state) == (pbsnodes_row[0], "allocated")
    assert pbsnodes_row[1] == "job-busy"
    assert (node.cpus, node.cpus_allocated) == (int(cpus), int(cpus) - int(free))
    assert (node.gpus, node.gpus_allocated) == (2, 0)
    assert pbsnodes_row[8] == "2/2"
    assert node.memory_bytes == 23080 << 20
    assert node.memory_allocated_bytes == 102400 << 10


def test_jobs_match_qstat(recorded_output):
    jobs = pbs.jobs(parse_json_jobs(recorded_output("openpbs-23.06/qstat.json")))
    lines = recorded_output("openpbs-23.06/qstat-xt.txt").decode().splitlines()[2:]
    rows = [line.split() for line in lines]
    expected = Counter((row[-1], PBS[row[-2]]) for row in rows if "[]" not in row[0])
    assert Counter((job.partition, job.state) for job in jobs) == expected
    assert Counter(job.state for job in jobs if job.state.is_live) == {
        JobState.PENDING: 5,
        JobState.RUNNING: 2,
        JobState.SUSPENDED: 1,
    }
    reasons = {job.jobid: job.reason for job in jobs if job.state is JobState.PENDING}
    assert reasons["14.pbs01"] == "Held"
    assert reasons["13.pbs01"] == "Waiting"
    (started_job,) = [job for job in jobs if job.jobid == "0.pbs01"]
    assert (started_job.cpus, started_job.gpus, started_job.eligible_time) == (
        1,
        0,
        started_job.start_time,
    )
    (gpu_job,) = [job for job in jobs if job.jobid == "11.pbs01"]
    assert gpu_job.gpus == 1


@pytest.mark.parametrize(
    ("state", "cpus_held", "expected"),
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
def test_vnode_states(state, cpus_held, expected):
    vnode = {"state": state, "resources_assigned": {"ncpus": cpus_held}}
    (node,) = pbs.nodes({"nodes": {"n1": vnode}})
    assert (node.state, node.flags) == expected


def test_offline_node_has_a_reason():
    vnode = {"state": "offline", "comment": "fan 2, ticket 4711", "last_state_change_time": 99}
    (node,) = pbs.nodes({"nodes": {"n1": vnode}})
    assert isinstance(node, ClusterNode)
    assert (node.reason, node.reason_since, node.is_usable) == ("fan 2, ticket", 99, False)


def test_job_reason_is_the_comment_of_the_scheduler():
    def reason(comment, state="Q"):
        (job,) = pbs.jobs({"1.s": {"job_state": state, "queue": "q", "comment": comment}})
        return job.reason

    insufficient = "Not Running: Insufficient amount of resource: ncpus (R: 4 A: 1 T: 2)"
    assert reason(insufficient) == "Insufficient_amount_of_resource"
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


def test_text_output_is_read_if_the_json_is_invalid(install_command):
    install_command(
        "qstat", **{"-F json": b'{"Jobs": {"4.pbs01": {"Job_Name": "a"b"', "-t -f": TEXT}
    )
    (job,) = pbs.command_readers(ClusterOptions(timeout=scaled(5))).jobs()
    assert (job.partition, job.state, job.cpus, job.gpus) == ("workq", JobState.PENDING, 3, 2)
    assert job.eligible_time == 1795175147


def test_no_jobs_are_valid_but_no_nodes_are_an_error(install_command):
    install_command("qstat", **{"-F json": b'{"timestamp": 1}'})
    install_command("pbsnodes", **{"-F json": b'{"timestamp": 1, "nodes": {}}'})
    readers = pbs.command_readers(ClusterOptions(timeout=scaled(5)))
    assert readers.jobs() == []
    with pytest.raises(SchedulerError, match="lists no nodes"):
        readers.nodes()


@given(st.text())
def test_arbitrary_text_is_accepted(text):
    pbs.jobs(parse_text_jobs(text.encode("utf-8", "replace")))
    pbs.jobs({"1": {"job_state": text, "comment": text, "etime": text, "user": text}})
    pbs.nodes({"nodes": {"n": {"state": text, "resources_available": {"mem": text}}}})


def test_job_owner_and_account(recorded_output):
    jobs = pbs.jobs(parse_json_jobs(recorded_output("openpbs-23.06/qstat.json")))
    assert all(job.user for job in jobs)
    assert "_pbs_project_default" not in {job.account for job in jobs}


@pytest.mark.parametrize("state", ["job-exclusive", "resv-exclusive"])
def test_node_held_exclusively_has_no_free_cpus(state):
    """Its one job asked for one CPU, and nothing else can start."""
    vnode = {
        "state": state, "resources_available": {"ncpus": 40, "mem": "23080mb", "ngpus": 4},
        "resources_assigned": {"ncpus": 1},
    }  # fmt: skip
    (node,) = pbs.nodes({"nodes": {"n1": vnode}})
    assert (node.cpus_allocated, node.gpus_allocated) == (40, 4)


def test_scheduler_that_answers_is_chosen_before_one_that_is_only_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    programs = {
        "scontrol": "echo 'Unable to contact slurm controller' >&2; exit 1",
        "sinfo": "exit 1", "qstat": "echo '    server_host = pbs01'",
        "pbsnodes": "echo '{}'",
    }  # fmt: skip
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    assert find_readers(ClusterOptions(timeout=scaled(5)))[0] == "pbs"

"""LSF's JSON, in the form that bhosts(1) and bjobs(1) describe."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.call import CommandOptions, SchedulerError
from batchjob.states import JobState
from collectors.cluster import lsf

NOW = 1776000000  # 12 April 2026


def host(status, slots="16", jobs="0"):
    (node,) = lsf.nodes([{"HOST_NAME": "h1", "STATUS": status, "MAX": slots, "NJOBS": jobs}])
    return node


@pytest.mark.parametrize(
    ("status", "jobs", "state", "flags", "usable"),
    [
        ("ok", "0", "idle", set(), True),
        ("ok", "4", "mixed", set(), True),
        ("closed_Full", "16", "allocated", {"closed"}, False),
        ("closed_Adm", "4", "mixed", {"closed", "drain"}, False),
        ("closed", "0", "idle", {"closed"}, False),
        ("unavail", "0", "down", {"not_responding"}, False),
        ("unreach", "2", "down", {"not_responding"}, False),
        ("new", "0", "unknown", set(), False),
        ("ok", "-", "unknown", set(), False),
    ],
)
def test_states_of_a_host(status, jobs, state, flags, usable):
    node = host(status, jobs=jobs)
    assert (node.state, node.flags, node.usable) == (state, flags, usable)


def test_a_host_without_a_slot_limit_shows_no_cpus():
    node = host("ok", slots="-", jobs="3")
    assert (node.state, node.cpus, node.cpus_allocated) == ("mixed", None, 3)


PENDING = {
    "JOBID": "42", "JOBINDEX": "3", "STAT": "PEND", "QUEUE": "gpu", "NREQ_SLOT": "4", "SLOTS": "",
    "GPU_NUM": "2", "PEND_REASON": "New job is waiting for scheduling;",
    "SUBMIT_TIME": "Apr 12 10:00:00 2026", "START_TIME": "", "USER": "alice", "PROJ_NAME": "astro",
}  # fmt: skip
RUNNING = PENDING | {
    "JOBINDEX": "0", "STAT": "RUN", "SLOTS": "8", "GPU_NUM": "", "START_TIME": "Apr 12 10:05",
    "PEND_REASON": "",
}  # fmt: skip


def test_jobs():
    waits, runs = lsf.jobs([PENDING, RUNNING], NOW)
    assert (waits.jobid, waits.partition, waits.state) == ("42[3]", "gpu", JobState.PENDING)
    assert (waits.cpus, waits.gpus, waits.reason) == (4, 2, "New_job_is_waiting_for_scheduling")
    assert waits.started is None
    assert (waits.user, waits.account) == ("alice", "astro")
    assert (runs.jobid, runs.cpus, runs.gpus) == ("42", 8, 0)
    assert runs.started - runs.eligible == 300


@pytest.mark.parametrize(
    ("status", "limit", "expected"),
    [
        ("Open:Active", "-", (True, True, None)),
        ("Open:Inact_Adm", "64", (True, False, 64)),
        ("Closed:Inact_Win", "0", (False, False, 0)),
        ("new", "", (None, None, None)),
    ],
)
def test_states_of_a_queue(status, limit, expected):
    (queue,) = lsf.partitions([{"QUEUE_NAME": "gpu", "STATUS": status, "MAX": limit}])
    assert queue == ("gpu", *expected)


def test_noise_before_the_json(command):
    answer = {"COMMAND": "bhosts", "HOSTS": 1, "RECORDS": [{"HOST_NAME": "h1", "STATUS": "ok"}]}
    noise = b"Cannot connect to LSF. Please wait ...\n"
    command("bhosts", **{"-json": noise + json.dumps(answer).encode()})
    (node,) = lsf.by_commands(CommandOptions(timeout=5)).nodes()
    assert node.name == "h1"


def test_no_job_is_no_error_and_no_host_is_one(command):
    program = command("bjobs")
    program.write_text("#!/bin/sh\necho 'No job found' >&2; exit 255\n")
    command("bhosts", **{"-json": b'{"COMMAND":"bhosts","HOSTS":0,"RECORDS":[]}'})
    sources = lsf.by_commands(CommandOptions(timeout=5))
    assert sources.jobs() == []
    with pytest.raises(SchedulerError, match="names no host"):
        sources.nodes()


@given(st.text())
def test_any_text_is_read(text):
    lsf.jobs([dict.fromkeys(PENDING, text)], NOW)
    lsf.nodes([{"HOST_NAME": "h", "STATUS": text, "MAX": text, "NJOBS": text}])

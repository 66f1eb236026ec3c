"""Parsing of LSF output as documented in bhosts(1), bjobs(1) and lshosts(1)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.subprocesses import CommandOptions, SchedulerError
from batchjob.schedulers.lsf import cluster as lsf
from batchjob.schedulers.states import JobState
from tests.helpers.waiting import scaled

NOW = 1776000000  # 12 April 2026


def node_with_status(status, slots="16", jobs="0"):
    record = {"HOST_NAME": "h1", "STATUS": status, "MAX": slots, "NJOBS": jobs}
    (node,) = lsf.nodes([record], {})
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
def test_host_states(status, jobs, state, flags, usable):
    node = node_with_status(status, jobs=jobs)
    assert (node.state, node.flags, node.is_usable) == (state, flags, usable)


def test_host_without_slot_limit_has_no_cpus():
    node = node_with_status("ok", slots="-", jobs="3")
    assert (node.state, node.cpus, node.cpus_allocated) == ("mixed", None, 3)


LSHOSTS = b"""\
You have new mail in /var/spool/mail/lsfadmin
HOST_NAME                       type       model  cpuf ncpus maxmem maxswp server RESOURCES
h1                              X86_64   Intel_E5  12.5    32 503.5G  15.8G    Yes (mg docker)
h2                        LINUXPPC64LE     POWER9  25.0    32 16030M      -    Yes (mg)
h3                             UNKNOWN    UNKNOWN   1.0     -      -      -    Dyn ()
"""
GIB = 1 << 30


def test_host_memory():
    assert lsf.parse_host_memory(LSHOSTS) == {"h1": 503.5 * GIB, "h2": 16030 << 20}


@pytest.mark.parametrize("output", [b"", b"lim is down; try later\n", b"HOST_NAME type\nh1 x\n"])
def test_host_memory_is_empty_if_lshosts_lists_none(output):
    assert lsf.parse_host_memory(output) == {}


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        ("0M", 0),
        ("143M", 143 << 20),
        ("7.5G", 7.5 * GIB),
        ("1.2T", round(1.2 * 1024 * GIB)),
        ("0.0", 0),
        ("-", None),
        ("", None),
        ("143", None),  # unknown unit
    ],
)
def test_reserved_memory(reserved, expected):
    record = {"HOST_NAME": "h1", "STATUS": "ok", "RESERVED_MEM": reserved}
    (node,) = lsf.nodes([record], {"h1": 16 * GIB})
    assert (node.memory_bytes, node.memory_allocated_bytes) == (16 * GIB, expected)


def test_host_gpus():
    records = [
        {"HOST_NAME": "gpu1", "STATUS": "ok", "NGPUS": "8", "NGPUS_ALLOC": "3"},
        {"HOST_NAME": "cpu1", "STATUS": "ok", "NGPUS": "0", "NGPUS_ALLOC": "0"},
        {"HOST_NAME": "gone", "STATUS": "unavail", "NGPUS": "-", "NGPUS_ALLOC": "-"},
        {"HOST_NAME": "old", "STATUS": "ok"},
    ]
    assert [(node.gpus, node.gpus_allocated) for node in lsf.nodes(records, {})] == [
        (8, 3),
        (0, 0),
        (None, None),
        (None, None),
    ]


def bhosts(**fields):
    record = {"HOST_NAME": "h1", "STATUS": "ok", "MAX": "32", "NJOBS": "0", **fields}
    return json.dumps({"COMMAND": "bhosts", "HOSTS": 1, "RECORDS": [record]}).encode()


def read_host():
    (node,) = lsf.command_readers(CommandOptions(timeout=scaled(5))).nodes()
    return node.memory_bytes, node.memory_allocated_bytes, node.gpus, node.gpus_allocated


def test_hosts_of_a_recent_fix_pack(install_command):
    install_command("lshosts", **{"-w": LSHOSTS})
    gpus = {"NGPUS": "4", "NGPUS_ALLOC": "1"}
    install_command("bhosts", **{"ngpus_alloc reserved_mem": bhosts(**gpus, RESERVED_MEM="3.5G")})
    assert read_host() == (503.5 * GIB, 3.5 * GIB, 4, 1)


def test_hosts_of_older_fix_packs_without_some_fields(install_command):
    install_command("lshosts", **{"-w": LSHOSTS})
    gpus = {"NGPUS": "4", "NGPUS_ALLOC": "1"}
    # bhosts rejects fields that it does not know.
    old = {"reserved_mem": b"Bad field name", "ngpus ngpus_alloc": bhosts(**gpus)}
    install_command("bhosts", **old)
    assert read_host() == (503.5 * GIB, None, 4, 1)
    install_command("bhosts", ngpus=b"Bad field name", njobs=bhosts())
    assert read_host() == (503.5 * GIB, None, None, None)


def test_hosts_without_lshosts(install_command):
    install_command("bhosts", njobs=bhosts(NGPUS="4", NGPUS_ALLOC="1", RESERVED_MEM="0M"))
    assert read_host() == (None, 0, 4, 1)


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
    pending, running = lsf.jobs([PENDING, RUNNING], NOW)
    assert (pending.jobid, pending.partition, pending.state) == ("42[3]", "gpu", JobState.PENDING)
    assert (pending.cpus, pending.gpus, pending.reason) == (
        4,
        2,
        "New_job_is_waiting_for_scheduling",
    )
    assert pending.start_time is None
    assert (pending.user, pending.account) == ("alice", "astro")
    assert (running.jobid, running.cpus, running.gpus) == ("42", 8, 0)
    assert running.start_time - running.eligible_time == 300


def test_text_before_the_json_is_ignored(install_command):
    answer = {"COMMAND": "bhosts", "HOSTS": 1, "RECORDS": [{"HOST_NAME": "h1", "STATUS": "ok"}]}
    noise = b"Cannot connect to LSF. Please wait ...\n"
    install_command("bhosts", **{"-json": noise + json.dumps(answer).encode()})
    (node,) = lsf.command_readers(CommandOptions(timeout=scaled(5))).nodes()
    assert node.name == "h1"


def test_no_jobs_are_valid_but_no_hosts_are_an_error(install_command):
    program = install_command("bjobs")
    program.write_text("#!/bin/sh\necho 'No job found' >&2; exit 255\n")
    install_command("bhosts", **{"-json": b'{"COMMAND":"bhosts","HOSTS":0,"RECORDS":[]}'})
    readers = lsf.command_readers(CommandOptions(timeout=scaled(5)))
    assert readers.jobs() == []
    with pytest.raises(SchedulerError, match="lists no hosts"):
        readers.nodes()


@given(st.text())
def test_arbitrary_fields_are_accepted(text):
    lsf.jobs([dict.fromkeys(PENDING, text)], NOW)
    names = ("STATUS", "MAX", "NJOBS", "NGPUS", "NGPUS_ALLOC", "RESERVED_MEM")
    lsf.nodes([{"HOST_NAME": "h"} | dict.fromkeys(names, text)], {})


@given(st.text())
def test_arbitrary_memory_is_not_negative(text):
    memory_bytes = lsf.parse_host_memory(
        f"HOST_NAME ncpus maxmem\nh1 4 {text}\n".encode("utf-8", "replace")
    )
    assert all(size >= 0 for size in memory_bytes.values())


@given(st.binary())
def test_arbitrary_lshosts_output_is_accepted(output):
    lsf.parse_host_memory(output)
    lsf.parse_host_memory(b"HOST_NAME maxmem\n" + output)

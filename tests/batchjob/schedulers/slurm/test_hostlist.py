"""Host lists of Slurm, PBS and LSF."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.lsf.formats import lsf_hosts
from batchjob.schedulers.pbs.accounting.records import pbs_exec_host, pbs_exec_vnode
from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.slurm.hostlist import slurm_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node001", ["node001"]),
        ("a,b", ["a", "b"]),
        ("node[001-003,007]", ["node001", "node002", "node003", "node007"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        (
            "x[1-2]c[0-1]s[0,2]b0",
            [f"x{x}c{c}s{s}b0" for x in (1, 2) for c in (0, 1) for s in (0, 2)],
        ),
        ("n[1,[4-5]]", ["n1", "n4", "n5"]),
        ("n[a[1-2],b]", ["na1", "na2", "nb"]),
        ("cn-a[1-2],gpu-07,login", ["cn-a1", "cn-a2", "gpu-07", "login"]),
        ("[a-b]", ["a-b"]),
        ("", []),
        ("None assigned", []),
        ("(null)", []),
    ],
)
def test_slurm_hosts(text, hosts):
    assert slurm_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n]1",
        "n[3-1]",
        "n[]",
        "a,,b",
        ",",
        "n[1,]",
        "a b,c d",
        "n[[1]",
        "[" * 5000 + "]" * 5000,
    ],
)
def test_invalid_host_list(text):
    with pytest.raises(ValueError, match=r"host list|not a range|expected a number"):
        slurm_hosts(text)


def test_100_000_hosts():
    hosts = slurm_hosts("n[000001-100000]")
    assert len(hosts) == 100_000
    assert hosts[-1] == "n100000"


@pytest.mark.parametrize(
    "text",
    [
        "n[1-999999999999]",
        "a[0-999]b[0-999]c[0-999]",
        "n[1-200000],m[1-200000]",
        "n" + "[0-9]" * 30,
    ],
)
def test_too_many_hosts_are_rejected_quickly(text):
    cpu_seconds_before = time.thread_time()
    with pytest.raises(ValueError, match="more hosts than the limit"):
        slurm_hosts(text)
    assert time.thread_time() - cpu_seconds_before < 1


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=50, unique=True), st.integers(1, 5))
def test_padded_numbers_round_trip(numbers, width):
    text = "n[" + ",".join(f"{number:0{width}d}" for number in numbers) + "]"
    assert slurm_hosts(text) == [f"n{number:0{width}d}" for number in numbers]


@given(st.text(alphabet="n0123456789[],-ab", max_size=40))
def test_any_text_is_hosts_or_host_list_error(text):
    with contextlib.suppress(ValueError):
        assert all("[" not in host for host in slurm_hosts(text, limit=10_000))


def test_pbs_exec_host():
    assert pbs_exec_host("n1/0*8+n2/3") == (
        NodeShare("n1", 8),
        NodeShare("n2", 1),
    )


def test_torque_exec_host():
    assert pbs_exec_host("n1/7+n1/6+n2/0") == (
        NodeShare("n1", 2),
        NodeShare("n2", 1),
    )
    assert pbs_exec_host("n1/0-7+n2/0,2-3") == (
        NodeShare("n1", 8),
        NodeShare("n2", 3),
    )


def test_pbs_exec_vnode():
    assert pbs_exec_vnode(
        "(n1[0]:ncpus=4:mem=1gb+n1[1]:ncpus=4)+(n2:ncpus=8:ngpus=1)", "n1/0*8+n2/0*8"
    ) == (
        NodeShare("n1", 8, 1024**3, None),
        NodeShare("n2", 8, None, 1),
    )


def test_exec_vnode_chunks_on_one_host_are_summed():
    text = "(pbs01:ncpus=1:mem=102400kb)+(pbs01:ncpus=1:mem=102400kb)"
    assert pbs_exec_vnode(text, "pbs01/0+pbs01/1") == (NodeShare("pbs01", 2, 209715200, None),)


@pytest.mark.parametrize("text", ["n1", "n1/0*x", "/0", "+"])
def test_invalid_exec_host(text):
    with pytest.raises(ValueError, match=r"exec_host|expected a number"):
        pbs_exec_host(text)


def test_lsf_hosts():
    assert lsf_hosts(["h1", "h1", "h2"]) == (
        NodeShare("h1", 2),
        NodeShare("h2", 1),
    )
    assert lsf_hosts(["16*h1", "h2"]) == (
        NodeShare("h1", 16),
        NodeShare("h2", 1),
    )

"""CPUs of LSF jobs without a cpuset."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.lsf.node import count_on_node
from tests.collectors.jobs.nodes import requires_root, samples

HOST = os.uname().nodename


@pytest.mark.parametrize(
    ("slots", "cpus"),
    [
        ("n1 4 n2 8", 8),
        ("n1.site 4 n2.site 8", 8),
        ("n2 2 n1 1 n2 3", 5),
        ("n1 4", None),
        ("n2 65", None),  # more than the node has
        ("n2 -4", None),
        ("n2 1_0", None),
        ("n2", None),
        ("", None),
    ],
)
def test_slots_are_counted_for_this_host(slots, cpus):
    assert count_on_node({"LSB_MCPU_HOSTS": slots}, "n2.cluster", 64) == cpus


def affinity_environ(tmp_path, uid=0, mode=0o644):
    file = tmp_path / "affinity"
    file.write_text("n1 0,1 0 1\nn2 2,3 0 1\nn2 4-5 0 1\nn2 2,3 0 1\n")
    file.chmod(mode)
    os.chown(file, uid, 0)
    return {"LSB_AFFINITY_HOSTFILE": str(file), "LSB_MCPU_HOSTS": "n2 9"}


@requires_root
def test_affinity_file_is_read_only_if_root_wrote_it(tmp_path):
    assert count_on_node(affinity_environ(tmp_path), "n2", 64) == 4
    assert count_on_node(affinity_environ(tmp_path, uid=1000), "n2", 64) == 9
    assert count_on_node(affinity_environ(tmp_path, mode=0o666), "n2", 64) == 9


@requires_root
def test_affinity_file_that_is_a_pipe_or_link_is_not_read(tmp_path):
    environ = affinity_environ(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "affinity")
    for name in ("pipe", "link", "nothing"):
        environ["LSB_AFFINITY_HOSTFILE"] = str(tmp_path / name)
        assert count_on_node(environ, "n2", 64) == 9


@given(st.text(), st.text())
def test_arbitrary_slots_give_a_valid_count_or_none(slots, host):
    cpus = count_on_node({"LSB_MCPU_HOSTS": slots, "LSB_AFFINITY_HOSTFILE": ""}, host, 64)
    assert cpus is None or 0 < cpus <= 64


def test_job_without_a_cpuset_gets_cpus_from_its_environment(node):
    node.add_job("job.101.1.1795181000", scope="lsf/prod", pids=[10])
    node.add_process(10, environ=f"LSB_MCPU_HOSTS={HOST} 1\0LSB_QUEUE=long\0".encode())
    jobs = node.collector()
    jobs.update()
    assert samples(jobs)["cpus", "101"] == 1
    assert jobs.usage()[0].cpus == 1

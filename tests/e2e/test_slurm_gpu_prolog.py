"""The shipped GPU prolog and epilog on a real Slurm with fake GPUs."""

import functools
import shutil
from collections.abc import Iterator

import pytest

from collectors.gpu.job_files import PrologFiles
from tests.e2e import slurm, slurm_prolog
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e
eventually = functools.partial(until, timeout=300.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    """Two nodes with four GPUs each."""
    if why_not := slurm.missing(cgroup=1, accounting=False):
        pytest.skip(why_not)
    with slurm.cluster(
        cgroup=1, nodes=2, cpus=4, accounting=False, gpus=4, conf=slurm_prolog.CONF
    ) as running_cluster:
        slurm_prolog.install(running_cluster)
        yield running_cluster


def allocated_gpus(cluster: slurm.Cluster, node: int) -> dict[str, set[str]]:
    """GPUs by job on a node, as the exporter reads them."""
    directory = str(slurm_prolog.gpu_directory(cluster, cluster.nodes[node]))
    return {job: set(gpus) for job, gpus in PrologFiles(directory).read().items()}


def node_states(cluster: slurm.Cluster) -> set[str]:
    """States of all nodes."""
    return set(cluster.command("sinfo", "--noheader", "--Node", "--format=%T").split())


def test_prolog_and_epilog_record_allocated_gpus(cluster: slurm.Cluster) -> None:
    node = f"--nodelist={cluster.nodes[0]}"
    one = cluster.submit("alice", "sleep 3600", "--gres=gpu:1", "--ntasks=1", node)
    three = cluster.submit("bob", "sleep 3600", "--gres=gpu:3", "--ntasks=1", node)
    none = cluster.submit("carol", "sleep 3600", "--ntasks=1", node)
    cluster.wait(one, three, none, state="RUNNING")
    gpus_by_job = eventually(
        lambda: len(allocated_gpus(cluster, 0)) == 2 and allocated_gpus(cluster, 0),
        "two jobs hold GPUs",
    )
    assert (len(gpus_by_job[one]), len(gpus_by_job[three])) == (1, 3)
    assert gpus_by_job[one] | gpus_by_job[three] == {"0", "1", "2", "3"}
    job_description = cluster.command("scontrol", "--details", "show", "job", one)
    (index,) = gpus_by_job[one]
    assert f"IDX:{index}" in job_description
    cluster.command("scancel", one)
    cluster.wait(one)
    eventually(
        lambda: allocated_gpus(cluster, 0).keys() == {three}, "the epilog has removed the job"
    )
    cluster.command("scancel", three, none)
    cluster.wait(three, none)
    eventually(lambda: allocated_gpus(cluster, 0) == {}, "no job holds a GPU")
    eventually(lambda: node_states(cluster) == {"idle"}, "no node is drained")


def test_job_on_two_nodes(cluster: slurm.Cluster) -> None:
    job = cluster.submit("alice", "sleep 3600", "--gres=gpu:2", "--nodes=2", "--ntasks=2")
    cluster.wait(job, state="RUNNING")
    for node in (0, 1):
        eventually(
            lambda node=node: len(allocated_gpus(cluster, node).get(job, ())) == 2,
            "two GPUs on a node",
        )
    cluster.command("scancel", job)
    cluster.wait(job)
    eventually(
        lambda: not allocated_gpus(cluster, 0) and not allocated_gpus(cluster, 1),
        "the epilogs have run",
    )


def test_no_gpu_stays_allocated_after_many_jobs(cluster: slurm.Cluster) -> None:
    jobs = [cluster.submit("bob", "true", "--gres=gpu:1", "--ntasks=1") for _ in range(12)]
    cluster.wait(*jobs)
    eventually(
        lambda: not allocated_gpus(cluster, 0) and not allocated_gpus(cluster, 1),
        "no job holds a GPU",
    )
    eventually(lambda: node_states(cluster) == {"idle"}, "no node is drained")


def test_unusable_directory_does_not_drain_node(cluster: slurm.Cluster) -> None:
    shutil.rmtree(cluster.root / "gpus")
    (cluster.root / "gpus").touch()
    job = cluster.submit("alice", "true", "--gres=gpu:1")
    cluster.wait(job)
    assert cluster.states()[job] == "COMPLETED"
    eventually(lambda: node_states(cluster) == {"idle"}, "no node is drained")

"""The shipped prolog and epilog on a real Slurm with pretend GPUs: what they write is read."""

import functools
import shutil
from collections.abc import Iterator

import pytest

from collectors.gpu.job_files import PrologFiles
from tests.e2e import slurm, slurm_prolog
from tests.e2e.processes import until

pytestmark = pytest.mark.e2e
eventually = functools.partial(until, timeout=300.0)  # also on a machine with much other work


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    """Two nodes with four GPUs each."""
    if why_not := slurm.missing(cgroup=1, accounting=False):
        pytest.skip(why_not)
    with slurm.cluster(
        cgroup=1, nodes=2, cpus=4, accounting=False, gpus=4, conf=slurm_prolog.CONF
    ) as made:
        slurm_prolog.install(made)
        yield made


def held(cluster: slurm.Cluster, node: int) -> dict[str, set[str]]:
    """Job -> its GPUs on a node, as the exporter reads them."""
    directory = str(slurm_prolog.directory(cluster, cluster.nodes[node]))
    return {job: set(gpus) for job, gpus in PrologFiles(directory).read().items()}


def states(cluster: slurm.Cluster) -> set[str]:
    """Of the nodes."""
    return set(cluster.command("sinfo", "--noheader", "--Node", "--format=%T").split())


def test_a_job_holds_what_slurm_gave_it(cluster: slurm.Cluster) -> None:
    node = f"--nodelist={cluster.nodes[0]}"
    one = cluster.submit("alice", "sleep 3600", "--gres=gpu:1", "--ntasks=1", node)
    three = cluster.submit("bob", "sleep 3600", "--gres=gpu:3", "--ntasks=1", node)
    none = cluster.submit("carol", "sleep 3600", "--ntasks=1", node)
    cluster.wait(one, three, none, state="RUNNING")
    found = eventually(
        lambda: len(held(cluster, 0)) == 2 and held(cluster, 0), "two jobs hold GPUs"
    )
    assert (len(found[one]), len(found[three])) == (1, 3)
    assert found[one] | found[three] == {"0", "1", "2", "3"}
    told = cluster.command("scontrol", "--details", "show", "job", one)
    (index,) = found[one]
    assert f"IDX:{index}" in told
    cluster.command("scancel", one)
    cluster.wait(one)
    eventually(lambda: held(cluster, 0).keys() == {three}, "the epilog has taken the job out")
    cluster.command("scancel", three, none)
    cluster.wait(three, none)
    eventually(lambda: held(cluster, 0) == {}, "no job holds a GPU")
    eventually(lambda: states(cluster) == {"idle"}, "no node is drained")


def test_a_job_of_two_nodes(cluster: slurm.Cluster) -> None:
    job = cluster.submit("alice", "sleep 3600", "--gres=gpu:2", "--nodes=2", "--ntasks=2")
    cluster.wait(job, state="RUNNING")
    for node in (0, 1):
        eventually(
            lambda node=node: len(held(cluster, node).get(job, ())) == 2, "two GPUs on a node"
        )
    cluster.command("scancel", job)
    cluster.wait(job)
    eventually(lambda: not held(cluster, 0) and not held(cluster, 1), "the epilogs have run")


def test_many_jobs_one_after_the_other(cluster: slurm.Cluster) -> None:
    jobs = [cluster.submit("bob", "true", "--gres=gpu:1", "--ntasks=1") for _ in range(12)]
    cluster.wait(*jobs)
    eventually(lambda: not held(cluster, 0) and not held(cluster, 1), "nothing stays")
    eventually(lambda: states(cluster) == {"idle"}, "no node is drained")


def test_a_directory_that_cannot_be_made_drains_no_node(cluster: slurm.Cluster) -> None:
    shutil.rmtree(cluster.root / "gpus")
    (cluster.root / "gpus").touch()
    job = cluster.submit("alice", "true", "--gres=gpu:1")
    cluster.wait(job)
    assert cluster.states()[job] == "COMPLETED"
    eventually(lambda: states(cluster) == {"idle"}, "no node is drained")

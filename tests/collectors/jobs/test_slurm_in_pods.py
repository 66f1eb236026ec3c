"""A recorded Slurm node as the host sees it if slurmd runs in a pod: the same jobs and numbers."""

from pathlib import Path

import pytest

from batchjob_exporter import exposition
from collectors.jobs import collector

TREE = "slurm-24.11-v2-r1-a"
SCOPE = "system.slice/node01_slurmstepd.scope"
UID = "0b6a7a0e-3f0e-4c5e-9d41-2f3a4b5c6d7e"
BURSTABLE = (
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
)
# Where slurmd makes its scope: the pod's and the container's cgroup by driver and runtime.
PODS = [
    f"{BURSTABLE}/cri-containerd-{'1f' * 32}.scope/system.slice",
    f"{BURSTABLE}/crio-{'1f' * 32}.scope/system.slice",
    f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/docker-{'1f' * 32}.scope",
    f"kubepods/burstable/pod{UID}/{'1f' * 32}/system.slice",
]


def exposition_lines(host):
    """All lines of an exposition but job_info's, which has the path of the cgroup."""
    jobs = collector.JobsCollector(host, collector.JobsOptions())
    jobs.update()
    text = exposition.render(jobs.collect()).decode()
    jobs.stop()
    return {
        line
        for line in text.splitlines()
        if not line.startswith(("#", "batchjob_job_info", "batchjob_job_read_errors"))
    }


@pytest.mark.parametrize("pod", PODS, ids=["containerd", "crio", "docker", "cgroupfs"])
def test_jobs_inside_a_pod_are_shown_as_on_the_host(tree, as_recorded, pod):
    on_the_host = exposition_lines(tree(TREE))
    host = tree(TREE, copy=True)
    root = Path(host.cgroupfs)
    (root / pod).mkdir(parents=True)
    for directory in [root / pod, *(root / pod).parents]:
        if directory == root:
            break
        (directory / "cgroup.procs").touch()
    (root / SCOPE).rename(root / pod / "slurmstepd.scope")
    assert 'jobid="2"' in "".join(on_the_host)
    assert exposition_lines(host) == on_the_host

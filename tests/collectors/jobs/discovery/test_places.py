"""Walking a cgroup tree: which directories to enter and to watch."""

import pytest

from batchjob.schedulers import registry
from collectors.jobs.discovery.walk import cursor_of

POD = "kubepods/pod0a1b2c3d-0000-4111-8222-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    ("version", "path", "may_contain_jobs"),
    [
        (1, "", True),
        (1, "slurm_node001/uid_1000", True),
        (1, "slurm_node001/uid_1000/job_1", False),
        (1, "docker/1f/slurm", True),  # slurmd may run in a container
        (1, "user.slice/user-1000.slice/session-2.scope", False),
        (2, "system.slice/n1_slurmstepd.scope", True),
        (2, "system.slice/n1_slurmstepd.scope/job_1", False),
        (2, "system.slice/ssh.service", True),
        (2, "user.slice/user-1000.slice/session-2.scope", False),
        (2, "user.slice/user-1000.slice/user@1000.service/app.slice/x.scope", False),
        (2, "init.scope", False),
        (2, "a/b/c/d/e/f/g/h/i/j", True),
        (2, POD, True),  # a pod is a job, and may be a node of Slurm
    ],
)
def test_cursor_tells_what_to_enter(version, path, may_contain_jobs):
    assert cursor_of(path, registry.layouts(), version).may_contain_jobs == may_contain_jobs


def test_innermost_nested_job_is_matched():
    job = cursor_of(f"{POD}/1f/slurmstepd.scope/job_3", registry.layouts(), 2).layout_match
    assert job is not None
    assert (job.manager, job.jobid) == ("slurm", "3")


def test_forged_job_directory_inside_a_job_is_not_a_job():
    path = "system.slice/slurmstepd.scope/job_1/step_0/user/task_0/slurmstepd.scope/job_2"
    assert cursor_of(path, registry.layouts(), 2).layout_match is None

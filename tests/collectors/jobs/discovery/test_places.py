"""Walking a cgroup tree: which directories to enter and to watch."""

import pytest

from batchjob.schedulers import registry
from collectors.jobs.discovery.places import cursor_of

POD = "kubepods/pod0a1b2c3d-0000-4111-8222-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    ("version", "path", "may_contain_jobs", "should_watch"),
    [
        (1, "", True, True),
        (1, "slurm_node001", True, True),
        (1, "slurm_node001/uid_1000", True, True),
        (1, "slurm_node001/uid_1000/job_1", False, False),
        (1, "slurm_node001/system", False, False),
        (1, "system.slice", False, False),
        (1, "user.slice/user-1000.slice", False, False),
        (1, "pbs_jobs.service/jobid", True, True),
        (1, "lsf/cluster1", True, True),
        (2, "system.slice", True, True),
        (2, "system.slice/n1_slurmstepd.scope", True, True),
        (2, "system.slice/n1_slurmstepd.scope/job_1", False, False),
        (2, "system.slice/n1_slurmstepd.scope/system", True, False),
        (2, "system.slice/ssh.service", True, False),  # slurmd may run in a container
        (2, "user.slice/user-1000.slice/session-2.scope", False, False),
        (2, "user.slice/user-1000.slice/user@1000.service/app.slice/x.scope", False, False),
        (2, "init.scope", False, False),
        (2, "a/b/c/d/e/f/g", True, False),
        (2, "a/b/c/d/e/f/g/h", False, False),
        (2, POD, True, False),  # a pod is a job, and may be a node of Slurm
    ],
)
def test_cursor_tells_what_to_enter_and_watch(version, path, may_contain_jobs, should_watch):
    cursor = cursor_of(path, registry.layouts(), version)
    assert (cursor.may_contain_jobs, cursor.should_watch) == (may_contain_jobs, should_watch)


def test_v1_enters_only_possible_scheduler_directories():
    entered = [
        name
        for name in ("ssh.service", "docker", "init.scope", "slurm", "oar")
        if cursor_of(name, registry.layouts(), 1).may_contain_jobs
    ]
    assert entered == ["ssh.service", "slurm", "oar"]  # PBS calls its service as it likes


def test_innermost_nested_job_is_matched():
    job = cursor_of(f"{POD}/1f/slurmstepd.scope/job_3", registry.layouts(), 2).layout_match
    assert job is not None
    assert (job.manager, job.jobid) == ("slurm", "3")


def test_forged_job_directory_inside_a_job_is_not_a_job():
    path = "system.slice/slurmstepd.scope/job_1/step_0/user/task_0/slurmstepd.scope/job_2"
    assert cursor_of(path, registry.layouts(), 2).layout_match is None

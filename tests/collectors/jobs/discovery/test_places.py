"""Walking a tree: where to go, what to watch."""

import pytest

from batchjob.schedulers import registry
from collectors.jobs.discovery.places import cursor_of

POD = "kubepods/pod0a1b2c3d-0000-4111-8222-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    ("version", "path", "leads_on", "watch"),
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
def test_where_to_go(version, path, leads_on, watch):
    place = cursor_of(path, registry.layouts(), version)
    assert (place.may_contain_jobs, place.should_watch) == (leads_on, watch)


def test_version_1_leaves_everything_else_alone():
    entered = [
        name
        for name in ("ssh.service", "docker", "init.scope", "slurm", "oar")
        if cursor_of(name, registry.layouts(), 1).may_contain_jobs
    ]
    assert entered == ["ssh.service", "slurm", "oar"]  # PBS calls its service as it likes


def test_the_innermost_of_nested_jobs_counts():
    found = cursor_of(f"{POD}/1f/slurmstepd.scope/job_3", registry.layouts(), 2).layout_match
    assert found is not None
    assert (found.manager, found.jobid) == ("slurm", "3")


def test_a_forged_tree_inside_a_job_is_part_of_the_job():
    path = "system.slice/slurmstepd.scope/job_1/step_0/user/task_0/slurmstepd.scope/job_2"
    assert cursor_of(path, registry.layouts(), 2).layout_match is None

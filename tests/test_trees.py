"""Recorded machines contain the jobs that ran on them."""

import os
import tarfile
from pathlib import Path, PurePath

import pytest

from batchjob.schedulers import registry
from collectors.jobs.discovery.site_layouts import all_layouts, site_layouts
from collectors.jobs.discovery.walk import match

TREES = Path(__file__).parent / "fixtures" / "cgroupfs"

# tree, hierarchy below /sys/fs/cgroup, cgroup version, (manager, jobid) of its jobs
RECORDED = [
    ("slurm-22.05-v1-01-batch1-array-timeout-io", "memory", 1, "slurm", "2 3 4 7 15 23 24"),
    ("slurm-22.05-v1-02-batch1-15s-later", "freezer", 1, "slurm", "2 3 4 21 27 28"),
    ("slurm-22.05-v1-03-gpu2-array-io", "cpuacct", 1, "slurm", "2 3 4 10 12 21"),
    ("slurm-22.05-v1-04-gpu2-16s-later", "devices", 1, "slurm", "2 3 4 10 12 21"),
    ("slurm-22.05-v1-05-multistep-2nodes-gpu", "cpuset", 1, "slurm", "11 12 17"),
    ("slurm-22.05-v1-07-suspended-interactive-shard", "memory", 1, "slurm", "14 21 29 30 31 32"),
    ("slurm-22.05-v1-08-orphaned-after-slurmstepd-kill", "memory", 1, "slurm", "14 21 29 30 31"),
    (
        "slurm-22.05-v1-09-batch2-hetjob-gpus-and-stale-empty-dirs",
        "memory",
        1,
        "slurm",
        "29 30 34 35 36 37 44 45",
    ),
    ("slurm-22.05-v2-r1-a", "", 2, "slurm", "1 2 3 5 6 7 8"),
    ("slurm-22.05-v2-r2-b", "", 2, "slurm", "15 18 19 20 21 22 23 24"),
    ("slurm-22.05-v2-r3-a", "", 2, "slurm", "25 26"),
    ("slurm-22.05-v2-r3-b", "", 2, "slurm", "25 26"),
    ("slurm-22.05-v2-uml", "", 2, "slurm", "1 2 5 6 9 10"),
    ("slurm-24.11-v2-r1-a", "", 2, "slurm", "1 2 3 5 6 7 8"),
    ("slurm-24.11-v2-r1-b", "", 2, "slurm", "1 2 3 5 6 7 8"),
    ("slurm-24.11-v2-r2-a", "", 2, "slurm", "18 19 20 21 22 23 24"),
    ("slurm-24.11-v2-r3-b", "", 2, "slurm", "25 26"),
    ("openpbs-23.06-v1-01-two-jobs", "cpuacct", 1, "pbs", "0.pbs01 1.pbs01"),
    ("openpbs-23.06-v1-02-two-jobs-32s-later", "cpuset", 1, "pbs", "0.pbs01 1.pbs01"),
    ("openpbs-23.06-v1-03-array-subjobs", "memory", 1, "pbs", "2[0].pbs01 2[1].pbs01"),
    ("openpbs-23.06-v1-04-walltime-and-cancelled", "memory", 1, "pbs", "5.pbs01 8.pbs01"),
    ("openpbs-23.06-v1-05-job-end-empty-dir", "memory", 1, "pbs", "9.pbs01"),
    ("openpbs-23.06-v1-07-two-gpu-jobs", "devices", 1, "pbs", "11.pbs01 12.pbs01"),
]


def directories(name, top):
    """The directories below `top` in an archive, without unpacking it."""
    with tarfile.open(TREES / f"{name}.tar.xz") as tar:
        paths = [PurePath(member.name) for member in tar if member.isdir()]
    return [str(path.relative_to(top)) for path in paths if top in path.parents]


def recorded_jobs(name, hierarchy, version):
    top = PurePath("sys/fs/cgroup") / hierarchy
    matches = [match(path, registry.layouts(), version) for path in directories(name, top)]
    return [job for job in matches if job]


@pytest.mark.parametrize(("name", "hierarchy", "version", "manager", "jobids"), RECORDED)
def test_recorded_machine_has_its_jobs(name, hierarchy, version, manager, jobids):
    jobs = recorded_jobs(name, hierarchy, version)
    assert {job.manager for job in jobs} == {manager}
    assert sorted({job.jobid for job in jobs}) == sorted(jobids.split())


def test_recorded_machine_has_its_containers():
    enabled = all_layouts(site_layouts([{"manager": "podman", "enabled": True}]))
    top = "sys/fs/cgroup/memory"
    found = [
        match(path, enabled, 1) for path in directories("podman-4.3-v1-cgroupfs", PurePath(top))
    ]
    assert sorted(job.jobid[:6] for job in found if job) == ["379cfc", "c76201", "f47c7e"]


def test_job_of_two_slurmd_on_one_machine_has_two_roots():
    jobs = recorded_jobs("slurm-22.05-v1-05-multistep-2nodes-gpu", "memory", 1)
    assert [(dict(job.info)["node"], job.uid) for job in jobs if job.jobid == "11"] == [
        ("node001", 20001),
        ("node003", 20001),
    ]


@pytest.mark.usefixtures("as_recorded")
def test_owners_are_restored(tree):
    host = tree("slurm-24.11-v2-r2-a")
    user = "user.slice/user-2001.slice/user@2001.service"
    assert os.stat(f"{host.cgroupfs}/{user}").st_uid == 2001
    assert os.stat(f"{host.cgroupfs}/system.slice").st_uid == 0
    assert os.stat(f"{host.procfs}/3263").st_uid == 2001


def test_clock_is_at_end_of_recording(tree):
    assert tree("slurm-22.05-v1-05-multistep-2nodes-gpu").clock() == 1795174663.5400674


def test_copy_is_not_shared(tree):
    name = "openpbs-23.06-v1-05-job-end-empty-dir"
    assert tree(name, copy=True).cgroupfs != tree(name).cgroupfs == tree(name).cgroupfs

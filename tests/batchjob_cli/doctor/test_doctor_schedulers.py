"""Which schedulers are found, and which numbers their jobs have."""

import os
import shutil
from pathlib import Path

import pytest

from batchjob.schedulers import registry
from batchjob_cli.doctor.command import examine, jobs_visible
from batchjob_cli.doctor.finding import ExaminedNode
from batchjob_cli.run.cgroup import creation_error
from collectors.jobs.discovery.site_layouts import site_layouts

BUILT_IN = registry.layouts()


def findings(host, layouts=BUILT_IN):
    report = examine(ExaminedNode(host, layouts))
    return {(subject, name): found for subject in report for name, found in report[subject].items()}


def results(host, subject):
    return {name: f.result for (about, name), f in findings(host).items() if about == subject}


V2 = "sys/fs/cgroup/"
ROOT = {f"{V2}cgroup.controllers": "cpuset cpu io memory pids\n"}


def test_slurm_on_cgroup_v1(tree):
    host = tree("slurm-22.05-v1-05-multistep-2nodes-gpu")
    seen = findings(host)
    assert jobs_visible(ExaminedNode(host))
    assert seen["schedulers", "slurm"] == (
        "ok",
        "3 jobs in slurm_node001, slurm_node002, slurm_node003, slurm_node004 (cgroup v1)",
        "",
    )
    assert results(host, "numbers") == {
        "CPU time": "ok",
        "memory": "ok",
        "allocated CPUs": "ok",
        "block IO": "warning",
        "threads": "warning",
        "pressure": "warning",
    }


def test_idle_node_on_cgroup_v1_has_no_core_advice(tree):
    """Slurm makes its tree of CPUs with the first job that is confined there, and it may stay."""
    host = tree("slurm-22.05-v1-05-multistep-2nodes-gpu", copy=True)
    for tree_of_cpus in Path(host.cgroupfs).glob("cpuset/slurm_*"):
        shutil.rmtree(tree_of_cpus)
    assert "ConstrainCores=yes" in findings(host)["numbers", "allocated CPUs"].advice
    for user in Path(host.cgroupfs).glob("*/slurm_*/uid_*"):
        shutil.rmtree(user)
    seen = findings(host)
    assert seen["schedulers", "slurm"].seen.startswith("no jobs in slurm_")
    assert not [each for each in seen.values() if "ConstrainCores" in each.advice]


def test_slurm_on_cgroup_v2(tree):
    host = tree("slurm-24.11-v2-r1-a")
    seen = findings(host)
    scope = "system.slice/node01_slurmstepd.scope"
    assert seen["schedulers", "slurm"].seen.startswith(f"7 jobs in {scope}")
    assert results(host, "numbers") == {
        "CPU time": "ok",
        "memory": "ok",
        "allocated CPUs": "ok",
        "block IO": "warning",
        "threads": "warning",
        "memory peak": "ok",
        "pressure": "ok",
    }
    assert f"echo '+io +pids' > {host.cgroupfs}/{scope}/cgroup.subtree_control" in (
        seen["numbers", "block IO"].advice
    )


def test_second_slurmd_without_controllers_is_named(tree):
    seen = findings(tree("slurm-24.11-v2-r3-b"))["numbers", "block IO"]
    assert "node02_slurmstepd.scope" in seen.advice  # node01's has io and pids


def test_kernel_without_pressure(tree):
    seen = findings(tree("slurm-22.05-v2-uml"))["numbers", "pressure"]
    assert seen.result == "warning"
    assert "psi=1" in seen.advice


def test_pressure_on_version_2_without_jobs_needs_no_advice(machine):
    seen = findings(machine({**ROOT, "proc/pressure/cpu": ""}))["numbers", "pressure"]
    assert (seen.result, seen.advice) == ("ok", "")


def test_limits_of_runs_are_tried(machine):
    seen = findings(machine(ROOT))["runs", "batchjob run"]
    assert (seen.seen.startswith("without a cgroup")) == bool(creation_error())
    if os.geteuid() != 0 and creation_error():
        assert "a log-in that starts a systemd for you" in seen.advice


def test_pbs(tree):
    host = tree("openpbs-23.06-v1-03-array-subjobs")
    seen = findings(host)
    assert seen["schedulers", "pbs"].seen == "2 jobs in pbs_jobs.service (cgroup v1)"
    assert seen["numbers", "block IO"].advice == "none: the hook does not support blkio"


@pytest.mark.parametrize(
    ("daemon", "advice"),
    [
        ("slurmd", "proctrack/cgroup"),
        ("pbs_mom", "pbs_cgroups"),
        ("sbatchd", "LSF_LINUX_CGROUP_ACCT=Y"),
    ],
)
def test_daemon_without_cgroup_tree(machine, daemon, advice):
    process = {"proc/77/comm": f"{daemon}\n", "proc/77/cmdline": f"/usr/sbin/{daemon}\0-D\0"}
    host = machine({**ROOT, **process})
    missing = [f for f in findings(host).values() if f.seen.startswith(daemon)]
    assert [f.result for f in missing] == ["missing"]
    assert advice in missing[0].advice
    assert not jobs_visible(ExaminedNode(host))


def test_ended_daemon_is_not_reported(machine):
    host = machine({**ROOT, "proc/77/comm": "slurmd\n", "proc/77/cmdline": ""})
    assert ("schedulers", "slurm") not in findings(host)


def test_idle_node_with_cgroup_tree(machine):
    host = machine({**ROOT, f"{V2}lsf/prod/": None})
    assert findings(host)["schedulers", "lsf"].seen == "no jobs in lsf (cgroup v2)"
    assert jobs_visible(ExaminedNode(host))


def test_node_without_scheduler(machine):
    host = machine({**ROOT, f"{V2}user.slice/user-1.slice/user@1.service/app.slice/": None})
    assert findings(host)["schedulers", "jobs"].result == "missing"
    assert not jobs_visible(ExaminedNode(host))


def test_site_defined_layout(machine):
    host = machine({**ROOT, f"{V2}mybatch/user_5/": None, f"{V2}mybatch/user_6/job_1/": None})
    rows = site_layouts([{"manager": "mybatch", "pattern": "/mybatch/user_{uid}/job_{jobid}"}])
    assert findings(host, (*rows, *BUILT_IN))["schedulers", "others"].seen == "mybatch: 1 job"


def test_missing_cgroup_hierarchy(machine):
    seen = findings(machine())
    assert seen["cgroups", "hierarchies"].result == "missing"
    assert "--path.cgroupfs" in seen["cgroups", "hierarchies"].advice


def test_container_with_partial_cgroup_tree(machine):
    host = machine({**ROOT, f"{V2}cgroup.type": "domain\n"})
    assert findings(host)["cgroups", "whole tree"].result == "missing"


def test_pids_of_another_namespace(machine):
    job = f"{V2}system.slice/slurmstepd.scope/job_1"
    host = machine({**ROOT, f"{job}/step_0/user/task_0/cgroup.procs": "0\n"})
    assert findings(host)["permissions", "namespace"].result == "missing"

"""Explanations of the schedulers' reasons."""

import pytest

from batchjob.schedulers.lsf import states as lsf
from batchjob.schedulers.pbs import states as pbs
from batchjob.schedulers.slurm import states as slurm

# The limits of associations and QOS, by the parts from which slurmctld builds their names.
RESOURCES = ("BB", "Billing", "Energy", "GRES", "License", "Unknown")
LIMITS = [
    *(f"{of}Grp{what}{kind}" for of in ("Assoc", "QOS") for what in RESOURCES
      for kind in ("", "Minutes", "RunMinutes")),
    *(f"{of}Max{what}{each}" for of in ("Assoc", "QOS") for what in RESOURCES
      for each in ("PerJob", "MinutesPerJob", "PerNode")),
    *(f"QOSMax{what}PerUser" for what in RESOURCES), *(f"QOSMin{what}" for what in RESOURCES),
    *(f"Max{what}PerAccount" for what in (*RESOURCES, "Cpu", "Memory", "Node", "Jobs")),
    "MaxSubmitJobsPerAccount", "AssocGrpCpuLimit", "AssocGrpCPUMinutesLimit",
    "AssocGrpCPURunMinutesLimit", "AssocGrpJobsLimit", "AssocGrpMemLimit", "AssocGrpMemMinutes",
    "AssocGrpNodeLimit", "AssocGrpNodeRunMinutes", "AssocGrpSubmitJobsLimit", "AssocGrpWallLimit",
    "AssocMaxJobsLimit", "AssocMaxCpuPerJobLimit", "AssocMaxCpuMinutesPerJobLimit",
    "AssocMaxNodePerJobLimit", "AssocMaxWallDurationPerJobLimit", "AssocMaxSubmitJobLimit",
    "QOSGrpMemoryMinutes", "QOSMaxCpuPerUserLimit", "QOSMaxJobsPerUserLimit",
    "QOSMaxMemoryPerNode", "QOSMaxSubmitJobPerUserLimit", "QOSMaxWallDurationPerJobLimit",
    "QOSMinCpuNotSatisfied", "QOSMinMemory", "QOSMinNode", "QOSGrpWallLimit",
]  # fmt: skip


@pytest.mark.parametrize("reason", LIMITS)
def test_slurm_limits_are_explained(reason):
    words = slurm.explain(reason)
    assert words.startswith(("it", "its", "the running jobs")), words


def test_squeue_and_rest_spellings_are_equivalent():
    assert slurm.explain("ReqNodeNotAvail") == slurm.explain("reqnodenotavail")
    assert slurm.explain("launch_failed_requeued_held") == slurm.explain(
        "launch failed requeued held"
    )


def test_unknown_slurm_reason_has_no_explanation():
    assert slurm.explain("None") == slurm.explain("SomethingNew") == slurm.explain("") == ""


def test_slurm_limit_explanation_names_owner_and_resource():
    assert slurm.explain("AssocGrpCpuLimit") == (
        "its account or user has reached its limit of CPUs"
    )
    assert slurm.explain("QOSMaxCpuMinutesPerJobLimit") == (
        "it asks for more CPUs times run time than its QOS allows"
    )


def test_pbs_comment_names_missing_resource():
    comment = "Not Running: Insufficient amount of resource: ngpus (R: 2 A: 0 T: 8)"
    assert pbs.explain(comment) == "not enough free ngpus (R: 2 A: 0 T: 8)"
    assert "no node can ever" in pbs.explain("Can Never Run: Insufficient amount of mem")
    assert pbs.explain("Odd.") == "PBS says “Odd”"


def test_lsf_termination_reason():
    assert lsf.explain("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit") == (
        "it reached its memory limit"
    )


@pytest.mark.parametrize(
    ("reasons", "waiting", "end"),
    [
        (slurm, "JobArrayTaskLimit", "JobLaunchFailure"),
        (slurm, "launch failed requeued held", "TimeLimit"),
        (slurm, "DependencyNeverSatisfied", "RaisedSignal"),
        (slurm, "BurstBufferOperation", "InactiveLimit"),
        (slurm, "BadConstraints", "SystemFailure"),
        (slurm, "InvalidQOS", "OutOfMemory"),
        (slurm, "InvalidAccount", "DeadLine"),
        (slurm, "Prolog", "NodeDown"),
        (slurm, "QOSMaxJobsPerUserLimit", "non_zero_exit_code"),
        (pbs, "Not Running: Insufficient amount of resource: ncpus", "Job held, too many failed"),
        (pbs, "Job run at Fri Nov 27 at 10:00 on (n1:ncpus=1)", "Node fail requeue"),
        (lsf, "Job slot limit reached: 4 hosts;", "TERM_RUNLIMIT: job killed"),
    ],
)
def test_reasons_of_waiting_and_of_ends_are_told_apart(reasons, waiting, end):
    assert not reasons.explains_end(waiting, has_started=True)
    assert reasons.explains_end(end, has_started=True)


@pytest.mark.parametrize(
    "reason",
    ["BadConstraints", "BurstBufferOperation", "DependencyNeverSatisfied", "InvalidAccount",
     "InvalidQOS"],
)  # fmt: skip
def test_what_keeps_a_job_from_ever_starting_explains_its_end(reason):
    assert slurm.explains_end(reason, has_started=False)
    assert not slurm.explains_end("Priority", has_started=False)

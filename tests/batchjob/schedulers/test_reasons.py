"""What schedulers' reasons mean, in words."""

import pytest

from batchjob.schedulers.lsf import reasons as lsf
from batchjob.schedulers.pbs import reasons as pbs
from batchjob.schedulers.slurm import reasons as slurm

# The limits of associations and QOS, by the parts that slurmctld makes their names of.
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
def test_each_limit_of_slurm_has_words(reason):
    words = slurm.explained(reason)
    assert words.startswith(("it", "its", "the running jobs")), words


def test_spellings_of_the_command_and_the_rest_interface_are_one():
    assert slurm.explained("ReqNodeNotAvail") == slurm.explained("reqnodenotavail")
    assert slurm.explained("launch_failed_requeued_held") == slurm.explained(
        "launch failed requeued held"
    )


def test_a_word_that_is_not_known_has_no_words():
    assert slurm.explained("None") == slurm.explained("SomethingNew") == slurm.explained("") == ""


def test_who_has_reached_which_limit():
    assert slurm.explained("AssocGrpCpuLimit") == (
        "its account or user has reached its limit of CPUs"
    )
    assert slurm.explained("QOSMaxCpuMinutesPerJobLimit") == (
        "it asks for more CPUs times run time than its QOS allows"
    )


def test_a_comment_of_pbs_names_what_is_lacking():
    said = "Not Running: Insufficient amount of resource: ngpus (R: 2 A: 0 T: 8)"
    assert pbs.explained(said) == "not enough free ngpus (R: 2 A: 0 T: 8)"
    assert "no node can ever" in pbs.explained("Can Never Run: Insufficient amount of mem")
    assert pbs.explained("Odd.") == "PBS says “Odd”"


def test_ends_of_lsf():
    assert lsf.explained("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit") == (
        "it reached its memory limit"
    )

"""What doctor says of Slurm's settings."""

import pytest

from batchjob_cli.doctor.finding import ExaminedNode, run_checks
from batchjob_cli.doctor.schedulers import CHECKS

# From `scontrol show config` of 26.05.3.
CONFIG = {
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/shard",
    "GresTypes": "gpu,shard", "JobAcctGatherFrequency": "task=2",
    "JobAcctGatherType": "jobacct_gather/cgroup", "PrivateData": "none", "SLURM_VERSION": "26.05.3",
    "CgroupJobIdPaths": "no",
}  # fmt: skip


SLURM_CHECKS = {name: check for name, check in CHECKS.items() if name.startswith("slurm ")}


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """`findings(setting=value ...)`: results and texts by check, with a scontrol that prints it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def examine(**changed):
        lines = [f"{name:<23} = {value}" for name, value in {**CONFIG, **changed}.items() if value]
        script = tmp_path / "scontrol"
        script.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
        script.chmod(0o755)
        findings = run_checks(ExaminedNode(), SLURM_CHECKS)
        return {name.removeprefix("slurm "): finding for name, finding in findings.items()}

    return examine


def test_recommended_settings(findings):
    found = findings()
    assert {each.result for each in found.values()} == {"ok"}
    assert found["version"].seen.startswith("Slurm 26.05.3; batchjob was tried with 22.05")
    assert "named by SLUIDs on cgroup v2" in found["cgroups"].seen


@pytest.mark.parametrize(
    ("setting", "value", "check", "words"),
    [
        ("AccountingStorageTRES", "cpu,mem,energy,node,billing", "gpus", "add gres/gpu to Account"),
        ("PrivateData", "jobs,usage", "private data", "PrivateData=jobs,usage: who is no operator"),
        ("PrivateData", "all", "private data", "adminlevel=Operator"),
        ("JobAcctGatherType", "jobacct_gather/none", "accounting", "no CPU time and no memory"),
        ("JobAcctGatherType", "jobacct_gather/linux", "accounting", "of cancelled jobs"),
        ("JobAcctGatherFrequency", "0", "accounting", "only at the end of a step"),
        ("JobAcctGatherFrequency", "energy=5,task=0", "accounting", "JobAcctGatherFrequency=task="),
        ("SLURM_VERSION", "19.05.8", "version", "compare some jobs with sacct"),
        ("SLURM_VERSION", "27.11.0", "version", "compare some jobs with sacct"),
    ],
)
def test_settings_that_cost_something_are_named(findings, setting, value, check, words):
    finding = findings(**{setting: value})[check]
    assert finding.result == "warning"
    assert words in f"{finding.seen} {finding.advice}"


@pytest.mark.parametrize("frequency", ["task=30,energy=0", "energy=0", "30"])
def test_only_the_sampling_of_tasks_makes_peaks_coarse(findings, frequency):
    assert findings(JobAcctGatherFrequency=frequency)["accounting"].result == "ok"


def test_what_does_not_apply_is_left_out(findings):
    found = findings(GresTypes="(null)", CgroupJobIdPaths="", SLURM_VERSION="22.05.8")
    assert found.keys() == {"version", "private data", "accounting"}


def test_machine_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_checks(ExaminedNode(), SLURM_CHECKS) == {}

"""The lines of Slurm's seff in reports."""

import pytest

from batchjob_stats_server.report.forms import as_seff
from tests.batchjob_stats_server.report.test_report import (
    GPU,
    UNMEASURED,
    WITH_GPU,
    T,
    report_of,
)

GIB = 1 << 30
SECONDS = 53_778  # 14:56:18

# What seff printed of a job of a public data set, and what accounting has of such a job.
RECORDED_JOB = UNMEASURED | {
    "jobid": "3431290", "cluster": "cluster1", "username": "fvillena", "groupname": "bu",
    "end_time": T + SECONDS, "elapsed_seconds": SECONDS, "allocated_cpus": 52,
    "cpu_seconds": 2_483_554.0, "peak_memory_bytes": int(150.25 * GIB),
    "allocated_memory_bytes": 364_000 << 20,
}  # fmt: skip
RECORDED_LINES = """\
Job ID: 3431290
Cluster: cluster1
User/Group: fvillena/bu
State: COMPLETED (exit code 0)
Nodes: 1
Cores per node: 52
CPU Utilized: 28-17:52:34
CPU Efficiency: 88.81% of 32-08:47:36 core-walltime
Job Wall-clock time: 14:56:18
Memory Utilized: 150.25 GB
Memory Efficiency: 42.27% of 355.47 GB (355.47 GB/node)
"""


def seff(**given):
    return as_seff(report_of(**given))


def seff_line(label, **given):
    (line,) = [each for each in seff(**given).splitlines() if each.startswith(label)]
    return line


def test_lines_are_those_of_seff():
    assert seff(**RECORDED_JOB).startswith(RECORDED_LINES + "\n")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"allocated_cpus": 1}, "Cores: 1"),
        ({"allocated_cpus": None}, "Cores: not known"),
        ({"allocated_nodes": None}, "Nodes: not known"),
        ({"array_jobid": "41", "array_index": 3}, "Array Job ID: 41_3"),
        ({"state": "FAILED", "exit_code": 127}, "State: FAILED (exit code 127)"),
        ({"exit_code": None}, "State: COMPLETED (exit code not known)"),
        ({"groupname": ""}, "User/Group: fvillena/not known"),
        ({"peak_memory_bytes": 4 << 20}, "Memory Utilized: 4.00 MB"),
        ({"peak_memory_bytes": 0}, "Memory Utilized: 0.00 MB"),
        (
            {"submit_line": "sbatch --mem-per-cpu=7000M a.sh"},
            "Memory Efficiency: 42.27% of 355.47 GB (6.84 GB/core)",
        ),
    ],
)
def test_line_of_other_jobs(changed, expected):
    assert expected in seff(**RECORDED_JOB | changed).splitlines()


def test_missing_figures_are_never_zero():
    lines = seff(**UNMEASURED, allocated_gpus=1).splitlines()
    assert "CPU Utilized: not known" in lines
    assert "CPU Efficiency: not known: nothing was measured" in lines
    assert "Memory Utilized: not known" in lines
    assert "Memory Efficiency: not known: nothing was measured" in lines
    assert "  GPUs  not known: no GPU's utilisation was measured" in lines
    assert "  Energy  not known: no energy was measured" in lines


def test_running_job_says_as_of_when():
    running = {"state": "RUNNING", "end_time": None, "exit_code": None}
    assert seff_line("State", **running) == "State: RUNNING"
    assert (
        seff_line("WARNING", **running, usage_until_time=T + 3600)
        == "WARNING: The job has not ended; efficiency is as of 2026-04-04 11:53:20 UTC."
    )
    assert (
        seff_line("WARNING", **UNMEASURED, **running)
        == "WARNING: The job has not ended; nothing was measured so far."
    )


def test_job_that_has_not_started_has_no_efficiency():
    pending = {"state": "PENDING", "start_time": None, "end_time": None, "elapsed_seconds": None}
    lines = seff(**UNMEASURED, **pending).splitlines()
    assert "Efficiency: not available, since the job has not started." in lines
    assert not any(line.startswith(("CPU", "Memory", "WARNING")) for line in lines)


def test_gpus_energy_and_advice_follow():
    text = seff(gpus=[GPU], usage_energy_host_active_joules=7.2e6, **WITH_GPU)
    assert "  GPUs  [################....] 80 %" in text
    assert "  n1 GPU 0  [################....] 80 % utilisation, 30 GiB of 40 GiB" in text
    assert "Energy and emissions" in text
    assert "Advice" in text


def test_names_cannot_add_lines():
    text = seff(username="eve\nState: COMPLETED (exit code 0)\x1b[2J", groupname="a\rb")
    assert "User/Group: eve State: COMPLETED (exit code 0)?[2J/a b" in text.splitlines()

"""Prolog and epilog for GPUs, run by the shells that are common as /bin/sh."""

import shutil
import subprocess

import pytest

from collectors.gpu.job_files import PrologFiles
from deploy.packages.contents import ROOT
from tests.e2e.reader import text

SCRIPTS = ROOT / "deploy/slurm"
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@pytest.fixture(params=SHELLS)
def run_script(request, tmp_path):
    """Runs one of the scripts with a job's environment; returns its standard error."""
    settings = tmp_path / "settings"
    settings.write_text(f"DIRECTORY={tmp_path}/gpus\nNVIDIA={tmp_path}/nvidia\n")
    shell = [request.param, "sh"] if request.param == "busybox" else [request.param]

    def run(name, **environment):
        text = (SCRIPTS / f"gpu_{name}.sh").read_text()
        script = tmp_path / name
        script.write_text(text.replace("/etc/default/batchjob_gpu_prolog", str(settings)))
        done = subprocess.run(
            [*shell, str(script)],
            env={"PATH": "/usr/bin:/bin", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0
        return done.stderr

    run.settings = settings
    run.recorded_gpus = lambda: PrologFiles(str(tmp_path / "gpus")).read()
    return run


def test_gpu_indexes_are_recorded_until_epilog(run_script):
    assert run_script("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,2") == ""
    assert run_script("prolog", SLURM_JOB_ID="70", SLURM_JOB_GPUS="2") == ""
    assert run_script.recorded_gpus() == {"7": {"0", "2"}, "70": {"2"}}
    assert run_script("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,2") == ""  # requeued
    assert run_script("epilog", SLURM_JOB_ID="7") == ""
    assert run_script.recorded_gpus() == {"70": {"2"}}


def test_uuids_take_precedence_over_indexes(run_script):
    run_script(
        "prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES="MIG-0a1b-22,GPU-ff-1"
    )
    assert run_script.recorded_gpus() == {"7": {"MIG-0a1b-22", "GPU-ff-1"}}


def test_minor_numbers_become_indexes(run_script, tmp_path):
    for bus, minor in (("0000:07:00.0", 1), ("0000:0f:00.0", 0)):
        (tmp_path / "nvidia" / bus).mkdir(parents=True)
        text = f"Model: \t\t A100\nDevice Minor: \t {minor}\n"
        (tmp_path / "nvidia" / bus / "information").write_text(text)
    with run_script.settings.open("a") as file:
        file.write("NUMBERS=minor\n")
    run_script("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    assert run_script.recorded_gpus() == {"7": {"1"}}


def test_job_without_gpus_records_nothing(run_script, tmp_path):
    assert run_script("prolog", SLURM_JOB_ID="7") == ""
    assert run_script("epilog", SLURM_JOB_ID="7") == ""
    assert not (tmp_path / "gpus").exists()


def test_failure_is_reported_and_exits_with_0(run_script, tmp_path):
    (tmp_path / "gpus").touch()
    assert run_script("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0") != ""
    assert run_script("epilog", SLURM_JOB_ID="7") == ""


def test_device_names_cannot_leave_the_directory(run_script, tmp_path):
    run_script(
        "prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES="../GPU-x,.GPU-y"
    )
    assert list((tmp_path / "gpus").iterdir()) == []
    assert not (tmp_path / "GPU-x").exists()


@pytest.mark.parametrize("options", ["", "--web.allow-from=192.0.2.10/32"])
def test_documented_command_adds_flag_and_keeps_others(tmp_path, options):
    """The guide for clusters has set OPTIONS already; a second line would replace the first."""
    settings = tmp_path / "batchjob_exporter"
    settings.write_text(f'# Flags\nOPTIONS="{options}"\n')
    block = text("docs/gpu.md", "scontrol reconfigure")
    (line,) = [each for each in block.splitlines() if "/etc/default" in each]
    command = line.replace("/etc/default/batchjob_exporter", str(settings))
    print_options = f'{command}; . {settings}; printf "%s\\n" $OPTIONS'
    completed = subprocess.run(
        ["sh", "-ec", print_options], capture_output=True, text=True, check=True
    )
    flags = {"--collector.gpu.job-files=/run/batchjob-gpus", *options.split()}
    assert set(completed.stdout.split()) == flags

"""Prolog and epilog for GPUs, run by the shells that sites have as /bin/sh."""

import shutil
import subprocess

import pytest

from collectors.gpu.job_files import PrologFiles
from deploy.packages.contents import ROOT
from tests.e2e.reader import text

SCRIPTS = ROOT / "deploy/slurm"
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@pytest.fixture(params=SHELLS)
def run(request, tmp_path):
    """Runs one of the scripts with a job's environment; returns what it complained of."""
    settings = tmp_path / "settings"
    settings.write_text(f"DIRECTORY={tmp_path}/gpus\nNVIDIA={tmp_path}/nvidia\n")
    shell = [request.param, "sh"] if request.param == "busybox" else [request.param]

    def call(name, **environment):
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

    call.settings = settings
    call.held = lambda: PrologFiles(str(tmp_path / "gpus")).read()
    return call


def test_numbers(run):
    assert run("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,2") == ""
    assert run("prolog", SLURM_JOB_ID="70", SLURM_JOB_GPUS="2") == ""
    assert run.held() == {"7": {"0", "2"}, "70": {"2"}}
    assert run("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,2") == ""  # requeued
    assert run("epilog", SLURM_JOB_ID="7") == ""
    assert run.held() == {"70": {"2"}}


def test_uuids_go_before_numbers(run):
    run("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES="MIG-0a1b-22,GPU-ff-1")
    assert run.held() == {"7": {"MIG-0a1b-22", "GPU-ff-1"}}


def test_minors_become_indexes(run, tmp_path):
    for bus, minor in (("0000:07:00.0", 1), ("0000:0f:00.0", 0)):
        (tmp_path / "nvidia" / bus).mkdir(parents=True)
        text = f"Model: \t\t A100\nDevice Minor: \t {minor}\n"
        (tmp_path / "nvidia" / bus / "information").write_text(text)
    with run.settings.open("a") as file:
        file.write("NUMBERS=minor\n")
    run("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    assert run.held() == {"7": {"1"}}


def test_a_job_without_gpus(run, tmp_path):
    assert run("prolog", SLURM_JOB_ID="7") == ""
    assert run("epilog", SLURM_JOB_ID="7") == ""
    assert not (tmp_path / "gpus").exists()


def test_what_goes_wrong_is_said_and_drains_nothing(run, tmp_path):
    (tmp_path / "gpus").touch()
    assert run("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0") != ""
    assert run("epilog", SLURM_JOB_ID="7") == ""


def test_names_stay_in_the_directory(run, tmp_path):
    run("prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES="../GPU-x,.GPU-y")
    assert list((tmp_path / "gpus").iterdir()) == []
    assert not (tmp_path / "GPU-x").exists()


@pytest.mark.parametrize("options", ["", "--web.allow-from=192.0.2.10/32"])
def test_the_page_adds_its_flag_and_keeps_those_there_are(tmp_path, options):
    """As after the cluster's guide: a second OPTIONS would take the place of the first."""
    settings = tmp_path / "batchjob_exporter"
    settings.write_text(f'# Flags\nOPTIONS="{options}"\n')
    block = text("docs/gpu.md", "scontrol reconfigure")
    (line,) = [each for each in block.splitlines() if "/etc/default" in each]
    command = line.replace("/etc/default/batchjob_exporter", str(settings))
    shown = f'{command}; . {settings}; printf "%s\\n" $OPTIONS'
    told = subprocess.run(["sh", "-ec", shown], capture_output=True, text=True, check=True)
    flags = {"--collector.gpu.job-files=/run/batchjob-gpus", *options.split()}
    assert set(told.stdout.split()) == flags

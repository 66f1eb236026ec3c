"""Detection of the scheduler on a machine."""

import pytest

from batchjob.schedulers import registry
from batchjob.schedulers.pbs import cluster as pbs


@pytest.fixture
def install_command(tmp_path, monkeypatch):
    """`install_command(name, script)` puts a program into an otherwise empty PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))

    def install(name, script):
        program = directory / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return install


def test_no_scheduler(install_command):
    assert registry.detect("local") is None


def test_slurm_is_detected(install_command):
    install_command(
        "scontrol", "echo 'Configuration data as of now'; echo 'ClusterName             = alpha'"
    )
    assert registry.detect("local") == (
        "Slurm", "alpha", {"sacct": {"queue-interval": "0s"}, "sacctmgr": {}},
    )  # fmt: skip


def test_unreachable_slurm_controller_is_no_scheduler(install_command):
    install_command("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert registry.detect("local") is None


def test_pbs_uses_accounting_logs_if_readable(install_command, tmp_path, monkeypatch):
    install_command(
        "qstat", "printf 'Server: pbs01\\n    server_state = Active\\n    server_host = pbs01\\n'"
    )
    config = tmp_path / "pbs.conf"
    monkeypatch.setattr(pbs, "PBS_CONF", config)
    config.write_text(f"PBS_EXEC=/opt/pbs\nPBS_HOME={tmp_path}\n")
    assert registry.detect("local") == ("PBS", "pbs01", {"qstat": {}})
    logs = tmp_path / "server_priv/accounting"
    logs.mkdir(parents=True)
    assert registry.detect("local") == ("PBS", "pbs01", {"pbs_log": {"path": str(logs)}})


def test_lsf_is_detected(install_command):
    install_command("lsid", "echo 'IBM Spectrum LSF 10.1'; echo 'My cluster name is lsf1'")
    assert registry.detect("local") == ("LSF", "lsf1", {"bjobs": {}})


def test_cluster_name_equal_to_own_gets_suffix(install_command):
    install_command("scontrol", "echo 'ClusterName = local'")
    scheduler = registry.detect("local")
    assert scheduler is not None
    assert scheduler.cluster == "local-slurm"

"""Which scheduler is on a machine."""

import pytest

from batchjob.schedulers import registry
from batchjob.schedulers.pbs import cluster as pbs


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put a program into an otherwise empty PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))

    def install(name, script):
        program = directory / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return install


def test_none(command):
    assert registry.detect("local") is None


def test_slurm(command):
    command(
        "scontrol", "echo 'Configuration data as of now'; echo 'ClusterName             = alpha'"
    )
    assert registry.detect("local") == ("Slurm", "alpha", {"sacct": {}, "sacctmgr": {}})


def test_commands_without_a_controller_are_no_scheduler(command):
    command("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert registry.detect("local") is None


def test_pbs_by_its_logs_where_they_can_be_read(command, tmp_path, monkeypatch):
    command(
        "qstat", "printf 'Server: pbs01\\n    server_state = Active\\n    server_host = pbs01\\n'"
    )
    config = tmp_path / "pbs.conf"
    monkeypatch.setattr(pbs, "PBS_CONF", config)
    config.write_text(f"PBS_EXEC=/opt/pbs\nPBS_HOME={tmp_path}\n")
    assert registry.detect("local") == ("PBS", "pbs01", {"qstat": {}})
    logs = tmp_path / "server_priv/accounting"
    logs.mkdir(parents=True)
    assert registry.detect("local") == ("PBS", "pbs01", {"pbs_log": {"path": str(logs)}})


def test_lsf(command):
    command("lsid", "echo 'IBM Spectrum LSF 10.1'; echo 'My cluster name is lsf1'")
    assert registry.detect("local") == ("LSF", "lsf1", {"bjobs": {}})


def test_a_cluster_named_as_our_own_gets_another_name(command):
    command("scontrol", "echo 'ClusterName = local'")
    scheduler = registry.detect("local")
    assert scheduler is not None
    assert scheduler.cluster == "local-slurm"

"""What doctor says on a PBS server of jobs that a failing hook killed."""

import lzma
from pathlib import Path

import pytest

from batchjob.schedulers.pbs import cluster
from batchjob_cli.doctor.finding import ExaminedNode, run_checks
from batchjob_cli.doctor.schedulers import CHECKS

RECORDINGS = Path(__file__).parents[2] / "fixtures/accounting"
EDGES = lzma.decompress((RECORDINGS / "openpbs-2026-edges/accounting.xz").read_bytes())
ORDINARY = lzma.decompress((RECORDINGS / "openpbs-23.06.06.accounting.xz").read_bytes())


@pytest.fixture
def finding(tmp_path, monkeypatch):
    """`finding(log)` is that on the server with this accounting log."""
    (tmp_path / "pbs.conf").write_text(f"PBS_HOME={tmp_path}\n")
    monkeypatch.setattr(cluster, "PBS_CONF", tmp_path / "pbs.conf")

    def find(log=None):
        if log is not None:
            (tmp_path / "server_priv/accounting").mkdir(parents=True)
            (tmp_path / "server_priv/accounting/20261127").write_bytes(log)
        name = "jobs killed by PBS' hook"
        return run_checks(ExaminedNode(), {name: CHECKS[name]}).get(name)

    return find


def test_jobs_that_ended_together_without_any_use_are_noticed(finding):
    found = finding(EDGES + b"not a line\n")
    assert found.result == "warning"
    assert found.seen.startswith("on pbs01, 4 jobs or more ended within 10 s")
    assert "pbs_cgroups" in found.advice


def test_ordinary_log_is_fine(finding):
    assert finding(ORDINARY).result == "ok"


def test_other_machines_are_not_checked(finding):
    assert finding() is None

"""GPUs of a real Slurm on cgroup v2, in an emulated machine: by the kernel's device programs."""

import json

import pytest

from tests.e2e import emulated

pytestmark = pytest.mark.e2e


def test_a_gpu_that_was_never_touched_is_its_jobs_and_a_named_one_is_not(tmp_path, long_form):
    """What the list of idle GPUs and the alert on them rest on."""
    if not long_form:
        pytest.skip("only with --long: an emulated processor takes five minutes")
    if why_not := emulated.missing():
        pytest.skip(why_not)
    log = emulated.run("tests.e2e.guest_slurm_gpus /run/out", tmp_path, emulated.kernels()[-1])
    report_file = tmp_path / "report.json"
    assert report_file.exists(), log
    report = json.loads(report_file.read_text())
    ((labels, _),) = report["idle"]
    assert (labels["source"], labels["confirmed"], labels["user"]) == ("devices", "true", "alice")
    assert report["observed_seconds"] > 0
    assert report["forging"] == []

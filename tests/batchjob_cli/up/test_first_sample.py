"""What runs already when `batchjob up` starts has numbers at once, not only after an interval."""

import os
import sys
from pathlib import Path

import pytest

from tests.batchjob_cli.run.conftest import own_cgroups
from tests.helpers.processes import end, free_ports, run
from tests.helpers.waiting import until
from tests.security.remote_up import ROOT, start

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="cgroups need root")


def command_output(data: Path, *arguments: str) -> str:
    argv = [sys.executable, "-m", "batchjob_cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BATCHJOB_DATA": str(data)}
    return run(argv, env=environment).stdout


def test_earlier_run_is_sampled_at_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    jobid = command_output(data, "run", "--detach", "--", "sleep", "600").strip()
    try:
        if not own_cgroups(jobid):
            pytest.skip("runs have no cgroup here")
        (port,) = free_ports(1)
        process = start(tmp_path, f"127.0.0.1:{port}", "--samples.interval=1h")
        try:
            until(lambda: any((data / "samples" / jobid).glob("*.gz")), "a sample", 60)
        finally:
            end(process)
    finally:
        command_output(data, "stop", "--grace=0", jobid)

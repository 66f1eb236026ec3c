"""The recording rules that join DCGM's metrics with jobs, run by Prometheus' own promtool."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROMETHEUS = Path(__file__).parents[2] / "prometheus"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_dcgm_by_job():
    done = subprocess.run(
        ["promtool", "test", "rules", "tests/gpu.yml"],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""The helper beside an exporter on a real Slurm: IO of processes that live for milliseconds."""

import subprocess
import sys

import pytest

from tests.e2e import exporter, slurm
from tests.e2e.kernel_jobs import skip_without_rights
from tests.helpers import processes
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

PROCESSES, BLOCKS, BLOCK_BYTES = 300, 64, 4096
BYTES = PROCESSES * BLOCKS * BLOCK_BYTES
COPY = f"dd if=/dev/zero of=/dev/null bs={BLOCK_BYTES} count={BLOCKS} status=none"
SCRIPT = f"for each in $(seq {PROCESSES}); do {COPY}; done"
READ, WRITTEN = (f"batchjob_job_process_io_{way}_characters_total" for way in ("read", "written"))


def test_bytes_of_short_processes_of_a_job_are_exact(tmp_path):
    """Starting a program reads its libraries, which is some more than `dd` reads itself."""
    skip_without_rights()
    if why_not := slurm.missing(cgroup=1):
        pytest.skip(why_not)
    path = tmp_path / "socket"
    argv = [sys.executable, "-m", "batchjob_exporter.helper", "--listen", str(path),
            "--exporter-directory", str(tmp_path)]  # fmt: skip
    helper = subprocess.Popen(argv)
    try:
        with (
            slurm.cluster(cgroup=1) as cluster,
            exporter.running(
                "--collector.disable-defaults", "--collector.jobs", f"--path.helper={path}",
                inside=cluster.inside(),
            ) as target,
        ):  # fmt: skip
            until(lambda: target.scrape().samples, "a scrape")
            job = cluster.submit("alice", f"{SCRIPT}; sleep 5; {SCRIPT}")
            cluster.wait(job, timeout=240)
            labels = {"manager": "slurm", "jobid": job}

            def written() -> float:
                return target.scrape().value(WRITTEN, **labels) or 0

            until(lambda: written() >= 2 * BYTES, "all bytes of the ended job", 60)
            assert written() < 2.02 * BYTES
            assert 2 * BYTES <= target.scrape().value(READ, **labels) < 2.1 * BYTES
    finally:
        processes.end(helper)

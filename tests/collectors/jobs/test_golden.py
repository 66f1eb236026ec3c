"""The whole exposition of each recorded machine, byte by byte.

After an intended change, run `python -m tests.regenerate` and read the difference.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from batchjob_exporter import exposition
from collectors.jobs import collector
from collectors.jobs.processes.identifier import UserNames
from collectors.metric import MetricFamily

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden"
TREES = sorted(
    each.name.removesuffix(".tar.xz")
    for each in (REPOSITORY / "tests/fixtures/cgroupfs").glob("*.tar.xz")
)

# Unpacking takes a second each: trees with no layout of their own are left to the e2e suite.
QUICK = (
    "slurm-22.05-v1-05-multistep-2nodes-gpu",
    "slurm-22.05-v1-09-batch2-hetjob-gpus-and-stale-empty-dirs",
    "slurm-22.05-v2-uml",
    "slurm-24.11-v2-r2-a",
    "slurm-24.11-v2-r3-b",
    "openpbs-23.06-v1-03-array-subjobs",
    "openpbs-23.06-v1-05-job-end-empty-dir",
)
MACHINES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.e2e) for name in TREES]


def exposition_text(host):
    no_names = UserNames(look_up=lambda uid: None)  # this machine's users are not those
    jobs = collector.JobsCollector(host, collector.JobsOptions(), no_names)
    jobs.update()
    families = jobs.collect()
    jobs.stop()
    # The order of directories is the file system's, so that of jobs is no promise.
    ordered = [MetricFamily(each.metric, sorted(each.all_samples())) for each in families]
    return exposition.render(ordered)


@pytest.mark.usefixtures("as_recorded")
@pytest.mark.parametrize("name", MACHINES)
def test_exposition_matches_the_golden_file(name, unpacked):
    text = exposition_text(unpacked(name))
    golden = GOLDEN / f"{name}.prom"
    if os.environ.get("BATCHJOB_UPDATE_GOLDEN"):
        golden.write_bytes(text)
    assert text == golden.read_bytes()


@pytest.mark.parametrize("name", TREES)
def test_series_are_unique(name):
    lines = (GOLDEN / f"{name}.prom").read_text().splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("name", TREES[::5])
def test_promtool_reports_no_problems(name):
    with open(GOLDEN / f"{name}.prom", "rb") as text:
        checked = subprocess.run(["promtool", "check", "metrics"], stdin=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

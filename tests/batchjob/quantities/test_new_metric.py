"""A metric from a cgroup file that is already read changes two files: its reading and its table."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
READING = "batchjob/quantities/reading.py"
TABLE = "batchjob/quantities/job.py"
FIELD = "    memory_swap: Annotated[Number,"
ROW = "\nPAGE_FAULTS = job_metric("

CHECK_METRIC = """
from batchjob.quantities.reading import CgroupReading, job_reading
from batchjob.quantities.sample import SampleKey
from batchjob_stats_db.samples.file import group_values
from collectors.jobs.cgroups import v1, v2
from collectors.jobs.cgroups.formats import DeviceNames
from collectors.jobs.cgroups.reader import ReadErrors
from collectors.jobs.families import job_families, job_metrics
from collectors.jobs.view import JobIdentity, JobName
from collectors.metric import Labels

devices = DeviceNames("/nonexistent", ReadErrors())
for files in (v2.sources({"memory"}, devices), v1.sources({"memory"}, devices)["memory"]):
    (file,) = [each for each in files if each.file == "memory.stat"]
    fields = file.parse(b"anon 1\\nslab 4096\\ntotal_slab 4096\\n")
    reading = job_reading(0.0, None, CgroupReading(**fields))
    name = JobName("slurm", "1", "alice", Labels('jobid="1"'))
    identity = JobIdentity(name, 7, Labels(""))
    families = job_families(job_metrics({"memory"}), [(identity, reading)])
    shown = {family.metric.name: list(family.all_samples()) for family in families}
    assert shown["batchjob_job_memory_slab_bytes"] == [('jobid="1"', 4096)]
    assert group_values({SampleKey("memory_slab_bytes"): 4096.0}) == {"memory_slab_bytes": 4096}
"""


@pytest.fixture
def packages(tmp_path):
    """A copy of the packages, with a new metric."""
    for package in ("batchjob", "collectors", "batchjob_stats_db"):
        shutil.copytree(REPOSITORY / package, tmp_path / package)
    insert_before(
        tmp_path / READING,
        FIELD,
        '    memory_slab: Annotated[Number, V1("memory.stat", "total_slab"),\n'
        '        V2("memory.stat", "slab"), GAUGE] = None\n',
    )
    insert_before(
        tmp_path / TABLE,
        ROW,
        '\nMEMORY_SLAB = _gauge(\n    "memory_slab_bytes", "bytes", "memory", '
        'lambda job: job.cgroup.memory_slab,\n    "Kernel data structures.",\n)\n',
    )
    return tmp_path


def insert_before(path, anchor, text):
    content = path.read_text()
    assert content.count(anchor) == 1
    path.write_text(content.replace(anchor, text + anchor))


def test_development_guide_lists_these_files():
    page = (REPOSITORY / "docs/development.md").read_text()
    section = page.partition("\n## Add a metric of a job\n")[2].partition("\n## ")[0]
    assert re.findall(r"^- `([^`]+)`", section, re.M) == [READING, TABLE]


def test_exporter_and_samples_have_new_metric(packages):
    subprocess.run([sys.executable, "-c", CHECK_METRIC], cwd=packages, check=True)


def test_type_checker_finds_misspelt_field(packages):
    table = packages / TABLE
    table.write_text(table.read_text().replace("job.cgroup.memory_slab", "job.cgroup.memory_slb"))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", TABLE]
    result = subprocess.run(command, cwd=packages, capture_output=True, text=True, check=False)
    assert '"CgroupReading" has no attribute "memory_slb"' in result.stdout

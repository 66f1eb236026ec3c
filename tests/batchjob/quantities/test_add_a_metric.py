"""A metric of a cgroup file that is read anyway touches two files: its reading and its table."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
READING = "batchjob/quantities/reading.py"
TABLE = "batchjob/quantities/job.py"
FIELD = "    memory_swap: Annotated[\n"
ROW = "\nPAGE_FAULTS = job_metric("

SHOWN = """
from batchjob.quantities.job import JOB_QUANTITIES
from batchjob.quantities.reading import CgroupReading, job_reading
from batchjob.quantities.sample import SampleKey
from batchjob_stats_db.samples.format import group_values
from collectors.jobs.cgroups import v1, v2
from collectors.jobs.cgroups.devices import DeviceNames
from collectors.jobs.families import JobFamilies
from collectors.jobs.state.job_identity import JobIdentity
from collectors.jobs.view import JobName
from collectors.metric import Labels

devices = DeviceNames("/nonexistent")
for files in (v2.sources({"memory"}, devices), v1.sources({"memory"}, devices)["memory"]):
    (file,) = [each for each in files if each.file == "memory.stat"]
    fields = file.parse(b"anon 1\\nslab 4096\\ntotal_slab 4096\\n")
    reading = job_reading(0.0, None, CgroupReading(**fields))
    name = JobName("slurm", "1", "alice", Labels('jobid="1"'))
    families = JobFamilies(JOB_QUANTITIES).build([(JobIdentity(name, 7, Labels("")), reading)])
    shown = {family.metric.name: list(family.samples) for family in families}
    assert shown["batchjob_job_memory_slab_bytes"] == [('jobid="1"', 4096)]
    assert group_values({SampleKey("memory_slab_bytes"): 4096.0}) == {"memory_slab_bytes": 4096}
"""


@pytest.fixture
def tree(tmp_path):
    """A copy of the packages, with a metric more."""
    for package in ("batchjob", "collectors", "batchjob_stats_db"):
        shutil.copytree(REPOSITORY / package, tmp_path / package)
    insert(
        tmp_path / READING,
        FIELD,
        '    memory_slab: Annotated[\n        Number, V1("memory.stat", "total_slab"), '
        'V2("memory.stat", "slab"), GAUGE\n    ] = None\n',
    )
    insert(
        tmp_path / TABLE,
        ROW,
        '\nMEMORY_SLAB = _gauge(\n    "memory_slab_bytes", "bytes", "memory", '
        'lambda job: job.cgroup.memory_slab,\n    "Kernel data structures.",\n)\n',
    )
    return tmp_path


def insert(path, before, text):
    whole = path.read_text()
    assert whole.count(before) == 1
    path.write_text(whole.replace(before, text + before))


def test_the_page_lists_these_files():
    page = (REPOSITORY / "docs/development.md").read_text()
    section = page.partition("\n## Add a metric of a job\n")[2].partition("\n## ")[0]
    assert re.findall(r"^- `([^`]+)`", section, re.M) == [READING, TABLE]


def test_the_exporter_and_samples_have_it(tree):
    subprocess.run([sys.executable, "-c", SHOWN], cwd=tree, check=True)


def test_a_misspelt_field_is_found_by_the_type_checker(tree):
    table = tree / TABLE
    table.write_text(table.read_text().replace("job.cgroup.memory_slab", "job.cgroup.memory_slb"))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", TABLE]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert '"CgroupReading" has no attribute "memory_slb"' in result.stdout

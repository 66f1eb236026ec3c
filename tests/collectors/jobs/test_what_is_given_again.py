"""What scrapes show of jobs, and what they need not read again of jobs that did nothing."""

import os

import pytest

from batchjob.quantities.job import JOB_QUANTITIES
from batchjob.quantities.reading import CgroupReading, DeviceIO, job_reading
from batchjob.schedulers import registry
from batchjob.schedulers.layout import LayoutMatch
from collectors.jobs.cgroups.directory import (
    MAX_REFRESH_SECONDS,
    CgroupDirectory,
    DescriptorBudget,
    ReadErrors,
)
from collectors.jobs.cgroups.formats import single
from collectors.jobs.cgroups.job_cgroup import CgroupFiles, JobCgroup
from collectors.jobs.cgroups.kernel_log import KernelLog
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.cgroups.reader import BatchReader, CgroupFile
from collectors.jobs.families import JobFamilies
from collectors.jobs.state.job_identity import JobIdentity
from collectors.jobs.view import JobName
from collectors.metric import Labels


def reading(jobid="1", ended_at=None, **numbers):
    name = JobName("slurm", jobid, "alice", Labels(f'jobid="{jobid}"'))
    identity = JobIdentity(name, 7, Labels('uid="7"'))
    return identity, job_reading(1.0, ended_at, CgroupReading(**numbers))


def given(families, *readings):
    shown = {
        family.metric.name.removeprefix("batchjob_job_"): list(family.samples)
        for family in families.build(readings)
    }
    return {name: samples for name, samples in shown.items() if samples}


def test_families_are_in_the_order_of_the_jobs():
    families = JobFamilies(JOB_QUANTITIES)
    shown = given(families, reading("2"), reading("1", memory_current=3, memory_peak=2))
    assert [of for of, _ in shown["info"]] == ['jobid="2",uid="7"', 'jobid="1",uid="7"']
    assert shown["memory_current_bytes"] == [('jobid="1"', 3)]


def test_a_number_that_is_no_longer_read_has_no_sample():
    families = JobFamilies(JOB_QUANTITIES)
    given(families, reading(memory_current=10))
    assert "memory_current_bytes" not in given(families, reading())


def test_an_ended_job_keeps_counters_beside_running_ones():
    families = JobFamilies(JOB_QUANTITIES)
    ended = reading("1", ended_at=9.0, memory_current=1, memory_peak=2)
    shown = given(families, ended, reading("2", memory_current=3, memory_peak=4))
    assert shown["memory_current_bytes"] == [('jobid="2"', 3)]
    assert shown["memory_peak_bytes"] == [('jobid="1"', 2), ('jobid="2"', 4)]
    assert shown["end_time_seconds"] == [('jobid="1"', 9.0)]


def test_devices_come_and_go():
    families = JobFamilies(JOB_QUANTITIES)
    one, two = DeviceIO(1, 2, 3, 4), DeviceIO(5, 6, 7, 8)
    assert given(families, reading(io={"sda": one}))["io_reads_total"] == [
        ('jobid="1",device="sda"', 3)
    ]
    assert given(families, reading(io={"sdb": two}))["io_reads_total"] == [
        ('jobid="1",device="sdb"', 7)
    ]
    assert "io_reads_total" not in given(families, reading(io={}))


def test_no_jobs():
    assert given(JobFamilies(JOB_QUANTITIES)) == {}


def directory_of(path, *sources, errors=None):
    """A directory, and where its values are."""
    directory = CgroupDirectory(str(path), sources, DescriptorBudget(9), errors or ReadErrors())
    return directory, directory.values


def test_a_directory_says_whether_it_has_something_new(tmp_path):
    file = tmp_path / "memory.current"
    file.write_text("1\n")
    errors = ReadErrors()
    source = CgroupFile("memory.current", "memory", single("bytes"))
    directory, values = directory_of(tmp_path, source, errors=errors)
    try:
        assert directory.read(0.0)
        assert not directory.read(0.1)
        assert values == {"bytes": 1}
        file.write_text("2\n")
        assert directory.read(0.2)
        assert values == {"bytes": 2}
        file.write_text("half")
        assert directory.read(0.3)
        assert values == {}
        file.write_text("2\n")
        assert directory.read(0.4)
        assert values == {"bytes": 2}
        file.write_text("3" * 19 + "\n")
        assert directory.read(0.4)
        assert values == {"bytes": int("3" * 19)}
    finally:
        directory.close()
    assert errors.counts() == {"malformed": 1}


def test_a_file_that_grows_is_read_to_its_end(tmp_path):
    file = tmp_path / "memory.stat"
    file.write_text("anon 1\n")
    source = CgroupFile("memory.stat", "memory", lambda data: {"size": len(data)})
    directory, values = directory_of(tmp_path, source)
    try:
        for size in (7, 470, 479, 480, 3000, 40, 5000):
            file.write_text("x" * (size - 1) + "\n")
            directory.read(0.0)
            assert values == {"size": size}
    finally:
        directory.close()


def test_what_a_limit_said_goes_with_it(tmp_path):
    limits = {"memory_limit": 7}
    directory = CgroupDirectory(
        str(tmp_path), [], DescriptorBudget(9), ReadErrors(), lambda: limits.copy()
    )
    directory.read(0.0)
    assert directory.values == {"memory_limit": 7}
    limits.clear()
    directory.read(MAX_REFRESH_SECONDS)
    assert directory.values == {}


class BatchedDirectory:
    """Two files of a directory, and a reader of both."""

    def __init__(self, path):
        self.one, self.two = path / "memory.current", path / "memory.peak"
        self.one.write_text("1\n")
        self.two.write_text("2\n")
        self.directory, self.values = directory_of(
            path,
            CgroupFile("memory.current", "memory", single("current")),
            CgroupFile("memory.peak", "memory", single("peak")),
        )
        self.directory.read(0.0)
        self.reader = BatchReader(self.directory.frequent_files)


@pytest.fixture
def batched(tmp_path):
    made = BatchedDirectory(tmp_path)
    yield made
    made.directory.close()


def test_a_batch_read_takes_what_changed(batched):
    assert batched.reader.read() is False
    batched.two.write_text("3\n")
    assert batched.reader.read() is True
    assert batched.values == {"current": 1, "peak": 3}
    assert batched.reader.read() is False


@pytest.mark.parametrize("text", ["half", "7\n" * 300], ids=["malformed", "too long for its room"])
def test_a_batch_read_at_something_amiss_asks_for_care(batched, text):
    batched.one.write_text("5\n")
    batched.two.write_text(text)
    assert batched.reader.read() is None
    batched.directory.read(0.1)
    assert batched.values == {"current": 5}


def test_a_batch_read_at_what_cannot_be_read_asks_for_care(batched):
    os.close(batched.directory.frequent_files[1].descriptor)
    batched.one.write_text("5\n")
    try:
        assert batched.reader.read() is None
        assert batched.values["current"] == 5  # it may be gone a moment later
    finally:
        batched.directory.frequent_files[1].descriptor = -1


def test_a_part_shows_what_a_batch_read_saw_before_something_was_amiss(tmp_path):
    (tmp_path / "job").mkdir()
    batched = BatchedDirectory(tmp_path / "job")
    batched.directory.close()
    found = LayoutMatch(registry.layouts()[0], "slurm", "1")
    files = tuple(
        CgroupFile(f"memory.{which}", "memory", single(f"memory_{which}"))
        for which in ("current", "peak")
    )
    log = KernelLog(str(tmp_path / "none"))
    part = JobCgroup(
        "job", found, None, CgroupFiles({}, files, DescriptorBudget(9), log, ReadErrors())
    )
    part.add(Hierarchy(2, frozenset(), str(tmp_path)))
    try:
        assert part.read(0.0)[6:8] == (1, 2)
        batched.one.write_text("5\n")
        batched.two.write_text("half")
        assert part.read(0.1)[6:8] == (5, None)
        batched.two.write_text("6\n")
        assert part.read(0.2)[6:8] == (5, 6)
        assert part.read(0.3, "cpu")[6:8] == (5, 6)
        batched.one.write_text("8\n")
        assert part.read(0.4, "cpu")[6:8] == (5, 6)
        assert part.read(0.4, "memory")[6:8] == (8, 6)
        batched.one.write_text("5\n")
        assert part.read(0.5)[6:8] == (5, 6)
    finally:
        part.close()


def test_where_two_hierarchies_tell_the_same_one_of_them_is_believed(tmp_path):
    """On a hybrid machine v2's cpu.stat has the CPU time as well as v1's cpuacct.stat."""
    coarse, fine = (tmp_path / mount / "job/cpu" for mount in ("v1", "v2"))
    for file in (coarse, fine):
        file.parent.mkdir(parents=True)
    source = CgroupFile("cpu", "cpu", single("cpu_user_seconds"))
    log = KernelLog(str(tmp_path / "none"))
    files = CgroupFiles({"cpuacct": (source,)}, (source,), DescriptorBudget(9), log, ReadErrors())
    part = JobCgroup("job", LayoutMatch(registry.layouts()[0], "slurm", "1"), None, files)
    coarse.write_text("100\n")
    fine.write_text("104\n")
    part.add(Hierarchy(2, frozenset(), str(tmp_path / "v2")))
    part.add(Hierarchy(1, frozenset({"cpuacct"}), str(tmp_path / "v1")))
    try:
        assert part.read(0.0).cpu_user_seconds == 100
        fine.write_text("105\n")
        assert part.read(0.1).cpu_user_seconds == 100
        coarse.write_text("101\n")
        assert part.read(0.2).cpu_user_seconds == 101
        coarse.write_text("half")
        assert part.read(0.3).cpu_user_seconds == 105
    finally:
        part.close()

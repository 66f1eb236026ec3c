"""Reads of cgroup files that have been read before: only what changed is parsed."""

import os

import pytest

from batchjob.schedulers import registry
from batchjob.schedulers.layout import LayoutMatch
from collectors.jobs.cgroups.directory import (
    CgroupDirectory,
    DescriptorBudget,
    ReadErrors,
)
from collectors.jobs.cgroups.formats import single
from collectors.jobs.cgroups.job_cgroup import CgroupFiles, JobCgroup
from collectors.jobs.cgroups.kernel_log import KernelLog
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.cgroups.reader import BatchReader, CgroupFile


def directory_and_values(path, *sources, errors=None):
    """A directory and the dict of its values."""
    directory = CgroupDirectory(str(path), sources, DescriptorBudget(9), errors or ReadErrors())
    return directory, directory.values


def test_directory_read_returns_whether_values_changed(tmp_path):
    file = tmp_path / "memory.current"
    file.write_text("1\n")
    errors = ReadErrors()
    source = CgroupFile("memory.current", "memory", single("bytes"))
    directory, values = directory_and_values(tmp_path, source, errors=errors)
    try:
        assert directory.read(refresh=True)
        assert not directory.read(refresh=False)
        assert values == {"bytes": 1}
        file.write_text("2\n")
        assert directory.read(refresh=False)
        assert values == {"bytes": 2}
        file.write_text("half")
        assert directory.read(refresh=False)
        assert values == {}
        file.write_text("2\n")
        assert directory.read(refresh=False)
        assert values == {"bytes": 2}
        file.write_text("3" * 19 + "\n")
        assert directory.read(refresh=False)
        assert values == {"bytes": int("3" * 19)}
    finally:
        directory.close()
    assert errors.counts()["malformed"] == sum(errors.counts().values()) == 1


def test_growing_file_is_read_to_its_end(tmp_path):
    file = tmp_path / "memory.stat"
    file.write_text("anon 1\n")
    source = CgroupFile("memory.stat", "memory", lambda data: {"size": len(data)})
    directory, values = directory_and_values(tmp_path, source)
    try:
        for size in (7, 470, 479, 480, 3000, 40, 5000):
            file.write_text("x" * (size - 1) + "\n")
            directory.read(refresh=True)
            assert values == {"size": size}
    finally:
        directory.close()


def test_limit_that_disappears_is_removed_from_the_values(tmp_path):
    limits = {"memory_limit": 7}
    directory = CgroupDirectory(
        str(tmp_path), [], DescriptorBudget(9), ReadErrors(), lambda: limits.copy()
    )
    directory.read(refresh=True)
    assert directory.values == {"memory_limit": 7}
    limits.clear()
    directory.read(refresh=True)
    assert directory.values == {}


class BatchedDirectory:
    """Two files of a directory, and a reader of both."""

    def __init__(self, path):
        self.one, self.two = path / "memory.current", path / "memory.peak"
        self.one.write_text("1\n")
        self.two.write_text("2\n")
        self.directory, self.values = directory_and_values(
            path,
            CgroupFile("memory.current", "memory", single("current")),
            CgroupFile("memory.peak", "memory", single("peak")),
        )
        self.directory.read(refresh=True)
        self.reader = BatchReader(self.directory.frequent_files())


@pytest.fixture
def batched(tmp_path):
    batched = BatchedDirectory(tmp_path)
    yield batched
    batched.directory.close()


def test_batch_read_returns_whether_values_changed(batched):
    assert batched.reader.read() is False
    batched.two.write_text("3\n")
    assert batched.reader.read() is True
    assert batched.values == {"current": 1, "peak": 3}
    assert batched.reader.read() is False


@pytest.mark.parametrize("text", ["half", "7\n" * 300], ids=["malformed", "longer than its buffer"])
def test_batch_read_of_invalid_content_returns_none(batched, text):
    batched.one.write_text("5\n")
    batched.two.write_text(text)
    assert batched.reader.read() is None
    batched.directory.read(refresh=False)
    assert batched.values == {"current": 5}


def test_batch_read_of_a_closed_file_returns_none(batched):
    os.close(batched.directory.frequent_files()[1].descriptor)
    batched.one.write_text("5\n")
    try:
        assert batched.reader.read() is None
        assert batched.values["current"] == 5  # it may be removed before the next read
    finally:
        batched.directory.frequent_files()[1].descriptor = -1


def test_job_cgroup_keeps_values_read_before_a_batch_read_failed(tmp_path):
    (tmp_path / "job").mkdir()
    batched = BatchedDirectory(tmp_path / "job")
    batched.directory.close()
    layout_match = LayoutMatch(registry.layouts()[0], "slurm", "1")
    files = tuple(
        CgroupFile(f"memory.{which}", "memory", single(f"memory_{which}"))
        for which in ("current", "peak")
    )
    log = KernelLog(str(tmp_path / "none"))
    job_cgroup = JobCgroup(
        "job", layout_match, None, CgroupFiles({}, files, DescriptorBudget(9), log, ReadErrors())
    )
    job_cgroup.add(Hierarchy(2, frozenset(), str(tmp_path)))
    try:
        assert job_cgroup.read(0.0)[6:8] == (1, 2)
        batched.one.write_text("5\n")
        batched.two.write_text("half")
        assert job_cgroup.read(0.1)[6:8] == (5, None)
        batched.two.write_text("6\n")
        assert job_cgroup.read(0.2)[6:8] == (5, 6)
        assert job_cgroup.read(0.3, "cpu")[6:8] == (5, 6)
        batched.one.write_text("8\n")
        assert job_cgroup.read(0.4, "cpu")[6:8] == (5, 6)
        assert job_cgroup.read(0.4, "memory")[6:8] == (8, 6)
        batched.one.write_text("5\n")
        assert job_cgroup.read(0.5)[6:8] == (5, 6)
    finally:
        job_cgroup.close()


def test_value_in_two_hierarchies_is_read_from_the_v1_controller(tmp_path):
    """On a hybrid machine v2's cpu.stat has the CPU time as well as v1's cpuacct.stat."""
    v1_file, v2_file = (tmp_path / mount / "job/cpu" for mount in ("v1", "v2"))
    for file in (v1_file, v2_file):
        file.parent.mkdir(parents=True)
    source = CgroupFile("cpu", "cpu", single("cpu_user_seconds"))
    log = KernelLog(str(tmp_path / "none"))
    files = CgroupFiles({"cpuacct": (source,)}, (source,), DescriptorBudget(9), log, ReadErrors())
    job_cgroup = JobCgroup("job", LayoutMatch(registry.layouts()[0], "slurm", "1"), None, files)
    v1_file.write_text("100\n")
    v2_file.write_text("104\n")
    job_cgroup.add(Hierarchy(2, frozenset(), str(tmp_path / "v2")))
    job_cgroup.add(Hierarchy(1, frozenset({"cpuacct"}), str(tmp_path / "v1")))
    try:
        assert job_cgroup.read(0.0).cpu_user_seconds == 100
        v2_file.write_text("105\n")
        assert job_cgroup.read(0.1).cpu_user_seconds == 100
        v1_file.write_text("101\n")
        assert job_cgroup.read(0.2).cpu_user_seconds == 101
        v1_file.write_text("half")
        assert job_cgroup.read(0.3).cpu_user_seconds == 105
    finally:
        job_cgroup.close()

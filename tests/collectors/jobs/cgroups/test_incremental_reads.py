"""Reads of cgroup files that have been read before: only what changed is parsed."""

import os
from threading import Semaphore

import pytest

from batchjob.schedulers import registry
from batchjob.schedulers.layout import LayoutMatch
from collectors.jobs.cgroups.directory import CgroupDirectory, FileReader
from collectors.jobs.cgroups.formats import CgroupFile, single
from collectors.jobs.cgroups.job_cgroup import CgroupFiles, JobCgroup
from collectors.jobs.cgroups.kernel_log import KernelLog
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.cgroups.reader import ReadErrors


class ReadDirectory:
    """A directory with these files, and a reader of them."""

    def __init__(self, path, *sources):
        self.directory = CgroupDirectory(str(path), sources, Semaphore(9), ReadErrors())
        self.values = self.directory.values
        self.directory.find_files()
        self.reader = FileReader(self.directory.frequent_files())

    def read(self):
        """Whether anything has changed, and the names of files that could not be read."""
        changed, failed = self.reader.read()
        return changed, [file.source.file for file, _ in failed]


@pytest.fixture
def memory(tmp_path):
    """Two files of a directory."""
    (tmp_path / "memory.current").write_text("1\n")
    (tmp_path / "memory.peak").write_text("2\n")
    memory = ReadDirectory(
        tmp_path,
        CgroupFile("memory.current", "memory", single("current")),
        CgroupFile("memory.peak", "memory", single("peak")),
    )
    yield memory
    memory.directory.close()


def test_read_returns_whether_values_changed(memory, tmp_path):
    file = tmp_path / "memory.current"
    assert memory.read() == (True, [])
    assert memory.read() == (False, [])
    assert memory.values == {"current": 1, "peak": 2}
    file.write_text("3\n")
    assert memory.read() == (True, [])
    assert memory.values == {"current": 3, "peak": 2}
    file.write_text("half")
    assert memory.read() == (True, ["memory.current"])
    assert memory.values == {"peak": 2}
    file.write_text("3" * 19 + "\n")
    assert memory.read() == (True, [])
    assert memory.values == {"current": int("3" * 19), "peak": 2}


@pytest.mark.parametrize("text", ["half", "7\n" * 300], ids=["malformed", "longer than its buffer"])
def test_files_beside_a_malformed_one_are_read(memory, tmp_path, text):
    (tmp_path / "memory.current").write_text(text)
    assert memory.read() == (True, ["memory.current"])
    assert memory.values == {"peak": 2}


def test_files_beside_one_that_cannot_be_read_are_read(memory, tmp_path):
    """They may be removed before the next read."""
    memory.read()
    closed = memory.directory.files[0]
    os.close(closed.descriptor)
    (tmp_path / "memory.peak").write_text("5\n")
    try:
        assert memory.read() == (True, ["memory.current"])
        assert memory.values["peak"] == 5
    finally:
        closed.descriptor = -1


def test_growing_file_is_read_to_its_end(tmp_path):
    file = tmp_path / "memory.stat"
    file.write_text("anon 1\n")
    source = CgroupFile("memory.stat", "memory", lambda data: {"size": len(data)})
    grown = ReadDirectory(tmp_path, source)
    try:
        for size in (7, 470, 479, 480, 3000, 40, 5000):
            file.write_text("x" * (size - 1) + "\n")
            grown.read()
            assert grown.values == {"size": size}
    finally:
        grown.directory.close()


def test_files_without_a_descriptor_are_opened_for_each_read(tmp_path):
    file = tmp_path / "memory.current"
    file.write_text("1\n")
    source = CgroupFile("memory.current", "memory", single("current"))
    directory = CgroupDirectory(str(tmp_path), [source], Semaphore(0), ReadErrors())
    directory.find_files()
    reader = FileReader(directory.frequent_files())
    assert reader.read() == (True, [])
    assert reader.read() == (False, [])
    file.write_text("2\n")
    assert reader.read() == (True, [])
    assert directory.values == {"current": 2}


def test_limit_that_disappears_is_removed_from_the_values(tmp_path):
    job = tmp_path / "job"
    job.mkdir()
    (job / "memory.max").write_text("7\n")
    directory = CgroupDirectory(str(job), [], Semaphore(9), ReadErrors(), str(tmp_path))
    directory.read_limit()
    assert directory.values == {"memory_limit": 7}
    (job / "memory.max").write_text("max\n")
    directory.read_limit()
    assert directory.values == {}


def test_job_cgroup_keeps_values_read_before_a_batch_read_failed(tmp_path):
    (tmp_path / "job").mkdir()
    one, two = (tmp_path / "job" / f"memory.{which}" for which in ("current", "peak"))
    one.write_text("1\n")
    two.write_text("2\n")
    layout_match = LayoutMatch(registry.layouts()[0], "slurm", "1")
    files = tuple(
        CgroupFile(f"memory.{which}", "memory", single(f"memory_{which}"))
        for which in ("current", "peak")
    )
    log = KernelLog(str(tmp_path / "none"))
    job_cgroup = JobCgroup(
        "job", layout_match, None, CgroupFiles({}, files, Semaphore(9), log, ReadErrors())
    )
    job_cgroup.add(Hierarchy(2, frozenset(), str(tmp_path)))
    try:
        assert job_cgroup.read(0.0)[6:8] == (1, 2)
        one.write_text("5\n")
        two.write_text("half")
        assert job_cgroup.read(0.1)[6:8] == (5, None)
        two.write_text("6\n")
        assert job_cgroup.read(0.2)[6:8] == (5, 6)
        assert job_cgroup.read(0.3, "cpu")[6:8] == (5, 6)
        one.write_text("8\n")
        assert job_cgroup.read(0.4, "cpu")[6:8] == (5, 6)
        assert job_cgroup.read(0.4, "memory")[6:8] == (8, 6)
        one.write_text("5\n")
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
    files = CgroupFiles({"cpuacct": (source,)}, (source,), Semaphore(9), log, ReadErrors())
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

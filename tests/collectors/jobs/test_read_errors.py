"""Only ENOENT and ENODEV mean that something is gone; other errors are counted and retried."""

import errno
import os

import pytest

from tests.collectors.jobs.nodes import samples, users
from tests.helpers.waiting import until

TRANSIENT = [errno.EIO, errno.ENOMEM, errno.ESTALE]


@pytest.fixture
def fail_path(monkeypatch):
    """Make open(), stat() and scandir() of a path fail; calling what is returned undoes it."""
    broken = {}

    def wrap(module, name):
        original = getattr(module, name)

        def wrapped(path, *more, **others):
            error_number = broken.get(os.fspath(path)) if not isinstance(path, int) else None
            if error_number is not None:
                raise OSError(error_number, os.strerror(error_number), path)
            return original(path, *more, **others)

        monkeypatch.setattr(module, name, wrapped)

    for name in ("open", "stat", "scandir"):
        wrap(os, name)

    def fail(path, error_number):
        broken[os.fspath(path)] = error_number
        return lambda: broken.pop(os.fspath(path))

    return fail


def read_error_count(numbers):
    return numbers.get(("read_errors_total", "", "other"), 0)


@pytest.mark.parametrize("error_number", TRANSIENT)
@pytest.mark.parametrize("file", ["step_batch/user/task_0/cgroup.procs", "step_batch", "."])
def test_job_keeps_running_while_its_processes_cannot_be_listed(
    node, fail_path, file, error_number
):
    job = node.add_job(pids=[10])
    node.add_process(10)
    jobs = node.collector()
    jobs.update()
    restore = fail_path(job if file == "." else job / file, error_number)
    node.now += 20
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert ("end_time_seconds", "1") not in numbers
    assert numbers["memory_current_bytes", "1"] == 4096
    assert read_error_count(numbers) >= 1
    restore()
    node.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["processes", "1"] == 1


@pytest.mark.parametrize("error_number", TRANSIENT)
def test_job_keeps_running_while_cgroup_events_cannot_be_read(node, fail_path, error_number):
    job = node.add_job(pids=[10])
    node.add_process(10)
    jobs = node.collector()
    jobs.update()
    jobs.watcher.start()
    restore = fail_path(job / "cgroup.events", error_number)
    node.set_populated(job, True)
    until(lambda: read_error_count(samples(jobs)) >= 1)
    assert ("end_time_seconds", "1") not in samples(jobs)
    restore()
    node.set_populated(job, False)
    until(lambda: ("end_time_seconds", "1") in samples(jobs))


def test_missed_end_of_a_job_is_found_by_the_next_scan(node, fail_path):
    job = node.add_job(pids=[10])
    node.add_process(10)
    jobs = node.collector()
    jobs.update()
    node.set_populated(job, False)  # the watcher is not started
    (job / "step_batch/user/task_0/cgroup.procs").write_text("")
    node.now += 20
    jobs.scanner.scan()
    assert ("end_time_seconds", "1") in samples(jobs)


@pytest.mark.parametrize("error_number", TRANSIENT)
def test_process_io_is_not_counted_twice_after_an_error(node, fail_path, error_number):
    node.add_job(pids=[10])
    process_directory = node.add_process(10, io=(100, 200, 300, 400))
    jobs = node.collector()
    jobs.update()
    restore = fail_path(process_directory / "stat", error_number)
    node.now += 20
    jobs.scanner.scan()
    restore()
    node.now += 20
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert numbers["process_io_written_bytes_total", "1"] == 200
    assert read_error_count(numbers) == 1


@pytest.mark.parametrize("error_number", TRANSIENT)
def test_directory_that_cannot_be_read_is_retried_later(node, fail_path, error_number):
    job = node.add_job(pids=[10])
    node.add_process(10)
    restore = fail_path(job, error_number)
    jobs = node.collector()
    jobs.update()
    assert users(jobs) == {}
    restore()
    node.now += 61
    jobs.update()
    assert users(jobs).keys() == {"1"}


@pytest.mark.parametrize("error_number", TRANSIENT)
def test_memory_limit_that_cannot_be_read_is_absent(node, fail_path, error_number):
    job = node.add_job(pids=[10])
    node.add_process(10)
    (job / "memory.max").write_text("1000\n")
    (job.parent / "memory.max").write_text("500\n")
    restore = fail_path(job.parent / "memory.max", error_number)
    jobs = node.collector()
    jobs.update()
    assert ("memory_limit_bytes", "1") not in samples(jobs)
    restore()
    node.now += 61
    assert samples(jobs)["memory_limit_bytes", "1"] == 500

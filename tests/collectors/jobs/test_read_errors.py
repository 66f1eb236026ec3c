"""Only ENOENT and ENODEV say that something is gone; any other error is counted and passes."""

import errno
import os

import pytest

from tests.collectors.jobs.nodes import samples, users, wait_until

TRANSIENT = [errno.EIO, errno.ENOMEM, errno.ESTALE]


@pytest.fixture
def failing(monkeypatch):
    """Have open(), stat() and listing of a path fail with an error: `failing(path, number)`."""
    broken = {}

    def wrap(module, name):
        original = getattr(module, name)

        def wrapped(path, *more, **others):
            number = broken.get(os.fspath(path)) if not isinstance(path, int) else None
            if number is not None:
                raise OSError(number, os.strerror(number), path)
            return original(path, *more, **others)

        monkeypatch.setattr(module, name, wrapped)

    for name in ("open", "stat", "scandir"):
        wrap(os, name)

    def fail(path, number):
        broken[os.fspath(path)] = number
        return lambda: broken.pop(os.fspath(path))

    return fail


def counted(numbers):
    return numbers.get(("read_errors_total", "", "other"), 0)


@pytest.mark.parametrize("number", TRANSIENT)
@pytest.mark.parametrize("file", ["step_batch/user/task_0/cgroup.procs", "step_batch", "."])
def test_a_job_lives_on_while_its_processes_cannot_be_listed(node, failing, file, number):
    job = node.job(pids=[10])
    node.process(10)
    jobs = node.jobs()
    jobs.update()
    mend = failing(job if file == "." else job / file, number)
    node.now += 20
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert ("end_time_seconds", "1") not in numbers
    assert numbers["memory_current_bytes", "1"] == 4096
    assert counted(numbers) >= 1
    mend()
    node.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["processes", "1"] == 1


@pytest.mark.parametrize("number", TRANSIENT)
def test_a_job_lives_on_while_the_kernel_cannot_say_whether_it_is_populated(node, failing, number):
    job = node.job(pids=[10])
    node.process(10)
    jobs = node.jobs()
    jobs.update()
    jobs.watcher.start()
    mend = failing(job / "cgroup.events", number)
    node.populate(job, True)
    wait_until(lambda: counted(samples(jobs)) >= 1)
    assert ("end_time_seconds", "1") not in samples(jobs)
    mend()
    node.populate(job, False)
    wait_until(lambda: ("end_time_seconds", "1") in samples(jobs))


def test_an_end_whose_notice_met_an_error_is_found_by_the_next_look(node, failing):
    job = node.job(pids=[10])
    node.process(10)
    jobs = node.jobs()
    jobs.update()
    node.populate(job, False)  # nobody listens
    (job / "step_batch/user/task_0/cgroup.procs").write_text("")
    node.now += 20
    jobs.scanner.scan()
    assert ("end_time_seconds", "1") in samples(jobs)


@pytest.mark.parametrize("number", TRANSIENT)
def test_what_a_process_read_and_wrote_is_not_counted_twice_after_an_error(node, failing, number):
    node.job(pids=[10])
    place = node.process(10, io=(100, 200, 300, 400))
    jobs = node.jobs()
    jobs.update()
    mend = failing(place / "stat", number)
    node.now += 20
    jobs.scanner.scan()
    mend()
    node.now += 20
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert numbers["process_io_written_bytes_total", "1"] == 200
    assert counted(numbers) == 1


@pytest.mark.parametrize("number", TRANSIENT)
def test_a_directory_that_cannot_be_looked_at_is_visited_later(node, failing, number):
    job = node.job(pids=[10])
    node.process(10)
    mend = failing(job, number)
    jobs = node.jobs()
    jobs.update()
    assert users(jobs) == {}
    mend()
    node.now += 61
    jobs.update()
    assert users(jobs).keys() == {"1"}


@pytest.mark.parametrize("number", TRANSIENT)
def test_a_memory_limit_that_cannot_be_read_is_absent(node, failing, number):
    job = node.job(pids=[10])
    node.process(10)
    (job / "memory.max").write_text("1000\n")
    (job.parent / "memory.max").write_text("500\n")
    mend = failing(job.parent / "memory.max", number)
    jobs = node.jobs()
    jobs.update()
    assert ("memory_limit_bytes", "1") not in samples(jobs)
    mend()
    node.now += 61
    assert samples(jobs)["memory_limit_bytes", "1"] == 500

"""Whatever one job's files hold, the scrape succeeds and all other jobs are complete."""

import errno
import os
import threading
from pathlib import Path

import pytest

from collectors.jobs.processes import proc
from tests.collectors.jobs.nodes import samples, users


def two_jobs(node, **options):
    """Job 1 is there to be broken, job 2 to be complete."""
    broken = node.job("job_1", pids=[10])
    node.job("job_2", pids=[11])
    node.process(10)
    node.process(11)
    jobs = node.jobs(**options)
    jobs.update()
    return broken, jobs


def errors(numbers, reason):
    return numbers.get(("read_errors_total", "", reason), 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"user_usec 12", "malformed"),
        (b"user_usec \xff\xfe\nsystem_usec 1\n", "malformed"),
        (b"user_usec\n", "malformed"),
        (b"", "malformed"),
    ],
)
def test_a_broken_file_leaves_its_numbers_out(node, content, reason):
    broken, jobs = two_jobs(node)
    (broken / "cpu.stat").write_bytes(content)
    jobs = node.jobs(metrics=("cpu", "memory"))
    jobs.update()
    numbers = samples(jobs)
    assert numbers["memory_peak_bytes", "1"] == 8192
    assert numbers["cpu_seconds_total", "2", "user"] == 1
    assert errors(numbers, reason) >= 1


@pytest.mark.parametrize("text", ["-4096", "1_000", "+5", "٤", "0x10", "", "9" * 22])
def test_what_the_kernel_never_writes_is_no_number(node, text):
    broken, _ = two_jobs(node)
    (broken / "memory.current").write_text(f"{text}\n")
    jobs = node.jobs()
    jobs.update()
    numbers = samples(jobs)
    assert ("memory_current_bytes", "1") not in numbers
    assert numbers["memory_current_bytes", "2"] == 4096
    assert errors(numbers, "malformed") >= 1


def test_a_file_that_is_a_directory(node):
    broken, _ = two_jobs(node)
    (broken / "memory.peak").unlink()
    (broken / "memory.peak").mkdir()
    jobs = node.jobs()
    jobs.update()
    numbers = samples(jobs)
    assert ("memory_peak_bytes", "1") not in numbers
    assert numbers["memory_peak_bytes", "2"] == 8192
    assert errors(numbers, "other") >= 1


def test_a_pid_of_another_namespace(node):
    broken, jobs = two_jobs(node)
    (broken / "step_batch/user/task_0/cgroup.procs").write_text("0\n")
    node.now += 20
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert numbers["cpu_seconds_total", "1", "user"] == 1
    assert errors(numbers, "namespace") == 1


def test_a_process_with_a_garbled_stat(node):
    _, jobs = two_jobs(node)
    (node.proc / "10" / "stat").write_text("nonsense")
    node.now += 20
    jobs.scanner.scan()
    assert errors(samples(jobs), "malformed") == 1
    assert users(jobs).keys() == {"1", "2"}


def test_a_process_that_cannot_be_looked_at_is_given_up(node, monkeypatch):
    """One stuck in a dead file system may block its reader for ever."""
    _, jobs = two_jobs(node)
    hang, reached = threading.Event(), threading.Event()
    read = proc.read_process

    def stuck(procfs, pid, *rest):
        if pid == 10:
            reached.set()
            hang.wait()
        return read(procfs, pid, *rest)

    monkeypatch.setattr(proc, "read_process", stuck)
    node.now += 20
    jobs.scanner.start()
    assert reached.wait(10)
    node.now += 6
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 1
    assert errors(samples(jobs), "stuck") == 1
    hang.set()


def test_numbers_of_processes_looked_at_too_long_ago_are_not_shown(node):
    _, jobs = two_jobs(node)
    assert samples(jobs)["processes", "1"] == 1
    node.now += 1000
    assert ("processes", "1") not in samples(jobs)


def test_ten_thousand_cgroups_that_are_no_jobs(node):
    _, jobs = two_jobs(node)
    services = node.cgroup / "system.slice"
    for number in range(10_000):
        (services / f"svc{number}.service").mkdir()
    jobs.update()
    assert users(jobs).keys() == {"1", "2"}
    assert sum(map(watches, Path("/proc/self/fd").iterdir())) < 10_100


def watches(descriptor):
    """How many directories an inotify descriptor of this process watches (proc(5))."""
    try:
        return Path("/proc/self/fdinfo", descriptor.name).read_text().count("inotify wd:")
    except OSError:
        return 0  # closed meanwhile


def test_descriptors_may_run_out(node, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda which: (4, 4))
    _, jobs = two_jobs(node)
    numbers = samples(jobs)
    assert numbers["memory_peak_bytes", "1"] == numbers["memory_peak_bytes", "2"] == 8192


def test_a_job_name_that_would_break_the_text(node):
    node.job("job_1", pids=[10])
    node.process(10, environ=b'SLURM_JOB_NAME="}\n# TYPE evil\0')
    jobs = node.jobs(name=True)
    jobs.update()
    assert users(jobs).keys() == {"1"}


def test_a_file_that_the_kernel_will_not_read_is_left_alone_for_a_while(node, monkeypatch):
    """Pressure files answer EOPNOTSUPP where PSI is off."""
    broken, _ = two_jobs(node)
    (broken / "cpu.pressure").write_text("some total=1\n")
    refused, pread = [], os.pread

    def read(descriptor, *more):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".pressure"):
            refused.append(descriptor)
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return pread(descriptor, *more)

    monkeypatch.setattr(os, "pread", read)
    jobs = node.jobs()
    jobs.update()
    for _ in range(3):
        numbers = samples(jobs)
    assert errors(numbers, "unsupported") == len(refused) == 1
    assert numbers["cpu_seconds_total", "1", "user"] == 1
    node.now += 31
    assert errors(samples(jobs), "unsupported") == 2


def test_processes_that_may_not_be_looked_into_are_counted(node, monkeypatch):
    read = proc.read_head

    def refuse(path, longest):
        if path.endswith(("/environ", "/io")):
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path, longest)

    monkeypatch.setattr(proc, "read_head", refuse)
    _, jobs = two_jobs(node)
    numbers = samples(jobs)
    assert errors(numbers, "denied") == 2
    assert numbers["processes", "1"] == 1
    assert ("process_io_read_bytes_total", "1") not in numbers

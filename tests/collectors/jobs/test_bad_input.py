"""Bad input in the files of one job leaves the scrape and all other jobs complete."""

import errno
import os
import threading

import pytest

from batchjob.runtime.logins import login_of
from collectors.jobs.processes import proc
from tests.collectors.jobs.nodes import inotify_watch_count, samples, users
from tests.helpers.waiting import scaled


def add_two_jobs(node, **options):
    """Add job 1, to be broken, and job 2, to stay complete: directory of job 1, collector."""
    broken = node.add_job("job_1", pids=[10])
    node.add_job("job_2", pids=[11])
    node.add_process(10)
    node.add_process(11)
    jobs = node.collector(**options)
    jobs.update()
    return broken, jobs


def read_error_count(numbers, reason):
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
def test_malformed_file_omits_only_its_metrics(node, content, reason):
    broken, jobs = add_two_jobs(node)
    (broken / "cpu.stat").write_bytes(content)
    jobs = node.collector(metrics=("cpu", "memory"))
    jobs.update()
    numbers = samples(jobs)
    assert numbers["memory_peak_bytes", "1"] == 8192
    assert numbers["cpu_seconds_total", "2", "user"] == 1
    assert read_error_count(numbers, reason) >= 1


@pytest.mark.parametrize("text", ["-4096", "1_000", "+5", "٤", "0x10", "", "9" * 22])
def test_number_the_kernel_never_writes_is_malformed(node, text):
    broken, _ = add_two_jobs(node)
    (broken / "memory.current").write_text(f"{text}\n")
    jobs = node.collector()
    jobs.update()
    numbers = samples(jobs)
    assert ("memory_current_bytes", "1") not in numbers
    assert numbers["memory_current_bytes", "2"] == 4096
    assert read_error_count(numbers, "malformed") >= 1


def test_directory_in_place_of_a_file_is_a_read_error(node):
    broken, _ = add_two_jobs(node)
    (broken / "memory.peak").unlink()
    (broken / "memory.peak").mkdir()
    jobs = node.collector()
    jobs.update()
    numbers = samples(jobs)
    assert ("memory_peak_bytes", "1") not in numbers
    assert numbers["memory_peak_bytes", "2"] == 8192
    assert read_error_count(numbers, "other") >= 1


def test_pid_of_another_namespace_is_counted(node):
    broken, jobs = add_two_jobs(node)
    (broken / "step_batch/user/task_0/cgroup.procs").write_text("0\n")
    node.now += 20
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert numbers["cpu_seconds_total", "1", "user"] == 1
    assert read_error_count(numbers, "namespace") == 1


def test_garbled_process_stat_is_counted(node):
    _, jobs = add_two_jobs(node)
    (node.proc / "10" / "stat").write_text("nonsense")
    node.now += 20
    jobs.scanner.scan()
    assert read_error_count(samples(jobs), "malformed") == 1
    assert users(jobs).keys() == {"1", "2"}


def test_process_read_that_blocks_is_abandoned(node, monkeypatch):
    """A process on a dead file system may block its reader forever."""
    _, jobs = add_two_jobs(node)
    release, reached = threading.Event(), threading.Event()
    read = proc.read_process

    def blocking_read(procfs, pid, *rest):
        if pid == 10:
            reached.set()
            release.wait()
        return read(procfs, pid, *rest)

    monkeypatch.setattr(proc, "read_process", blocking_read)
    node.now += 20
    jobs.scanner.start()
    assert reached.wait(scaled(10))
    node.now += 6
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 1
    assert read_error_count(samples(jobs), "stuck") == 1
    release.set()


def test_outdated_process_metrics_are_not_shown(node):
    _, jobs = add_two_jobs(node)
    assert samples(jobs)["processes", "1"] == 1
    node.now += 1000
    assert ("processes", "1") not in samples(jobs)


def test_ten_thousand_other_cgroups_use_few_watches(node):
    _, jobs = add_two_jobs(node)
    services = node.cgroup / "system.slice"
    for number in range(10_000):
        (services / f"svc{number}.service").mkdir()
    jobs.update()
    assert users(jobs).keys() == {"1", "2"}
    assert inotify_watch_count() < 10_100


def test_jobs_are_read_with_few_file_descriptors(node, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda which: (4, 4))
    _, jobs = add_two_jobs(node)
    numbers = samples(jobs)
    assert numbers["memory_peak_bytes", "1"] == numbers["memory_peak_bytes", "2"] == 8192


def test_job_name_cannot_break_the_exposition_format(node):
    node.add_job("job_1", pids=[10])
    node.add_process(10, environ=b'SLURM_JOB_NAME="}\n# TYPE evil\0')
    jobs = node.collector(name=True)
    jobs.update()
    assert users(jobs).keys() == {"1"}


def test_unsupported_file_is_not_retried_for_a_while(node, monkeypatch):
    """Pressure files answer EOPNOTSUPP where PSI is off."""
    broken, _ = add_two_jobs(node)
    (broken / "cpu.pressure").write_text("some total=1\n")
    refused, pread = [], os.pread

    def read(descriptor, *more):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".pressure"):
            refused.append(descriptor)
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return pread(descriptor, *more)

    monkeypatch.setattr(os, "pread", read)
    jobs = node.collector()
    jobs.update()
    for _ in range(3):
        numbers = samples(jobs)
    assert read_error_count(numbers, "unsupported") == len(refused) == 1
    assert numbers["cpu_seconds_total", "1", "user"] == 1
    node.now += 31
    assert read_error_count(samples(jobs), "unsupported") == 2


def test_kernel_without_io_accounting_of_processes_lacks_that_alone(node):
    """Without CONFIG_TASK_IO_ACCOUNTING there is no /proc/<pid>/io."""
    _, jobs = add_two_jobs(node)
    for file in node.proc.glob("*/io"):
        file.unlink()
    node.now += 20
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert users(jobs) == {"1": login_of(1000), "2": login_of(1000)}
    assert numbers["processes", "1"] == 1
    assert ("process_io_read_bytes_total", "1") not in numbers
    assert not read_error_count(numbers, "denied")


def test_denied_process_files_are_counted(node, monkeypatch):
    read = proc.read_head

    def refuse(path, longest):
        if path.endswith(("/environ", "/io")):
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path, longest)

    monkeypatch.setattr(proc, "read_head", refuse)
    _, jobs = add_two_jobs(node)
    numbers = samples(jobs)
    assert read_error_count(numbers, "denied") == 2
    assert numbers["processes", "1"] == 1
    assert ("process_io_read_bytes_total", "1") not in numbers

"""Sums over processes never fall and count nothing twice."""

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.jobs.processes.proc import (
    Process,
    ProcessCounters,
    ProcessTotals,
    read_environ,
    read_process,
)
from tests.collectors.jobs.nodes import samples
from tests.helpers.waiting import until


def process(pid, parent=1, cpu=0.0, io=0.0, started=1.0):
    counters = ProcessCounters(cpu, 0.0, io, io, io, io)
    return Process(pid, started, parent, 1000, 1, "a.out", counters)


def by_pid(*processes):
    return {each.pid: each for each in processes}


def test_usage_of_an_ended_process_is_kept():
    totals = ProcessTotals()
    totals.update(by_pid(process(10, io=100), process(11, io=50)))
    assert totals.update(by_pid(process(10, io=100))).read_bytes == 150


def test_waited_for_child_is_counted_in_its_parent():
    totals = ProcessTotals()
    totals.update(by_pid(process(10, io=100), process(11, parent=10, io=50)))
    assert totals.update(by_pid(process(10, io=155))).read_bytes == 155


def test_child_is_kept_if_its_parent_gained_less():
    totals = ProcessTotals()
    totals.update(by_pid(process(10, io=100), process(11, parent=10, io=50)))
    assert totals.update(by_pid(process(10, io=120))).read_bytes == 150


def test_grandchild_is_counted_through_an_ended_parent():
    totals = ProcessTotals()
    totals.update(by_pid(process(9, io=1), process(10, 9, io=2), process(11, 10, io=50)))
    assert totals.update(by_pid(process(9, io=53))).read_bytes == 53


def test_reused_pid_is_another_process():
    totals = ProcessTotals()
    totals.update(by_pid(process(10, io=100, started=1.0)))
    assert totals.update(by_pid(process(10, io=5, started=2.0))).read_bytes == 105


def test_counter_missing_for_one_process_has_no_sum():
    unreadable = process(11)._replace(counters=ProcessCounters(1.0, 1.0))
    sums = ProcessTotals().update(by_pid(process(10, cpu=2.0, io=5), unreadable))
    assert (sums.cpu_user_seconds, sums.read_bytes) == (3.0, None)


@given(st.lists(st.lists(st.tuples(st.integers(2, 6), st.integers(0, 6), st.integers(0, 100)))))
def test_sums_never_fall(scans):
    totals, before, used = ProcessTotals(), 0.0, {}
    for scan in scans:
        seen = {}
        for pid, parent, gain in scan:
            used[pid] = used.get(pid, 0) + gain
            seen[pid] = process(pid, parent, io=used[pid])
        sums = totals.update(seen)
        if sums is not None:
            assert sums.read_bytes >= before
            before = sums.read_bytes


def test_own_process_is_read():
    own = read_process("/proc", os.getpid(), None, io=True)
    assert (own.pid, own.parent, own.uid) == (os.getpid(), os.getppid(), os.getuid())
    assert own.counters.read_characters > 0


def test_program_name_may_contain_any_characters(node):
    node.add_process(10, program="a) R 1 (b\n", cpu=(100, 200, 300, 400))
    found = read_process(str(node.proc), 10, None, io=False)
    assert (found.program, found.parent) == ("a) R 1 (b\n", 1)
    assert found.counters[:2] == (4.0, 6.0)


@given(st.binary())
def test_arbitrary_environ_bytes_are_parsed(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("proc")
    (directory / "1").mkdir()
    (directory / "1" / "environ").write_bytes(b"A=1\0" + data)
    assert read_environ(str(directory), 1, lambda name: name == "A")["A"] is not None


def test_io_of_job_processes_is_summed_and_kept(node):
    node.add_job(pids=[10, 11])
    node.add_process(10, io=(1, 20, 300, 4000))
    node.add_process(11, io=(1, 20, 300, 4000), started=60_000)
    jobs = node.collector()
    jobs.update()
    assert samples(jobs)["process_io_written_characters_total", "1"] == 8000
    node.remove_process(11)
    (node.cgroup / "system.slice/slurmstepd.scope/job_1/step_batch/user/task_0/cgroup.procs"
     ).write_text("10\n")  # fmt: skip
    node.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["process_io_written_characters_total", "1"] == 8000


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (b"A=1\0" + b"x" * 500_000 + b"\0B=2\0", {"A": "1"}),
        (b"A=" + b"x" * 500_000, {}),
        (b"A=" + b"x" * 100_000 + b"\0B=2\0", {"A": "x" * 4096, "B": "2"}),
        (b"A=" + "é".encode() * 50_000 + b"\0", {"A": "é" * 4096}),
        (b"x" * (128 * 1024 - 4) + b"\0A=1\0", {}),
    ],
)
def test_only_the_beginning_of_environ_is_read(node, environ, expected):
    node.add_process(10, environ=environ)
    assert read_environ(str(node.proc), 10, lambda name: name in ("A", "B")) == expected


def test_excessive_gpu_variables_are_not_kept(node):
    node.add_job(pids=range(10, 26))
    for pid in range(10, 26):
        each = b"".join(b"CUDA_VISIBLE_DEVICES%d=%0100d\0" % (n, pid) for n in range(1000))
        node.add_process(pid, environ=b"SLURM_JOB_GPUS=3\0" + (each if pid > 10 else b""))
    jobs = node.collector()
    jobs.update()
    kept = [settings for holder in jobs.holders() for settings in holder.environs]
    assert kept == [{"SLURM_JOB_GPUS": "3"}]


def net_dev_text(*names):
    head = "Inter-|   Receive  |  Transmit\n face |bytes\n"
    return head + "".join(f"{name}: {' '.join(map(str, range(1, 17)))}\n" for name in names)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["lo", "eth0", "v\u2028\x85th"], {"eth0", "v\u2028\x85th"}),
        ([f"dummy{number}" for number in range(32)], {f"dummy{n}" for n in range(32)}),
        ([f"dummy{number}" for number in range(33)], set()),
        ([f"dummy{number}" for number in range(5000)], set()),
    ],
)
def test_job_with_too_many_interfaces_shows_none(node, names, shown):
    node.add_job(pids=[10])
    directory = node.add_process(10)
    (directory / "ns").mkdir()
    (directory / "net").mkdir()
    (directory / "ns/net").touch()
    (node.proc / "1/ns/net").touch()
    (directory / "net/dev").write_text(net_dev_text(*names))
    jobs = node.collector(metrics=("network",))
    jobs.update()
    series = samples(jobs)
    assert {key[2] for key in series if key[0] == "network_receive_bytes_total"} == shown


def test_renamed_interfaces_add_a_bounded_number_of_series(node):
    """A job that owns its namespace gives its interfaces new names at each reading."""
    node.add_job(pids=[10])
    directory = node.add_process(10)
    (directory / "ns").mkdir()
    (directory / "net").mkdir()
    (directory / "ns/net").touch()
    (node.proc / "1/ns/net").touch()
    jobs = node.collector(metrics=("network",))
    shown = set()
    for reading in range(4):
        names = [f"name{reading}x{number}" for number in range(15)]
        (directory / "net/dev").write_text(net_dev_text("eth0", *names))
        node.now += 60
        jobs.update()
        series = samples(jobs)
        now = {key[2] for key in series if key[0] == "network_receive_bytes_total"}
        assert "eth0" in now
        shown |= now
    assert len(shown) == 32
    assert series["read_errors_total", "", "interfaces"] == 2


def test_open_files_are_shown_if_enabled(node):
    node.add_job(pids=[10])
    directory = node.add_process(10) / "fd"
    directory.mkdir()
    for number in range(3):
        (directory / str(number)).touch()
    jobs = node.collector(metrics=("open-files",))
    jobs.update()
    assert samples(jobs)["open_files", "1"] == 3
    assert ("open_files_limit", "1") not in samples(jobs)  # the file is not there


@pytest.mark.parametrize(
    ("soft", "shown"), [("1024", 2048), ("unlimited", None), ("9" * 400, None), ("1_000", None)]
)
def test_open_files_limit_is_summed_over_processes(node, soft, shown):
    node.add_job(pids=[10, 11])
    for pid in (10, 11):
        text = f"Limit Soft Hard Units\nMax open files            {soft}  1048576  files\n"
        (node.add_process(pid) / "limits").write_text(text)
    jobs = node.collector(metrics=("open-files",))
    jobs.update()
    assert samples(jobs).get(("open_files_limit", "1")) == shown


def start_writing_job(node):
    """Start a collector of a job with one process: collector, directory of the process."""
    node.add_job(pids=[10])
    directory = node.add_process(10, io=(0, 100, 0, 0))
    jobs = node.collector()
    jobs.update()
    jobs.scanner.start()
    return jobs, directory


def shown_written_bytes(jobs):
    return samples(jobs)["process_io_written_bytes_total", "1"]


def test_scrape_triggers_a_process_scan_for_the_next_one(node):
    jobs, directory = start_writing_job(node)
    assert shown_written_bytes(jobs) == 100
    (directory / "io").write_text("read_bytes: 0\nwrite_bytes: 500\nrchar: 0\nwchar: 0\n")
    node.now += 5  # less than the scan interval
    assert shown_written_bytes(jobs) == 100  # a scrape does not wait for a scan
    until(lambda: jobs.table.all()[0].last_scan.processes.written_bytes == 500)


def test_readings_scan_processes_first(node):
    jobs, directory = start_writing_job(node)
    for number in (500, 900):
        (directory / "io").write_text(f"read_bytes: 0\nwrite_bytes: {number}\nrchar: 0\nwchar: 0\n")
        node.now += 5
        ((_, reading),) = jobs.readings()
        assert reading.processes.written_bytes == number


def test_process_exit_triggers_a_scan_of_the_others(node):
    with subprocess.Popen(["sleep", "60"]) as child:
        node.add_job(pids=[10, child.pid])
        directory = node.add_process(10, io=(0, 100, 0, 0))
        node.add_process(child.pid, started=60_000)
        jobs = node.collector()
        jobs.update()
        jobs.scanner.start()
        (directory / "io").write_text("read_bytes: 0\nwrite_bytes: 500\nrchar: 0\nwchar: 0\n")
        node.now += 1
        child.kill()
    until(lambda: jobs.table.all()[0].last_scan.processes.written_bytes == 500)

"""Sums over processes never fall and count nothing twice."""

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.jobs.processes.proc import (
    Clock,
    Process,
    ProcessCounters,
    ProcessTotals,
    read_environ,
    read_process,
)
from tests.collectors.jobs.nodes import samples, wait_until


def process(pid, parent=1, cpu=0.0, io=0.0, started=1.0):
    counters = ProcessCounters(cpu, 0.0, io, io, io, io)
    return Process(pid, started, parent, 1000, 1, "a.out", cpu, counters)


def test_what_an_ended_process_used_is_kept():
    accounts = ProcessTotals()
    accounts.update([process(10, io=100), process(11, io=50)])
    assert accounts.update([process(10, io=100)]).read_bytes == 150


def test_a_child_that_was_waited_for_is_in_its_parent_already():
    accounts = ProcessTotals()
    accounts.update([process(10, io=100), process(11, parent=10, io=50)])
    assert accounts.update([process(10, io=155)]).read_bytes == 155


def test_a_parent_that_gained_less_did_not_wait_for_it():
    accounts = ProcessTotals()
    accounts.update([process(10, io=100), process(11, parent=10, io=50)])
    assert accounts.update([process(10, io=120)]).read_bytes == 150


def test_a_grandchild_comes_up_through_an_ended_parent():
    accounts = ProcessTotals()
    accounts.update([process(9, io=1), process(10, 9, io=2), process(11, 10, io=50)])
    assert accounts.update([process(9, io=53)]).read_bytes == 53


def test_a_pid_used_again_is_another_process():
    accounts = ProcessTotals()
    accounts.update([process(10, io=100, started=1.0)])
    assert accounts.update([process(10, io=5, started=2.0)]).read_bytes == 105


def test_a_counter_that_cannot_be_read_of_one_process_has_no_sum():
    blind = process(11)._replace(counters=ProcessCounters(1.0, 1.0))
    sums = ProcessTotals().update([process(10, cpu=2.0, io=5), blind])
    assert (sums.cpu_user_seconds, sums.read_bytes) == (3.0, None)


@given(st.lists(st.lists(st.tuples(st.integers(2, 6), st.integers(0, 6), st.integers(0, 100)))))
def test_sums_never_fall(looks):
    accounts, before, used = ProcessTotals(), 0.0, {}
    for look in looks:
        seen = {}
        for pid, parent, gain in look:
            used[pid] = used.get(pid, 0) + gain
            seen[pid] = process(pid, parent, io=used[pid])
        sums = accounts.update(seen.values())
        if sums is not None:
            assert sums.read_bytes >= before
            before = sums.read_bytes


def test_this_very_process():
    time = Clock(os.sysconf("SC_CLK_TCK"), 0.0)
    me = read_process("/proc", os.getpid(), time, None, io=True)
    assert (me.pid, me.parent, me.uid) == (os.getpid(), os.getppid(), os.getuid())
    assert me.counters.read_characters > 0


def test_names_may_hold_anything(node):
    node.process(10, program="a) R 1 (b\n", cpu=(100, 200, 300, 400))
    found = read_process(str(node.proc), 10, Clock(100, 0.0), None, io=False)
    assert (found.program, found.parent) == ("a) R 1 (b\n", 1)
    assert found.counters[:2] == (4.0, 6.0)


@given(st.binary())
def test_any_bytes_are_an_environment(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("proc")
    (place / "1").mkdir()
    (place / "1" / "environ").write_bytes(b"A=1\0" + data)
    assert read_environ(str(place), 1, lambda name: name == "A")["A"] is not None


def test_io_of_a_jobs_processes_is_summed_where_the_kernel_counts_none(node):
    node.job(pids=[10, 11])
    node.process(10, io=(1, 20, 300, 4000))
    node.process(11, io=(1, 20, 300, 4000), started=60_000)
    jobs = node.jobs()
    jobs.update()
    assert samples(jobs)["process_io_written_characters_total", "1"] == 8000
    node.end_process(11)
    (node.cgroup / "system.slice/slurmstepd.scope/job_1/step_batch/user/task_0/cgroup.procs"
     ).write_text("10\n")  # fmt: skip
    node.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["process_io_written_characters_total", "1"] == 8000


def test_programs_inside_a_job(node):
    node.job(pids=[10, 11])
    node.process(10, program="bwa", cpu=(900, 100, 0, 0))
    node.process(11, program="sort", cpu=(100, 0, 0, 0))
    jobs = node.jobs(executables=1)
    jobs.update()
    numbers = samples(jobs)
    assert numbers["executable_cpu_seconds_total", "1", "bwa"] == 10
    assert ("executable_cpu_seconds_total", "1", "sort") not in numbers


@pytest.mark.parametrize(
    ("environ", "read"),
    [
        (b"A=1\0" + b"x" * 500_000 + b"\0B=2\0", {"A": "1"}),
        (b"A=" + b"x" * 500_000, {}),
        (b"A=" + b"x" * 100_000 + b"\0B=2\0", {"A": "x" * 4096, "B": "2"}),
        (b"A=" + "é".encode() * 50_000 + b"\0", {"A": "é" * 4096}),
        (b"x" * (128 * 1024 - 4) + b"\0A=1\0", {}),
    ],
)
def test_only_the_beginning_of_an_environment_is_read(node, environ, read):
    node.process(10, environ=environ)
    assert read_environ(str(node.proc), 10, lambda name: name in ("A", "B")) == read


def test_gpu_variables_that_fill_the_memory_are_not_kept(node):
    node.job(pids=range(10, 26))
    for pid in range(10, 26):
        each = b"".join(b"CUDA_VISIBLE_DEVICES%d=%0100d\0" % (n, pid) for n in range(1000))
        node.process(pid, environ=b"SLURM_JOB_GPUS=3\0" + (each if pid > 10 else b""))
    jobs = node.jobs()
    jobs.update()
    kept = [settings for holder in jobs.holders() for settings in holder.environs]
    assert kept == [{"SLURM_JOB_GPUS": "3"}]


def interfaces(*names):
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
def test_a_job_with_more_interfaces_than_anybody_reads_shows_none(node, names, shown):
    node.job(pids=[10])
    place = node.process(10)
    (place / "ns").mkdir()
    (place / "net").mkdir()
    (place / "ns/net").touch()
    (node.proc / "1/ns/net").touch()
    (place / "net/dev").write_text(interfaces(*names))
    jobs = node.jobs(metrics=("network",))
    jobs.update()
    series = samples(jobs)
    assert {key[2] for key in series if key[0] == "network_receive_bytes_total"} == shown


def test_open_files_on_demand(node):
    node.job(pids=[10])
    place = node.process(10) / "fd"
    place.mkdir()
    for number in range(3):
        (place / str(number)).touch()
    jobs = node.jobs(metrics=("open-files",))
    jobs.update()
    assert samples(jobs)["open_files", "1"] == 3
    assert ("open_files_limit", "1") not in samples(jobs)  # the file is not there


@pytest.mark.parametrize(
    ("soft", "shown"), [("1024", 2048), ("unlimited", None), ("9" * 400, None), ("1_000", None)]
)
def test_the_limit_of_open_files_is_that_of_all_processes_together(node, soft, shown):
    node.job(pids=[10, 11])
    for pid in (10, 11):
        text = f"Limit Soft Hard Units\nMax open files            {soft}  1048576  files\n"
        (node.process(pid) / "limits").write_text(text)
    jobs = node.jobs(metrics=("open-files",))
    jobs.update()
    assert samples(jobs).get(("open_files_limit", "1")) == shown


def working(node):
    """A job whose process writes on, and what a scrape shows of it."""
    node.job(pids=[10])
    place = node.process(10, io=(0, 100, 0, 0))
    jobs = node.jobs()
    jobs.update()
    jobs.scanner.start()
    return jobs, place


def written(jobs):
    return samples(jobs)["process_io_written_bytes_total", "1"]


def test_each_scrape_has_the_processes_looked_at_for_the_next_one(node):
    jobs, place = working(node)
    assert written(jobs) == 100
    (place / "io").write_text("read_bytes: 0\nwrite_bytes: 500\nrchar: 0\nwchar: 0\n")
    node.now += 5  # less than the interval of the looks
    assert written(jobs) == 100  # a scrape waits for no look
    wait_until(lambda: jobs.table.all()[0].last_scan.processes.written_bytes == 500)


def test_samples_have_the_processes_as_they_are_now(node):
    jobs, place = working(node)
    for number in (500, 900):
        (place / "io").write_text(f"read_bytes: 0\nwrite_bytes: {number}\nrchar: 0\nwchar: 0\n")
        node.now += 5
        ((_, reading),) = jobs.readings()
        assert reading.processes.written_bytes == number


def test_when_a_process_ends_the_others_are_looked_at(node):
    with subprocess.Popen(["sleep", "60"]) as child:
        node.job(pids=[10, child.pid])
        place = node.process(10, io=(0, 100, 0, 0))
        node.process(child.pid, started=60_000)
        jobs = node.jobs()
        jobs.update()
        jobs.scanner.start()
        (place / "io").write_text("read_bytes: 0\nwrite_bytes: 500\nrchar: 0\nwchar: 0\n")
        node.now += 1
        child.kill()
    wait_until(lambda: jobs.table.all()[0].last_scan.processes.written_bytes == 500)

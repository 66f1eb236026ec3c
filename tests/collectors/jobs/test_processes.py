"""Sums over processes never fall and count nothing twice."""

import os

from hypothesis import given
from hypothesis import strategies as st

from collectors.jobs.processes import Accounts, Clock, Counters, Process, read_environ, read_process
from tests.collectors.jobs.nodes import samples


def process(pid, parent=1, cpu=0.0, io=0.0, started=1.0):
    counters = Counters(cpu, 0.0, io, io, io, io)
    return Process(pid, started, parent, 1000, 1, "a.out", cpu, counters)


def test_what_an_ended_process_used_is_kept():
    accounts = Accounts()
    accounts.update([process(10, io=100), process(11, io=50)])
    assert accounts.update([process(10, io=100)]).read_bytes == 150


def test_a_child_that_was_waited_for_is_in_its_parent_already():
    accounts = Accounts()
    accounts.update([process(10, io=100), process(11, parent=10, io=50)])
    assert accounts.update([process(10, io=155)]).read_bytes == 155


def test_a_parent_that_gained_less_did_not_wait_for_it():
    accounts = Accounts()
    accounts.update([process(10, io=100), process(11, parent=10, io=50)])
    assert accounts.update([process(10, io=120)]).read_bytes == 150


def test_a_grandchild_comes_up_through_an_ended_parent():
    accounts = Accounts()
    accounts.update([process(9, io=1), process(10, 9, io=2), process(11, 10, io=50)])
    assert accounts.update([process(9, io=53)]).read_bytes == 53


def test_a_pid_used_again_is_another_process():
    accounts = Accounts()
    accounts.update([process(10, io=100, started=1.0)])
    assert accounts.update([process(10, io=5, started=2.0)]).read_bytes == 105


def test_a_counter_that_cannot_be_read_of_one_process_has_no_sum():
    blind = process(11)._replace(counters=Counters(1.0, 1.0))
    sums = Accounts().update([process(10, cpu=2.0, io=5), blind])
    assert (sums.cpu_user_seconds, sums.read_bytes) == (3.0, None)


@given(st.lists(st.lists(st.tuples(st.integers(2, 6), st.integers(0, 6), st.integers(0, 100)))))
def test_sums_never_fall(looks):
    accounts, before, used = Accounts(), 0.0, {}
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
    jobs.look()
    assert samples(jobs)["process_io_written_characters_total", "1"] == 8000
    node.end_process(11)
    (node.cgroup / "system.slice/slurmstepd.scope/job_1/step_batch/user/task_0/cgroup.procs"
     ).write_text("10\n")  # fmt: skip
    node.now += 20
    jobs._inspector.look()
    assert samples(jobs)["process_io_written_characters_total", "1"] == 8000


def test_programs_inside_a_job(node):
    node.job(pids=[10, 11])
    node.process(10, program="bwa", cpu=(900, 100, 0, 0))
    node.process(11, program="sort", cpu=(100, 0, 0, 0))
    jobs = node.jobs(executables=1)
    jobs.look()
    numbers = samples(jobs)
    assert numbers["executable_cpu_seconds_total", "1", "bwa"] == 10
    assert ("executable_cpu_seconds_total", "1", "sort") not in numbers


def test_open_files_on_demand(node):
    node.job(pids=[10])
    place = node.process(10) / "fd"
    place.mkdir()
    for number in range(3):
        (place / str(number)).touch()
    jobs = node.jobs(metrics=("open-files",))
    jobs.look()
    assert samples(jobs)["open_files", "1"] == 3

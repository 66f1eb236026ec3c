"""Start, end and linger time of jobs: none is lost between scrapes."""

import os
import shutil
import time

import pytest

from batchjob.runtime.logins import login_of
from batchjob_exporter import exposition
from tests.collectors.jobs.nodes import SCOPE, requires_root, samples, users
from tests.helpers.waiting import until


def test_ended_job_keeps_its_final_values_for_two_scrapers(node):
    job = node.add_job(pids=[10])
    node.add_process(10)
    jobs = node.watching_collector()
    assert samples(jobs)["memory_current_bytes", "1"] == 4096

    node.set_cpu(job, (7_000_000, 3_000_000))
    node.set_populated(job, False)
    until(lambda: ("end_time_seconds", "1") in samples(jobs))
    shutil.rmtree(job)
    ended_at = node.now
    for _ in range(2):
        numbers = samples(jobs)
        assert numbers["cpu_seconds_total", "1", "user"] == 7
        assert numbers["cpu_seconds_total", "1", "system"] == 3
        assert numbers["memory_peak_bytes", "1"] == 8192
        assert numbers["end_time_seconds", "1"] == ended_at
        assert ("memory_current_bytes", "1") not in numbers
        node.now += 14


def test_peak_of_threads_is_the_kernels_else_the_most_that_scans_saw(node):
    counted, seen = node.add_job("job_1", pids=[10]), node.add_job("job_2", pids=[11, 12])
    for pid in (10, 11, 12):
        node.add_process(pid)
    (counted / "pids.current").write_text("2\n")
    (counted / "pids.peak").write_text("300\n")
    jobs = node.collector()
    jobs.update()
    node.remove_process(12)
    (seen / "step_batch/user/task_0/cgroup.procs").write_text("11\n")
    node.now += 60
    jobs.update()
    numbers = samples(jobs)
    assert [numbers["threads", jobid] for jobid in "12"] == [2, 1]
    assert numbers["threads_peak", "1", "counted"] == 300
    assert numbers["threads_peak", "2", "seen"] == 2
    assert ("threads_peak", "1", "seen") not in numbers


def test_ended_job_is_shown_for_the_linger_time(node):
    job = node.add_job(pids=[10])
    node.add_process(10)
    jobs = node.watching_collector(linger=60)
    shutil.rmtree(job)
    until(lambda: ("end_time_seconds", "1") in samples(jobs))
    node.now += 59
    assert ("cpu_seconds_total", "1", "user") in samples(jobs)
    node.now += 2
    samples(jobs)
    assert ("cpu_seconds_total", "1", "user") not in samples(jobs)


@pytest.mark.parametrize("offset_seconds", [3600, -3600])
def test_linger_time_ignores_wall_clock_changes(node, offset_seconds):
    job = node.add_job(pids=[10])
    node.add_process(10)
    jobs = node.watching_collector(linger=60)
    shutil.rmtree(job)
    until(lambda: ("end_time_seconds", "1") in samples(jobs))
    node.clock_offset_seconds = offset_seconds
    node.now += 59
    samples(jobs)
    assert ("cpu_seconds_total", "1", "user") in samples(jobs)
    assert jobs.usage()[0].ended_at == node.host.monotonic() - 59
    node.now += 2
    samples(jobs)
    assert ("cpu_seconds_total", "1", "user") not in samples(jobs)


def test_start_time_includes_the_fraction_of_the_boot_time(node):
    """btime of /proc/stat is cut to the second."""
    booted = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
    (node.proc / "stat").write_text(f"btime {int(booted)}\n")
    node.add_job(pids=[10])
    node.add_process(10, started=50_025)
    jobs = node.collector()
    jobs.update()
    shown = samples(jobs)["start_time_seconds", "1"]
    assert shown == pytest.approx(booted + 500.25, abs=0.01)


def test_job_that_starts_between_scrapes_is_found(node):
    jobs = node.watching_collector()
    node.add_process(20)
    job = node.add_job("job_2", pids=[20])
    until(lambda: jobs.table.all())
    jobs.scanner.scan()
    shutil.rmtree(job)
    until(lambda: ("end_time_seconds", "2") in samples(jobs))
    assert samples(jobs)["cpu_seconds_total", "2", "user"] == 1


def collector_after_short_job(node, scope=SCOPE, name="job_2", uid=0):
    """A collector whose only job ended before its processes were read: /proc has no 20."""
    job = node.add_job(name, scope=scope, pids=[20])
    for each in (job, job.parent) if uid else ():
        os.chown(each, uid, uid)
    jobs = node.collector()
    jobs.walker.walk_all(is_new=True)
    jobs.watcher.start()
    node.set_populated(job, False)
    until(lambda: jobs.table.all()[0].ended)
    shutil.rmtree(job)
    until(lambda: jobs.table.all()[0].has_vanished(node.host.now()))
    jobs.scanner.scan()
    return jobs


def test_job_too_short_to_find_its_owner_is_shown_without(node):
    jobs = collector_after_short_job(node)
    assert users(jobs) == {"2": ""}
    assert samples(jobs)["cpu_seconds_total", "2", "user"] == 1


@requires_root
@pytest.mark.parametrize("uid", [0, 1000])
def test_owner_of_a_short_run_is_the_owner_of_its_directory(node, uid):
    """`batchjob run` creates the directory itself."""
    run = "0f8fad5b-d9cb-469f-a165-70867728950e"
    top = node.cgroup / "system.slice/mine"
    top.mkdir()
    os.chown(top, uid, uid)
    jobs = collector_after_short_job(node, "system.slice/mine/batchjob.slice", f"run-{run}", uid)
    assert users(jobs) == {run: login_of(uid)}
    assert samples(jobs)["cpu_seconds_total", run, "user"] == 1


@requires_root
def test_short_job_in_a_user_writable_tree_is_not_shown(node):
    scope = node.cgroup / "machine.slice/mine/slurmstepd.scope"
    scope.mkdir(parents=True)
    os.chown(scope.parent, 1000, 1000)
    os.chown(scope, 1000, 1000)
    assert users(collector_after_short_job(node, str(scope.relative_to(node.cgroup)))) == {}


def test_job_removed_unnoticed_keeps_its_last_sample(node):
    """On a full node the directory may be gone before a thread of the collector runs."""
    job = node.add_job(pids=[10])
    node.add_process(10, started=99_000)  # 10 s ago
    jobs = node.collector()
    jobs.update()
    assert jobs.sampler.sample() == 1.0
    node.set_cpu(job, (4_000_000, 1_000_000))
    (job / "memory.peak").write_text("99999\n")
    node.now += 1
    jobs.sampler.sample()
    shutil.rmtree(job)
    numbers = samples(jobs)
    assert numbers["cpu_seconds_total", "1", "user"] == 4
    assert numbers["memory_peak_bytes", "1"] == 99999


def test_sampling_interval_is_a_fiftieth_of_the_job_age(node):
    job = node.add_job(pids=[10])
    node.add_process(10, started=0)  # 1000 s ago
    jobs = node.collector()
    jobs.update()
    assert jobs.sampler.sample() == pytest.approx(20.0)
    node.set_cpu(job, (4_000_000, 1_000_000))
    node.now += 19
    assert jobs.sampler.sample() == pytest.approx(1.0)
    assert jobs.table.all()[0].reading.cpu_user_seconds == 1
    node.now += 2
    jobs.sampler.sample()
    assert jobs.table.all()[0].reading.cpu_user_seconds == 4


def test_sampler_sleeps_without_jobs(node):
    assert node.collector().sampler.sample() is None


def test_slurm_root_that_appears_later_is_found(node):
    jobs = node.watching_collector()
    node.add_process(20)
    node.add_job("job_2", scope="kubepods.slice/pod1/node7_slurmstepd.scope", pids=[20])
    until(lambda: jobs.table.all())
    jobs.scanner.scan()
    assert users(jobs).keys() == {"2"}


def test_ended_job_runs_again_when_processes_return(node):
    """An interactive job is empty between two steps."""
    job = node.add_job(pids=[10])
    node.add_process(10)
    jobs = node.watching_collector()
    node.set_populated(job, False)
    until(lambda: ("end_time_seconds", "1") in samples(jobs))
    node.set_populated(job, True)
    until(lambda: ("end_time_seconds", "1") not in samples(jobs))
    node.set_cpu(job, (9_000_000, 0))
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 9


def test_requeued_job_replaces_the_series_of_its_first_run(node):
    """A requeued job has the same id and counts from 0: an ordinary reset."""
    job = node.add_job(cpu=(50_000_000, 0), pids=[10])
    node.add_process(10)
    jobs = node.watching_collector()
    shutil.rmtree(job)
    until(lambda: ("end_time_seconds", "1") in samples(jobs))
    node.add_job(cpu=(2_000_000, 0), pids=[10])
    until(lambda: jobs.table.running())
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert numbers["cpu_seconds_total", "1", "user"] == 2
    assert ("end_time_seconds", "1") not in numbers


def add_run(node, sluid, pid, cpu):
    """One run of Slurm job 1; 26.05 names the directory of each by a new SLUID."""
    node.add_process(pid, uid=0, program="slurmstepd: [1.batch]", started=1)
    node.add_process(pid + 1)
    return node.add_job(sluid, cpu=cpu, pids=[pid, pid + 1])


def test_running_run_of_a_requeued_job_hides_the_lingering_one(node):
    first = add_run(node, "s8N5M8DDGS5600", 10, (50_000_000, 0))
    jobs = node.watching_collector()
    shutil.rmtree(first)
    until(lambda: ("end_time_seconds", "1") in samples(jobs))
    second = add_run(node, "s8N5M8DDHNSJ00", 20, (2_000_000, 0))
    until(lambda: jobs.table.running())
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert numbers["cpu_seconds_total", "1", "user"] == 2
    assert numbers["batchjob_jobs", ""] == 1
    assert ("end_time_seconds", "1") not in numbers
    assert 'sluid="s8N5M8DDHNSJ00"' in exposition.render(jobs.collect()).decode()

    shutil.rmtree(second)  # the later run stays, although the earlier one still lingers
    until(lambda: ("end_time_seconds", "1") in samples(jobs))
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 2


@pytest.mark.parametrize(
    "scopes",
    [
        (SCOPE, SCOPE, SCOPE),
        (SCOPE, "batch.slice/slurmstepd.scope", "batch.slice/n1_slurmstepd.scope"),
        ("kubepods/pod1/n1_slurmstepd.scope", SCOPE, "kubepods/pod2/n1_slurmstepd.scope"),
    ],
)
def test_running_run_hides_two_that_linger_wherever_its_directory_is(node, scopes):
    """slurmd was restarted in another slice, and under another name of its node."""
    jobs = node.watching_collector()
    names = ("s8N5M8DDGS5600", "s8N5M8DDHNSJ00", "s8N5M8DDJ0AB00")
    for number, (scope, name) in enumerate(zip(scopes, names, strict=True)):
        pid = 10 * number + 10
        node.add_process(pid, uid=0, program="slurmstepd: [1.batch]", started=1 + number)
        node.add_process(pid + 1, started=2 + number)
        last = node.add_job(name, scope, cpu=(1_000_000 * pid, 0), pids=[pid, pid + 1])
        jobs.update()
        assert samples(jobs)["cpu_seconds_total", "1", "user"] == pid
        if name != names[-1]:
            shutil.rmtree(last)
            jobs.update()
            until(lambda: ("end_time_seconds", "1") in samples(jobs))
            node.now += 20
    assert len(jobs.table.all()) == 3
    numbers = samples(jobs)
    assert numbers["batchjob_jobs", ""] == 1
    assert ("end_time_seconds", "1") not in numbers


def test_orphans_of_an_earlier_run_do_not_hide_the_later_run(node):
    add_run(node, "s8N5M8DDGS5600", 10, (50_000_000, 0))
    jobs = node.watching_collector()
    add_run(node, "s8N5M8DDHNSJ00", 20, (2_000_000, 0))
    until(lambda: len(jobs.table.running()) == 2)
    jobs.scanner.scan()
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 2


@pytest.mark.parametrize("names", [("s8N5M8DDGS5600", "s8N5M8DDHNSJ00"),
                                   ("s8N5M8DDHNSJ00", "s8N5M8DDGS5600")])  # fmt: skip
@pytest.mark.parametrize("is_first_made_last", [False, True])
def test_orphans_found_at_the_start_do_not_hide_the_later_run(node, names, is_first_made_last):
    """Directories are listed in any order."""
    node.add_process(11, environ=b"SLURM_JOB_ID=1\0", started=200)
    node.add_process(20, uid=0, program="slurmstepd: [1.batch]", started=50_100)
    node.add_process(21, started=50_101)
    runs = [(names[0], (50_000_000, 0), [11]), (names[1], (2_000_000, 0), [20, 21])]
    for name, cpu, pids in reversed(runs) if is_first_made_last else runs:
        node.add_job(name, cpu=cpu, pids=pids)
    assert samples(node.watching_collector())["cpu_seconds_total", "1", "user"] == 2


def test_counters_do_not_fall_when_one_of_two_roots_is_removed(node):
    one = node.add_job(scope="system.slice/n1_slurmstepd.scope", cpu=(5_000_000, 0), pids=[10])
    node.add_job(scope="system.slice/n2_slurmstepd.scope", cpu=(3_000_000, 0), pids=[11])
    node.add_process(10)
    node.add_process(11)
    jobs = node.watching_collector()
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 8
    assert samples(jobs)["memory_current_bytes", "1"] == 8192
    shutil.rmtree(one)
    until(lambda: samples(jobs)["memory_current_bytes", "1"] == 4096)
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 8


def test_root_that_ends_between_scans_is_counted_to_its_end(node):
    node.add_job(scope="system.slice/n1_slurmstepd.scope", cpu=(5_000_000, 0), pids=[10])
    other = node.add_job(scope="system.slice/n2_slurmstepd.scope", cpu=(1_000_000, 0), pids=[11])
    node.add_process(10)
    node.add_process(11)
    jobs = node.watching_collector()
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 6
    node.set_cpu(other, (3_000_000, 0))
    node.set_populated(other, False)
    until(lambda: jobs.table.all()[0].reading.cpu_user_seconds == 8)
    shutil.rmtree(other)
    until(lambda: len(jobs.table.all()[0].directories()) == 1)
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 8


def test_number_of_jobs_is_limited_and_excess_is_counted(node):
    for number in range(5):
        node.add_job(f"job_{number}", pids=[10 + number])
        node.add_process(10 + number)
    jobs = node.collector(max=3)
    jobs.update()
    assert len(users(jobs)) == 3
    assert samples(jobs)["batchjob_jobs_ignored", "", "max"] == 2


@pytest.mark.parametrize("stale_first", [True, False])
def test_stale_directories_do_not_count_toward_the_job_limit(node, stale_first):
    stale = [f"job_{1000 + number}" for number in range(20)]
    alive = [f"job_{number}" for number in range(3)]
    for name in stale + alive if stale_first else alive + stale:
        node.add_job(name, pids=[10 + int(name[4:])] if name in alive else [])
    for number in range(3):
        node.add_process(10 + number)
    jobs = node.collector(max=3)
    jobs.update()
    assert users(jobs).keys() == {"0", "1", "2"}
    assert samples(jobs)["batchjob_jobs_ignored", "", "max"] == 0


def test_oldest_ended_jobs_are_dropped_first(node):
    directories = []
    for number in range(3):
        directories.append(node.add_job(f"job_{number}", pids=[10 + number]))
        node.add_process(10 + number)
    jobs = node.watching_collector(max_ended=2)
    for job in directories:
        node.now += 1
        shutil.rmtree(job)
        name = job.name.removeprefix("job_")
        until(lambda name=name: ("end_time_seconds", name) in samples(jobs))
    until(lambda: users(jobs).keys() == {"1", "2"})


def test_scrapes_find_jobs_without_inotify(node, monkeypatch, caplog):
    def refuse(self):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("collectors.jobs.discovery.inotify.Inotify.__init__", refuse)
    jobs = node.collector()
    assert "jobs are found only at scrapes" in caplog.text
    node.add_job(pids=[10])
    node.add_process(10)
    samples(jobs)
    jobs.scanner.scan()
    assert users(jobs).keys() == {"1"}


def test_cgroup_mount_may_appear_later(node):
    shutil.rmtree(node.cgroup)
    jobs = node.collector()
    jobs.update()
    assert users(jobs) == {}
    (node.cgroup / SCOPE).mkdir(parents=True)
    (node.cgroup / "cgroup.controllers").write_text("\n")
    node.add_job(pids=[10])
    node.add_process(10)
    jobs.update()
    assert users(jobs).keys() == {"1"}


@pytest.mark.parametrize("populated", [True, False])
def test_directories_at_startup_are_jobs_only_with_processes(node, populated):
    node.add_job(pids=[10] if populated else [])
    node.add_process(10)
    jobs = node.collector()
    jobs.update()
    node.now += 5
    jobs.scanner.scan()
    assert users(jobs).keys() == ({"1"} if populated else set())

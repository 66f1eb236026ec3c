"""Births, ends, lingering: no job is lost, whoever scrapes when."""

import os
import shutil
import time

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from batchjob.runtime.logins import login_of
from batchjob_exporter import exposition
from tests.collectors.jobs.nodes import SCOPE, as_root, samples, users, wait_until


def test_a_finished_job_keeps_its_final_values_for_two_servers(node):
    job = node.job(pids=[10])
    node.process(10)
    jobs = node.listening()
    assert samples(jobs)["memory_current_bytes", "1"] == 4096

    node.set_cpu(job, (7_000_000, 3_000_000))
    node.populate(job, False)
    wait_until(lambda: ("end_time_seconds", "1") in samples(jobs))
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


def test_it_lingers_for_the_time_chosen(node):
    job = node.job(pids=[10])
    node.process(10)
    jobs = node.listening(linger=60)
    shutil.rmtree(job)
    wait_until(lambda: ("end_time_seconds", "1") in samples(jobs))
    node.now += 59
    assert ("cpu_seconds_total", "1", "user") in samples(jobs)
    node.now += 2
    samples(jobs)
    assert ("cpu_seconds_total", "1", "user") not in samples(jobs)


@pytest.mark.parametrize("set_by", [3600, -3600])
def test_a_clock_that_is_set_changes_nothing_of_that(node, set_by):
    job = node.job(pids=[10])
    node.process(10)
    jobs = node.listening(linger=60)
    shutil.rmtree(job)
    wait_until(lambda: ("end_time_seconds", "1") in samples(jobs))
    node.clock_set_by = set_by
    node.now += 59
    samples(jobs)
    assert ("cpu_seconds_total", "1", "user") in samples(jobs)
    assert jobs.usage()[0].ended_at == node.host.monotonic() - 59
    node.now += 2
    samples(jobs)
    assert ("cpu_seconds_total", "1", "user") not in samples(jobs)


def test_a_start_has_the_fraction_of_the_boot(node):
    """btime of /proc/stat is cut to the second."""
    booted = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
    (node.proc / "stat").write_text(f"btime {int(booted)}\n")
    node.job(pids=[10])
    node.process(10, started=50_025)
    jobs = node.jobs()
    jobs.update()
    shown = samples(jobs)["start_time_seconds", "1"]
    assert shown == pytest.approx(booted + 500.25, abs=0.01)


def test_counters_say_when_they_were_zero_if_asked(node):
    node.job(pids=[10])
    node.process(10, started=50_025)
    jobs = node.jobs(created=True)
    jobs.update()
    text = exposition.render(jobs.collect(), exposition.OPENMETRICS).decode()
    families = {each.name: each for each in openmetrics.text_string_to_metric_families(text)}
    created = {
        sample.labels["mode"]: sample.value
        for sample in families["batchjob_job_cpu_seconds"].samples
        if sample.name == "batchjob_job_cpu_seconds_created"
    }
    assert created == dict.fromkeys(("user", "system"), node.now - 1000 + 500.25)
    assert list(jobs.created().values()) == [node.now - 1000 + 500.25]
    assert node.jobs().created() == {}
    assert "_created" not in exposition.render(jobs.collect()).decode()
    plain = exposition.render(node_without_creation(node), exposition.OPENMETRICS).decode()
    assert "_created" not in plain


def node_without_creation(node):
    jobs = node.jobs()
    jobs.update()
    return jobs.collect()


def test_a_birth_is_seen_between_scrapes(node):
    jobs = node.listening()
    node.process(20)
    job = node.job("job_2", pids=[20])
    wait_until(lambda: jobs.table.all())
    jobs.scanner.scan()
    shutil.rmtree(job)
    wait_until(lambda: ("end_time_seconds", "2") in samples(jobs))
    assert samples(jobs)["cpu_seconds_total", "2", "user"] == 1


def short_job(node, scope=SCOPE, name="job_2", uid=0):
    """A job that has begun and ended when its processes are looked at: /proc has no 20."""
    job = node.job(name, scope=scope, pids=[20])
    for each in (job, job.parent) if uid else ():
        os.chown(each, uid, uid)
    jobs = node.jobs()
    jobs.walker.walk_all(is_new=True)
    jobs.watcher.start()
    node.populate(job, False)
    wait_until(lambda: jobs.table.all()[0].ended)
    shutil.rmtree(job)
    wait_until(lambda: jobs.table.all()[0].has_vanished(node.host.monotonic()))
    jobs.scanner.scan()
    return jobs


def test_a_job_too_short_for_a_look_at_its_owner_is_shown_without(node):
    jobs = short_job(node)
    assert users(jobs) == {"2": ""}
    assert samples(jobs)["cpu_seconds_total", "2", "user"] == 1


@as_root
@pytest.mark.parametrize("uid", [0, 1000])
def test_a_run_too_short_for_that_is_of_who_made_its_directory(node, uid):
    """`batchjob run` makes it itself."""
    run = "0f8fad5b-d9cb-469f-a165-70867728950e"
    top = node.cgroup / "system.slice/mine"
    top.mkdir()
    os.chown(top, uid, uid)
    jobs = short_job(node, "system.slice/mine/batchjob.slice", f"run-{run}", uid)
    assert users(jobs) == {run: login_of(uid)}
    assert samples(jobs)["cpu_seconds_total", run, "user"] == 1


@as_root
def test_but_not_in_a_tree_where_a_user_may_make_directories(node):
    scope = node.cgroup / "machine.slice/mine/slurmstepd.scope"
    scope.mkdir(parents=True)
    os.chown(scope.parent, 1000, 1000)
    os.chown(scope, 1000, 1000)
    assert users(short_job(node, str(scope.relative_to(node.cgroup)))) == {}


def test_a_job_whose_end_nobody_saw_keeps_its_last_sample(node):
    """On a full node the directory may be gone before any thread of ours runs."""
    job = node.job(pids=[10])
    node.process(10, started=99_000)  # 10 s ago
    jobs = node.jobs()
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


def test_an_old_job_is_sampled_after_another_fiftieth_of_its_age(node):
    job = node.job(pids=[10])
    node.process(10, started=0)  # 1000 s ago
    jobs = node.jobs()
    jobs.update()
    assert jobs.sampler.sample() == pytest.approx(20.0)
    node.set_cpu(job, (4_000_000, 1_000_000))
    node.now += 19
    assert jobs.sampler.sample() == pytest.approx(1.0)
    assert jobs.table.all()[0].reading.cpu_user_seconds == 1
    node.now += 2
    jobs.sampler.sample()
    assert jobs.table.all()[0].reading.cpu_user_seconds == 4


def test_a_node_without_jobs_is_not_woken(node):
    assert node.jobs().sampler.sample() is None


def test_a_root_that_appears_later_is_found(node):
    jobs = node.listening()
    node.process(20)
    node.job("job_2", scope="kubepods.slice/pod1/node7_slurmstepd.scope", pids=[20])
    wait_until(lambda: jobs.table.all())
    jobs.scanner.scan()
    assert users(jobs).keys() == {"2"}


def test_processes_that_come_back_make_it_live_again(node):
    """An interactive job is empty between two steps."""
    job = node.job(pids=[10])
    node.process(10)
    jobs = node.listening()
    node.populate(job, False)
    wait_until(lambda: ("end_time_seconds", "1") in samples(jobs))
    node.populate(job, True)
    wait_until(lambda: ("end_time_seconds", "1") not in samples(jobs))
    node.set_cpu(job, (9_000_000, 0))
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 9


def test_a_new_run_takes_over_the_series_of_the_old_one(node):
    """A requeued job has the same id and counts from 0: an ordinary reset."""
    job = node.job(cpu=(50_000_000, 0), pids=[10])
    node.process(10)
    jobs = node.listening()
    shutil.rmtree(job)
    wait_until(lambda: ("end_time_seconds", "1") in samples(jobs))
    node.job(cpu=(2_000_000, 0), pids=[10])
    wait_until(lambda: jobs.table.running())
    jobs.scanner.scan()
    numbers = samples(jobs)
    assert numbers["cpu_seconds_total", "1", "user"] == 2
    assert ("end_time_seconds", "1") not in numbers


def test_when_one_of_two_roots_goes_the_sum_does_not_fall(node):
    one = node.job(scope="system.slice/n1_slurmstepd.scope", cpu=(5_000_000, 0), pids=[10])
    node.job(scope="system.slice/n2_slurmstepd.scope", cpu=(3_000_000, 0), pids=[11])
    node.process(10)
    node.process(11)
    jobs = node.listening()
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 8
    assert samples(jobs)["memory_current_bytes", "1"] == 8192
    shutil.rmtree(one)
    wait_until(lambda: samples(jobs)["memory_current_bytes", "1"] == 4096)
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 8


def test_a_root_that_ends_between_two_looks_counts_to_its_end(node):
    node.job(scope="system.slice/n1_slurmstepd.scope", cpu=(5_000_000, 0), pids=[10])
    other = node.job(scope="system.slice/n2_slurmstepd.scope", cpu=(1_000_000, 0), pids=[11])
    node.process(10)
    node.process(11)
    jobs = node.listening()
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 6
    node.set_cpu(other, (3_000_000, 0))
    node.populate(other, False)
    wait_until(lambda: jobs.table.all()[0].reading.cpu_user_seconds == 8)
    shutil.rmtree(other)
    wait_until(lambda: len(jobs.table.all()[0].directories()) == 1)
    assert samples(jobs)["cpu_seconds_total", "1", "user"] == 8


def test_the_number_of_jobs_is_bounded_and_the_rest_counted(node):
    for number in range(5):
        node.job(f"job_{number}", pids=[10 + number])
        node.process(10 + number)
    jobs = node.jobs(max=3)
    jobs.update()
    assert len(users(jobs)) == 3
    assert samples(jobs)["batchjob_jobs_ignored", "", "max"] == 2


@pytest.mark.parametrize("stale_first", [True, False])
def test_directories_left_behind_take_no_place_of_a_job(node, stale_first):
    stale = [f"job_{1000 + number}" for number in range(20)]
    alive = [f"job_{number}" for number in range(3)]
    for name in stale + alive if stale_first else alive + stale:
        node.job(name, pids=[10 + int(name[4:])] if name in alive else [])
    for number in range(3):
        node.process(10 + number)
    jobs = node.jobs(max=3)
    jobs.update()
    assert users(jobs).keys() == {"0", "1", "2"}
    assert samples(jobs)["batchjob_jobs_ignored", "", "max"] == 0


def test_of_too_many_finished_jobs_the_oldest_go_first(node):
    made = []
    for number in range(3):
        made.append(node.job(f"job_{number}", pids=[10 + number]))
        node.process(10 + number)
    jobs = node.listening(max_ended=2)
    for job in made:
        node.now += 1
        shutil.rmtree(job)
        name = job.name.removeprefix("job_")
        wait_until(lambda name=name: ("end_time_seconds", name) in samples(jobs))
    wait_until(lambda: users(jobs).keys() == {"1", "2"})


def test_without_inotify_scrapes_find_jobs(node, monkeypatch, caplog):
    def refuse(self):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("collectors.jobs.discovery.inotify.Inotify.__init__", refuse)
    jobs = node.jobs()
    assert "jobs are found only at scrapes" in caplog.text
    node.job(pids=[10])
    node.process(10)
    samples(jobs)
    jobs.scanner.scan()
    assert users(jobs).keys() == {"1"}


def test_the_mount_may_be_missing(node):
    shutil.rmtree(node.cgroup)
    jobs = node.jobs()
    jobs.update()
    assert users(jobs) == {}
    (node.cgroup / SCOPE).mkdir(parents=True)
    (node.cgroup / "cgroup.controllers").write_text("\n")
    node.job(pids=[10])
    node.process(10)
    jobs.update()
    assert users(jobs).keys() == {"1"}


@pytest.mark.parametrize("populated", [True, False])
def test_directories_found_at_start_count_only_with_processes(node, populated):
    node.job(pids=[10] if populated else [])
    node.process(10)
    jobs = node.jobs()
    jobs.update()
    node.now += 5
    jobs.scanner.scan()
    assert users(jobs).keys() == ({"1"} if populated else set())

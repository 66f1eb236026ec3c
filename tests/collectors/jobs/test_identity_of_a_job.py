"""The owner is the kernel's word; what a user can write himself is not believed."""

import os
import threading

import pytest

from batchjob.schedulers.slurm.node import jobid_from_title
from collectors.jobs.processes.user_names import UserNames
from collectors.jobs.state.job_identity import MAX_LABEL_LENGTH
from tests.collectors.jobs.nodes import SCOPE, as_root, samples, users


def look(node, **options):
    jobs = node.jobs(**options)
    jobs.update()
    return jobs


def info(jobs):
    (family,) = [f for f in jobs.collect() if f.metric.name == "batchjob_job_info"]
    return family.samples[0][0]


def test_the_owner_is_the_uid_of_the_jobs_processes(node):
    node.job(pids=[10, 11])
    node.process(10, uid=0, started=1)
    node.process(11, uid=54321)
    assert users(look(node)) == {"1": "54321"}


def test_environ_tells_account_and_partition_but_never_the_owner(node):
    node.job(pids=[10])
    environ = b"SLURM_JOB_ACCOUNT=physics\0SLURM_JOB_PARTITION=gpu\0USER=root\0SLURM_JOB_UID=0\0"
    node.process(10, uid=54321, environ=environ)
    jobs = look(node)
    assert users(jobs) == {"1": "54321"}
    assert 'account="physics",partition="gpu"' in info(jobs)


def test_environ_of_somebody_elses_process_is_not_read(node):
    node.job(pids=[10, 11])
    node.process(10, uid=54321, started=10)
    node.process(11, uid=0, environ=b"SLURM_JOB_ACCOUNT=root\0")
    assert "account" not in info(look(node))


def test_environ_signed_by_another_job_tells_nothing(node):
    node.job(pids=[10])
    told = (b"SLURM_JOB_ID=7", b"SLURM_JOB_ACCOUNT=other", b"SLURM_JOB_ID_HET_GROUP_0=7")
    node.process(10, environ=b"\0".join(told))
    made = info(look(node))
    assert "account" not in made
    assert 'het_job_id="7"' in made


def test_a_job_of_root_alone_is_roots_after_a_while(node):
    node.job(pids=[10])
    node.process(10, uid=0)
    jobs = look(node)
    assert users(jobs) == {}
    node.now += 3
    jobs.scanner.scan()
    assert users(jobs) == {"1": "root"}


def test_roots_fork_of_the_scheduler_is_not_the_jobs_owner(node):
    """A task that is slow to become its user's; of a short job it is perhaps all that is seen."""
    node.job(pids=[10])
    node.process(10, uid=0, program="slurmstepd")
    jobs = look(node)
    node.now += 3
    jobs.scanner.scan()
    assert users(jobs) == {"1": ""}
    assert samples(jobs)["processes", "1"] == 0


def test_a_job_that_is_slow_to_become_its_users_is_looked_at_again_soon(node):
    job = node.job(pids=[10])
    node.process(10, uid=0, program="slurmstepd")
    jobs = look(node)
    node.now += 10
    assert jobs.scanner.scan() <= 0.5
    assert users(jobs) == {"1": ""}
    node.process(11, uid=54321)
    (job / "step_batch/user/task_0/cgroup.procs").write_text("11\n")
    node.now += 0.5
    assert jobs.scanner.scan() > 0.5
    assert users(jobs) == {"1": "54321"}


def test_an_owner_who_stays_unknown_is_left_empty(node):
    """hidepid or a foreign pid namespace: /proc does not show the processes."""
    jobs = look(node)
    node.job(pids=[10])
    jobs.walker.walk_all(is_new=True)
    jobs.scanner.scan()
    assert users(jobs) == {}
    node.now += 3
    jobs.scanner.scan()
    assert users(jobs) == {"1": ""}
    assert ("processes", "1") not in samples(jobs)


def test_but_a_users_job_may_be_slow_to_leave_root(node):
    job = node.job(pids=[10])
    node.process(10, uid=0)
    jobs = look(node)
    node.now += 3
    jobs.update()
    assert users(jobs) == {"1": "root"}
    node.process(11, uid=54321)
    (job / "step_batch/user/task_0/cgroup.procs").write_text("10\n11\n")
    node.now += 20
    jobs.update()
    assert users(jobs) == {"1": "54321"}


def test_a_sluid_becomes_the_job_id_by_the_title_of_roots_slurmstepd(node):
    node.job("s5K1KKYAYG5D00", pids=[10, 11])
    node.process(10, uid=0, program="slurmstepd: [4749.batch]")
    node.process(11, environ=b"SLURM_JOB_ID=1\0")
    assert users(look(node)).keys() == {"4749"}


@pytest.mark.parametrize(
    ("title", "jobid"),
    [
        (b"slurmstepd: [4749.batch]\0", "4749"),
        (b"slurmstepd: [12.0+1]", "12"),
        (b"slurmstepd infinity", None),
        (b"/bin/sh slurmstepd: [4749.0]", None),
    ],
)
def test_titles_of_slurmstepd(title, jobid):
    assert jobid_from_title(title) == jobid


@as_root
def test_a_tree_in_a_users_own_cgroup_is_not_believed(node):
    job = node.job(scope="user.slice/mine/slurmstepd.scope", name="job_123", pids=[10])
    mine = node.job(scope="machine.slice/mine/slurmstepd.scope", name="job_7", pids=[11])
    node.process(10, uid=1000)
    node.process(11, uid=1000)
    for path in (job.parent.parent, mine.parent.parent):
        for top, directories, files in os.walk(path):
            for name in (*directories, *files, "."):
                os.chown(os.path.join(top, name), 1000, 1000)
    jobs = look(node)
    assert users(jobs) == {}
    assert samples(jobs)["batchjob_jobs_ignored", "", "untrusted"] == 1


def test_one_id_with_two_owners_is_nobodys(node):
    node.job(scope="system.slice/n1_slurmstepd.scope", pids=[10])
    node.job(scope="system.slice/n2_slurmstepd.scope", pids=[11])
    node.process(10, uid=1000)
    node.process(11, uid=2000)
    jobs = look(node)
    assert users(jobs) == {}
    assert samples(jobs)["batchjob_jobs_ignored", "", "conflict"] == 1


def test_hostile_values_are_cut_and_escaped(node):
    node.job(pids=[10])
    name = b'we"ird\n\\' + b"x" * 100_000
    node.process(10, environ=b"SLURM_JOB_NAME=" + name + b"\0SLURM_JOB_ACCOUNT=\xff\xfe\0")
    jobs = look(node, name=True)
    assert users(jobs).keys() == {"1"}
    label = info(jobs).partition('name="')[2]
    assert label.startswith(r"we\"ird\n\\x")
    assert len(label) < MAX_LABEL_LENGTH + 10


def test_the_jobs_name_is_off_by_default(node):
    node.job(pids=[10])
    node.process(10, environ=b"SLURM_JOB_NAME=secret\0")
    assert "secret" not in info(look(node))


def test_a_hung_name_service_leaves_the_number_for_the_jobs_life(node):
    hang = threading.Event()
    names = UserNames(look_up=lambda uid: hang.wait() and "alice", deadline=0.05)
    node.job(pids=[10])
    node.process(10, uid=4711)
    jobs = node.jobs(names)
    jobs.update()
    assert users(jobs) == {"1": "4711"}
    assert names.user(5) is None  # at once: the service is known to hang
    hang.set()
    node.now += 60
    jobs.scanner.scan()
    assert users(jobs) == {"1": "4711"}


def test_unknown_uids_are_asked_for_again_later():
    now, known = [0.0], {}
    names = UserNames(look_up=known.get, clock=lambda: now[0])
    assert names.user(7) is None
    known[7] = "grace"
    assert names.user(7) is None
    now[0] += 61
    assert names.user(7) == "grace"


def test_lsf_tells_the_start_in_the_path(node):
    node.job(scope="lsf/c1", name="job.42[3].34071.1700000000", pids=[10])
    node.process(10)
    numbers = samples(look(node))
    assert numbers["start_time_seconds", "42[3]"] == 1_700_000_000


def test_several_slurmd_have_scopes_of_their_own(node):
    node.job(scope=SCOPE, name="job_1", pids=[10])
    node.job(scope="system.slice/n2_slurmstepd.scope", name="job_2", pids=[11])
    node.process(10)
    node.process(11)
    assert users(look(node)).keys() == {"1", "2"}


def test_a_pod_that_hosts_slurm_is_no_job_beside_its_jobs(node):
    pods = "kubepods.slice/kubepods-burstable.slice"
    host = "kubepods-burstable-pod0b6a7a0e_3f0e_4c5e_9d41_2f3a4b5c6d7e.slice"
    plain = "kubepods-burstable-pod1b6a7a0e_3f0e_4c5e_9d41_2f3a4b5c6d7e.slice"
    node.job(scope=pods, name=host, pids=[10])
    node.job(scope=pods, name=plain, pids=[11])
    node.job(scope=f"{pods}/{host}/system.slice/slurmstepd.scope", name="job_5", pids=[12])
    for pid in (10, 11, 12):
        node.process(pid)
    assert users(look(node)).keys() == {"1b6a7a0e-3f0e-4c5e-9d41-2f3a4b5c6d7e", "5"}

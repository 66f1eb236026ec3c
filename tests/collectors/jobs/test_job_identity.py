"""The owner of a job comes from the kernel; what a user can write is not trusted."""

import os
import threading

import pytest

from batchjob.schedulers.slurm.node import jobid_from_title
from collectors.jobs.processes.identifier import UserNames
from collectors.jobs.view import MAX_LABEL_LENGTH
from tests.collectors.jobs.nodes import SCOPE, requires_root, samples, users


def updated_collector(node, **options):
    jobs = node.collector(**options)
    jobs.update()
    return jobs


def job_info_labels(jobs):
    (family,) = [f for f in jobs.collect() if f.metric.name == "batchjob_job_info"]
    return next(family.all_samples())[0]


def test_owner_is_the_uid_of_the_job_processes(node):
    node.add_job(pids=[10, 11])
    node.add_process(10, uid=0, started=1)
    node.add_process(11, uid=54321)
    assert users(updated_collector(node)) == {"1": "54321"}


def test_environ_sets_account_and_partition_but_not_the_owner(node):
    node.add_job(pids=[10])
    environ = b"SLURM_JOB_ACCOUNT=physics\0SLURM_JOB_PARTITION=gpu\0USER=root\0SLURM_JOB_UID=0\0"
    node.add_process(10, uid=54321, environ=environ)
    jobs = updated_collector(node)
    assert users(jobs) == {"1": "54321"}
    assert 'account="physics",partition="gpu"' in job_info_labels(jobs)


def test_environ_of_another_users_process_is_not_read(node):
    node.add_job(pids=[10, 11])
    node.add_process(10, uid=54321, started=10)
    node.add_process(11, uid=0, environ=b"SLURM_JOB_ACCOUNT=root\0")
    assert "account" not in job_info_labels(updated_collector(node))


def test_environ_with_another_job_id_is_ignored(node):
    node.add_job(pids=[10])
    variables = (b"SLURM_JOB_ID=7", b"SLURM_JOB_ACCOUNT=other", b"SLURM_JOB_ID_HET_GROUP_0=7")
    node.add_process(10, environ=b"\0".join(variables))
    info_labels = job_info_labels(updated_collector(node))
    assert "account" not in info_labels
    assert 'het_job_id="7"' in info_labels


def test_job_with_only_root_processes_is_owned_by_root_after_a_while(node):
    node.add_job(pids=[10])
    node.add_process(10, uid=0)
    jobs = updated_collector(node)
    assert users(jobs) == {}
    node.now += 3
    jobs.scanner.scan()
    assert users(jobs) == {"1": "root"}


def test_scheduler_process_of_root_is_not_the_owner(node):
    """The uid of a task is set late; a short job may show no other process."""
    node.add_job(pids=[10])
    node.add_process(10, uid=0, program="slurmstepd")
    jobs = updated_collector(node)
    node.now += 3
    jobs.scanner.scan()
    assert users(jobs) == {"1": ""}
    assert samples(jobs)["processes", "1"] == 0


def test_job_with_only_scheduler_processes_is_scanned_again_soon(node):
    job = node.add_job(pids=[10])
    node.add_process(10, uid=0, program="slurmstepd")
    jobs = updated_collector(node)
    node.now += 10
    assert jobs.scanner.scan() <= 0.5
    assert users(jobs) == {"1": ""}
    node.add_process(11, uid=54321, environ=b"SLURM_JOB_ACCOUNT=physics\0")
    (job / "step_batch/user/task_0/cgroup.procs").write_text("11\n")
    node.now += 0.5
    assert jobs.scanner.scan() > 0.5
    assert users(jobs) == {"1": "54321"}


def test_environment_is_read_once_the_daemon_has_started_the_program(node):
    """An interactive job of PBS waits for its terminal as a fork of pbs_mom."""
    node.add_job("7.pbs01", scope="pbs_jobs.service/jobs", pids=[10])
    node.add_process(10, program="pbs_mom", environ=b"PBS_QUEUE=of the daemon\0")
    jobs = updated_collector(node)
    for _ in range(8):
        node.now += 0.5
        assert jobs.scanner.scan() <= 0.5
    node.add_process(10, program="bash", environ=b"PBS_JOBID=7.pbs01\0PBS_QUEUE=workq\0")
    node.now += 0.5
    jobs.scanner.scan()
    assert 'partition="workq"' in job_info_labels(jobs)


def test_owner_that_stays_unknown_is_empty(node):
    """hidepid or a foreign pid namespace: /proc does not show the processes."""
    jobs = updated_collector(node)
    node.add_job(pids=[10])
    jobs.walker.walk_all(is_new=True)
    jobs.scanner.scan()
    assert users(jobs) == {}
    node.now += 3
    jobs.scanner.scan()
    assert users(jobs) == {"1": ""}
    assert ("processes", "1") not in samples(jobs)


def test_owner_changes_from_root_to_the_user(node):
    job = node.add_job(pids=[10])
    node.add_process(10, uid=0)
    jobs = updated_collector(node)
    node.now += 3
    jobs.update()
    assert users(jobs) == {"1": "root"}
    node.add_process(11, uid=54321)
    (job / "step_batch/user/task_0/cgroup.procs").write_text("10\n11\n")
    node.now += 20
    jobs.update()
    assert users(jobs) == {"1": "54321"}


def test_sluid_is_resolved_by_the_title_of_slurmstepd(node):
    node.add_job("s5K1KKYAYG5D00", pids=[10, 11])
    node.add_process(10, uid=0, program="slurmstepd: [4749.batch]")
    node.add_process(11, environ=b"SLURM_JOB_ID=1\0")
    assert users(updated_collector(node)).keys() == {"4749"}


def test_labels_of_a_job_named_by_sluid_are_matched_by_its_job_id(node):
    node.add_job("s5K1KKYAYG5D00", pids=[10, 11])
    node.add_process(10, uid=0, program="slurmstepd: [4749.batch]")
    environ = b"SLURM_JOB_ID=4749\0SLURM_JOB_ACCOUNT=physics\0SLURM_JOB_QOS=long\0"
    node.add_process(11, environ=environ)
    info_labels = job_info_labels(updated_collector(node))
    assert 'account="physics",qos="long",sluid="s5K1KKYAYG5D00"' in info_labels


def test_labels_without_a_title_are_matched_by_the_owners_variable(node):
    node.add_job("s5K1KKYAYG5D00", pids=[11])
    node.add_process(11, environ=b"SLURM_JOB_ID=4749\0SLURM_JOB_ACCOUNT=physics\0")
    jobs = updated_collector(node)
    assert users(jobs).keys() == {"4749"}
    assert 'account="physics"' in job_info_labels(jobs)


def test_later_part_of_a_het_job_has_its_own_labels(node):
    node.add_job("job_8", pids=[10])
    variables = (
        b"SLURM_JOB_ID=7", b"SLURM_JOB_ACCOUNT=first", b"SLURM_JOB_ID_HET_GROUP_0=7",
        b"SLURM_JOB_ID_HET_GROUP_1=8", b"SLURM_JOB_ACCOUNT_HET_GROUP_1=second",
        b"SLURM_JOB_PARTITION_HET_GROUP_1=gpu", b"SLURM_JOB_QOS_HET_GROUP_1=long",
        b"SLURM_JOB_NAME_HET_GROUP_1=sweep", b"SLURM_JOB_ID_HET_GROUP_2=9",
    )  # fmt: skip
    node.add_process(10, environ=b"\0".join(variables))
    info_labels = job_info_labels(updated_collector(node, name=True))
    assert 'account="second",partition="gpu",qos="long",het_job_id="7"' in info_labels
    assert 'name="sweep"' in info_labels


@pytest.mark.parametrize(
    ("title", "jobid"),
    [
        (b"slurmstepd: [4749.batch]\0", "4749"),
        (b"slurmstepd: [12.0+1]", "12"),
        (b"slurmstepd infinity", None),
        (b"/bin/sh slurmstepd: [4749.0]", None),
    ],
)
def test_job_id_from_slurmstepd_title(title, jobid):
    assert jobid_from_title(title) == jobid


@requires_root
def test_job_directories_in_a_users_cgroup_are_untrusted(node):
    job = node.add_job(scope="user.slice/mine/slurmstepd.scope", name="job_123", pids=[10])
    mine = node.add_job(scope="machine.slice/mine/slurmstepd.scope", name="job_7", pids=[11])
    node.add_process(10, uid=1000)
    node.add_process(11, uid=1000)
    for path in (job.parent.parent, mine.parent.parent):
        for top, directories, files in os.walk(path):
            for name in (*directories, *files, "."):
                os.chown(os.path.join(top, name), 1000, 1000)
    jobs = updated_collector(node)
    assert users(jobs) == {}
    assert samples(jobs)["batchjob_jobs_ignored", "", "untrusted"] == 1


def test_job_id_with_two_owners_is_a_conflict(node):
    node.add_job(scope="system.slice/n1_slurmstepd.scope", pids=[10])
    node.add_job(scope="system.slice/n2_slurmstepd.scope", pids=[11])
    node.add_process(10, uid=1000)
    node.add_process(11, uid=2000)
    jobs = updated_collector(node)
    assert users(jobs) == {}
    assert samples(jobs)["batchjob_jobs_ignored", "", "conflict"] == 1


def test_hostile_label_values_are_truncated_and_escaped(node):
    node.add_job(pids=[10])
    name = b'we"ird\n\\' + b"x" * 100_000
    node.add_process(10, environ=b"SLURM_JOB_NAME=" + name + b"\0SLURM_JOB_ACCOUNT=\xff\xfe\0")
    jobs = updated_collector(node, name=True)
    assert users(jobs).keys() == {"1"}
    label = job_info_labels(jobs).partition('name="')[2]
    assert label.startswith(r"we\"ird\n\\x")
    assert len(label) < MAX_LABEL_LENGTH + 10


def test_job_name_is_not_shown_by_default(node):
    node.add_job(pids=[10])
    node.add_process(10, environ=b"SLURM_JOB_NAME=secret\0")
    assert "secret" not in job_info_labels(updated_collector(node))


def test_hung_name_service_leaves_the_numeric_uid(node):
    release = threading.Event()
    names = UserNames(look_up=lambda uid: release.wait() and "alice", deadline=0.05)
    node.add_job(pids=[10])
    node.add_process(10, uid=4711)
    jobs = node.collector(names)
    jobs.update()
    assert users(jobs) == {"1": "4711"}
    assert names.user(5) is None  # at once: the service is known to hang
    release.set()
    node.now += 60
    jobs.scanner.scan()
    assert users(jobs) == {"1": "4711"}


def test_unknown_uid_is_looked_up_again_later():
    now, known = [0.0], {}
    names = UserNames(look_up=known.get, clock=lambda: now[0])
    assert names.user(7) is None
    known[7] = "grace"
    assert names.user(7) is None
    now[0] += 61
    assert names.user(7) == "grace"


def test_lsf_start_time_comes_from_the_path(node):
    node.add_job(scope="lsf/c1", name="job.42[3].34071.1700000000", pids=[10])
    node.add_process(10)
    numbers = samples(updated_collector(node))
    assert numbers["start_time_seconds", "42[3]"] == 1_700_000_000


def test_jobs_of_several_slurmd_scopes_are_found(node):
    node.add_job(scope=SCOPE, name="job_1", pids=[10])
    node.add_job(scope="system.slice/n2_slurmstepd.scope", name="job_2", pids=[11])
    node.add_process(10)
    node.add_process(11)
    assert users(updated_collector(node)).keys() == {"1", "2"}


def test_pod_that_hosts_slurm_is_not_a_job(node):
    pods = "kubepods.slice/kubepods-burstable.slice"
    host = "kubepods-burstable-pod0b6a7a0e_3f0e_4c5e_9d41_2f3a4b5c6d7e.slice"
    plain = "kubepods-burstable-pod1b6a7a0e_3f0e_4c5e_9d41_2f3a4b5c6d7e.slice"
    node.add_job(scope=pods, name=host, pids=[10])
    node.add_job(scope=pods, name=plain, pids=[11])
    node.add_job(scope=f"{pods}/{host}/system.slice/slurmstepd.scope", name="job_5", pids=[12])
    for pid in (10, 11, 12):
        node.add_process(pid)
    assert users(updated_collector(node)).keys() == {"1b6a7a0e-3f0e-4c5e-9d41-2f3a4b5c6d7e", "5"}

"""OOM kills from the kernel log; records that processes forge are ignored."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.jobs.cgroups.kernel_log import KernelLog
from tests.collectors.jobs.nodes import requires_root

JOB = "/slurm/uid_1000/job_42"
TASK = f"{JOB}/step_0/task_0"


def record(task_memcg=TASK, oom_memcg=JOB, task="python3", priority=6):
    """As Linux 6.18 wrote it."""
    return (
        f"{priority},812,11930570567,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),"
        f"cpuset=step_0,mems_allowed=0,oom_memcg={oom_memcg},task_memcg={task_memcg},"
        f"task={task},pid=2578,uid=20004\n SUBSYSTEM=memory\n"
    )


@pytest.fixture
def kmsg(tmp_path):
    """A log file with an old record, which is skipped."""
    path = tmp_path / "kmsg"
    path.write_text(record())
    return path


def append(kmsg, *records):
    with kmsg.open("a") as file:
        file.writelines(records)


def test_oom_kills_are_counted_by_cgroup(kmsg):
    log = KernelLog(str(kmsg))
    append(kmsg, record(), record(), record(f"{JOB}0/step_0"), "6,9,9,-;something else\n")
    assert log.kills(JOB, since=0) == {TASK: 2}
    assert log.kills(f"{JOB}/step_1", since=0) == {}


def test_only_kills_of_the_new_run_of_a_requeued_job_count(kmsg):
    log = KernelLog(str(kmsg))
    append(kmsg, record())
    second_run = log.position()
    assert log.kills(JOB, second_run) == {}
    append(kmsg, record(task="a b,task=c"))
    assert log.kills(JOB, second_run) == {TASK: 1}


def test_kill_by_the_global_oom_killer_is_counted(kmsg):
    log = KernelLog(str(kmsg))
    append(
        kmsg, f"6,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg={TASK},task=a\n"
    )
    assert log.kills(JOB, since=0) == {TASK: 1}


@pytest.mark.parametrize(
    "forged",
    [
        record(oom_memcg=f"/user.slice/mine,task_memcg={TASK},task=x", task_memcg="/user.slice/a"),
        record(task_memcg=f"/user.slice/mine,task_memcg={TASK}"),
        record(priority=14),
        f"6,1,1,-;a process says oom-kill:constraint=x,task_memcg={TASK},task=x\n",
        "6,1,1,-;oom-kill:constraint=\n",
        "\n",
    ],
)
def test_forged_records_are_ignored(kmsg, forged):
    log = KernelLog(str(kmsg))
    append(kmsg, forged)
    assert log.kills(JOB, since=0) == {}


def test_missing_log_has_no_kills(tmp_path):
    log = KernelLog(str(tmp_path / "none"))
    assert log.position() == 0
    assert log.kills(JOB, since=0) == {}
    log.close()


def test_unreadable_log_is_abandoned_and_logged_once(tmp_path, caplog):
    """A directory can be opened like a file, and has no end to begin at."""
    caplog.set_level("INFO")
    log = KernelLog(str(tmp_path))
    assert log.kills(JOB, since=0) == {}
    assert log.kills(JOB, since=0) == {}
    assert [record.message for record in caplog.records] == [
        f"{tmp_path}: Invalid argument; on cgroup v1, OOM kills are read from cgroups only"
    ]


MEMORY = Path("/sys/fs/cgroup/memory")


@requires_root
@pytest.mark.skipif(not (MEMORY / "memory.limit_in_bytes").exists(), reason="no cgroup v1")
def test_real_oom_kill_in_a_removed_cgroup_is_counted():
    """One that the kernel makes here: 20 MiB where 4 are allowed."""
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg cannot be read")
    log = KernelLog("/dev/kmsg")
    cgroup = MEMORY / f"batchjob_test_{os.getpid()}"
    cgroup.mkdir()
    try:
        (cgroup / "memory.limit_in_bytes").write_text(str(4 << 20))
        script = f"open({str(cgroup / 'cgroup.procs')!r}, 'w').write('0'); b'x' * (20 << 20)"
        killed = subprocess.run([sys.executable, "-c", script], check=False)
    finally:
        cgroup.rmdir()
    assert killed.returncode == -9
    assert log.kills(f"/{cgroup.name}", since=0) == {f"/{cgroup.name}": 1}
    log.close()

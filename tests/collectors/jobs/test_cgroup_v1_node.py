"""cgroup v1: a job is in one or several hierarchies, and the kernel does not report its end."""

import os
import shutil
import subprocess

import pytest

from tests.collectors.jobs.nodes import requires_root, samples, users
from tests.helpers.waiting import until

JOB = "slurm/uid_1000/job_7"


@pytest.fixture
def v1_node(node):
    """The node, with v1 hierarchies instead of v2."""
    shutil.rmtree(node.cgroup)
    node.cgroup.mkdir()
    return node


def add_directory(node, controller, path, files=None, pids=()):
    path_on_host = node.cgroup / controller / path
    path_on_host.mkdir(parents=True, exist_ok=True)
    for name, content in (files or {}).items():
        (path_on_host / name).write_text(content)
    (path_on_host / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return path_on_host


def cpuacct_files(usage=2_500_000_000, system=50):
    return {"cpuacct.usage": f"{usage}\n", "cpuacct.stat": f"user 200\nsystem {system}\n"}


def memory_files(oom_kill=0):
    return {
        "memory.usage_in_bytes": "4096\n",
        "memory.max_usage_in_bytes": "8192\n",
        "memory.failcnt": "3\n",
        "memory.stat": "rss 0\nhierarchical_memory_limit 1048576\ntotal_rss 1024\n",
        "memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {oom_kill}\n",
    }


def start_whole_job(node):
    add_directory(node, "freezer", f"{JOB}/step_0", pids=[10])
    add_directory(node, "freezer", JOB, pids=[9])
    add_directory(node, "cpuacct", JOB, cpuacct_files())
    add_directory(node, "cpuacct", f"{JOB}/step_0/task_0", cpuacct_files(), pids=[10])
    add_directory(node, "memory", JOB, memory_files())
    add_directory(node, "memory", f"{JOB}/step_0/task_0", memory_files(oom_kill=2), pids=[10])
    node.add_process(9, uid=0, program="slurmstepd")
    node.add_process(10, parent=9)
    jobs = node.collector()
    jobs.update()
    return jobs


def test_job_in_three_hierarchies_is_one_job(v1_node):
    numbers = samples(start_whole_job(v1_node))
    assert numbers["cpu_seconds_total", "7", "user"] == 2.0
    assert numbers["cpu_seconds_total", "7", "system"] == 0.5
    assert numbers["memory_peak_bytes", "7"] == 8192
    assert numbers["memory_limit_bytes", "7"] == 1048576
    assert numbers["memory_limit_hits_total", "7"] == 3
    assert numbers["processes", "7"] == 1


def test_oom_kills_of_task_directories_are_summed_and_kept(v1_node):
    jobs = start_whole_job(v1_node)
    assert samples(jobs)["oom_kills_total", "7"] == 2
    shutil.rmtree(v1_node.cgroup / "memory" / JOB / "step_0")
    v1_node.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["oom_kills_total", "7"] == 2


def test_oom_kills_in_removed_directories_come_from_the_kernel_log(v1_node):
    kmsg = v1_node.create_kernel_log()
    jobs = start_whole_job(v1_node)
    task_fields = f"task_memcg=/{JOB}/step_1/task_0,task=python3,pid=11,uid=1000"
    with kmsg.open("a") as file:
        file.write(f"6,1,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/{JOB},{task_fields}\n")
    for controller in ("memory", "cpuacct", "freezer"):
        shutil.rmtree(v1_node.cgroup / controller / "slurm")
    jobs.table.all()[0].read_remaining(v1_node.host.now())
    assert samples(jobs)["oom_kills_total", "7"] == 2 + 1


def test_freezer_only_host_sums_cpu_of_processes(v1_node):
    add_directory(v1_node, "freezer", f"{JOB}/step_0", pids=[10])
    (v1_node.cgroup / "memory").mkdir()
    v1_node.add_process(10, cpu=(300, 100, 200, 0))
    jobs = v1_node.collector()
    jobs.update()
    numbers = samples(jobs)
    ticks = 100
    assert numbers["cpu_seconds_total", "7", "user"] == 500 / ticks
    assert numbers["cpu_seconds_total", "7", "system"] == 100 / ticks
    assert ("memory_current_bytes", "7") not in numbers


def test_first_removed_directory_triggers_a_final_read(v1_node):
    jobs = start_whole_job(v1_node)
    jobs.watcher.start()
    (v1_node.cgroup / "cpuacct" / JOB / "cpuacct.usage").write_text("9500000000\n")
    shutil.rmtree(v1_node.cgroup / "memory" / JOB / "step_0")
    until(lambda: jobs.table.all()[0].reading.cpu_user_seconds == 9.0)
    for controller in ("memory", "cpuacct", "freezer"):
        shutil.rmtree(v1_node.cgroup / controller / "slurm")
    until(lambda: ("end_time_seconds", "7") in samples(jobs))
    assert samples(jobs)["cpu_seconds_total", "7", "user"] == 9.0


def test_job_ends_when_its_directories_have_no_processes(v1_node):
    jobs = start_whole_job(v1_node)
    add_directory(v1_node, "freezer", f"{JOB}/step_0")
    add_directory(v1_node, "freezer", JOB)
    v1_node.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["end_time_seconds", "7"] == v1_node.now


PBS_JOB = "pbs_jobs.service/jobid/73.pbs01"


def test_sister_node_of_a_pbs_job_is_without_processes_between_two_tasks(v1_node):
    cpuacct = add_directory(v1_node, "cpuacct", PBS_JOB, cpuacct_files(), pids=[10])
    v1_node.add_process(10, io=(1, 2, 3, 4))
    jobs = v1_node.watching_collector()
    add_directory(v1_node, "cpuacct", PBS_JOB, cpuacct_files(usage=3_900_000_000))
    v1_node.remove_process(10)
    for _ in range(40):
        v1_node.now += 20
        jobs.scanner.scan()
        numbers = samples(jobs)
        assert ("end_time_seconds", "73.pbs01") not in numbers
        assert numbers["batchjob_jobs", ""] == 1
    assert numbers["processes", "73.pbs01"] == 0
    assert numbers["cpu_seconds_total", "73.pbs01", "user"] == 3.4
    add_directory(v1_node, "cpuacct", PBS_JOB, cpuacct_files(usage=4_500_000_000), pids=[11])
    v1_node.add_process(11, io=(10, 20, 30, 40))
    v1_node.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["process_io_written_bytes_total", "73.pbs01"] == 22
    shutil.rmtree(cpuacct)
    until(lambda: ("end_time_seconds", "73.pbs01") in samples(jobs))
    v1_node.now += 200  # it lingers from then on
    assert samples(jobs)["cpu_seconds_total", "73.pbs01", "user"] == 4.0


@requires_root
def test_uid_in_a_path_below_a_users_directory_is_not_believed(v1_node):
    path = "lxc/mine/slurm/uid_1001/job_7"
    add_directory(v1_node, "cpuacct", path, cpuacct_files(), pids=[10])
    for each in ("lxc/mine", "lxc/mine/slurm", "lxc/mine/slurm/uid_1001", path):
        os.chown(v1_node.cgroup / "cpuacct" / each, 1000, 1000)
    v1_node.add_process(10, uid=1000)
    jobs = v1_node.collector()
    jobs.update()
    assert users(jobs) == {}
    assert samples(jobs)["batchjob_jobs_ignored", "", "untrusted"] == 1


def test_sister_node_without_processes_is_a_job_when_the_exporter_starts(v1_node):
    add_directory(v1_node, "cpuacct", PBS_JOB, cpuacct_files())
    jobs = v1_node.collector()
    jobs.update()
    v1_node.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["cpu_seconds_total", "73.pbs01", "user"] == 2.0
    assert users(jobs) == {"73.pbs01": ""}


def test_job_that_could_not_be_launched_ends_when_its_directories_are_renamed(v1_node):
    """OpenPBS' hook renames them to <id>.orphan before it removes them."""
    (v1_node.cgroup / "cpuacct" / PBS_JOB).parent.mkdir(parents=True)
    (v1_node.cgroup / "memory" / PBS_JOB).parent.mkdir(parents=True)
    jobs = v1_node.watching_collector()
    for _ in range(3):
        directories = [
            add_directory(v1_node, "memory", PBS_JOB, memory_files()),
            add_directory(v1_node, "cpuacct", PBS_JOB, cpuacct_files()),
        ]
        until(lambda: len(jobs.table.running()) == 1)
        for each in directories:
            shutil.rmtree(each.rename(each.with_name("73.pbs01.orphan")))
        until(lambda: not jobs.table.running())
    assert ("batchjob_jobs", "") not in samples(jobs)


def test_job_without_a_notification_of_its_removal_ends_at_the_next_reading(v1_node):
    directory = add_directory(v1_node, "cpuacct", PBS_JOB, cpuacct_files(), pids=[10])
    v1_node.add_process(10)
    jobs = v1_node.collector()
    jobs.update()
    shutil.rmtree(directory)
    v1_node.now += 61
    assert samples(jobs)["end_time_seconds", "73.pbs01"] == v1_node.now


def test_process_cpu_is_not_used_before_cpuacct_appears(v1_node):
    """The sum over processes, in ticks, may be more than what the cgroup says a moment later."""
    (v1_node.cgroup / "cpuacct" / "slurm").mkdir(parents=True)
    jobs = v1_node.collector()
    jobs.update()
    add_directory(v1_node, "freezer", f"{JOB}/step_0", pids=[10])
    v1_node.add_process(10, cpu=(300, 100, 0, 0))
    jobs.walker.walk_all(is_new=True)
    jobs.scanner.scan()
    assert ("cpu_seconds_total", "7", "user") not in samples(jobs)
    add_directory(v1_node, "cpuacct", JOB, cpuacct_files())
    jobs.walker.walk_all(is_new=True)
    assert samples(jobs)["cpu_seconds_total", "7", "user"] == 2.0


def test_process_exit_triggers_a_final_read(v1_node):
    """Of a real process, before any directory is removed."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        add_directory(v1_node, "freezer", f"{JOB}/step_0", pids=[process.pid])
        add_directory(v1_node, "cpuacct", JOB, cpuacct_files())
        v1_node.add_process(process.pid)
        jobs = v1_node.collector()
        jobs.update()
        (v1_node.cgroup / "cpuacct" / JOB / "cpuacct.usage").write_text("9500000000\n")
    finally:
        process.kill()
        process.wait()
    until(lambda: jobs.table.all()[0].reading.cpu_user_seconds == 9.0)


def add_hidden_job(node):
    """A job of which /proc shows no process: hidepid=2 (proc(5)), or a recorded tree."""
    add_directory(
        node, "cpuacct", "slurm/uid_20821/job_11/step_0/task_0", cpuacct_files(), pids=[50]
    )
    add_directory(node, "cpuacct", "slurm/uid_20821/job_11", cpuacct_files())
    return node.collector()


def test_owner_comes_from_the_path_if_proc_hides_processes(v1_node):
    jobs = add_hidden_job(v1_node)
    jobs.update()
    assert users(jobs) == {"11": "20821"}
    assert samples(jobs)["cpu_seconds_total", "11", "system"] == 0.5


def test_owner_comes_from_the_path_without_proc_stat(v1_node):
    (v1_node.proc / "stat").unlink()
    jobs = add_hidden_job(v1_node)
    jobs.update()
    assert users(jobs) == {"11": "20821"}


def test_gauges_of_a_removed_directory_disappear_after_seconds(v1_node):
    jobs = start_whole_job(v1_node)
    assert samples(jobs)["memory_current_bytes", "7"] == 4096
    shutil.rmtree(v1_node.cgroup / "memory" / JOB)
    v1_node.now += 1
    numbers = samples(jobs)  # the scheduler may be removing all of them
    assert numbers["memory_current_bytes", "7"] == 4096
    v1_node.now += 6
    numbers = samples(jobs)
    assert not [key for key in numbers if key[0] in ("memory_current_bytes", "memory_limit_bytes")]
    assert numbers["memory_peak_bytes", "7"] == 8192
    assert numbers["cpu_seconds_total", "7", "user"] == 2.0


@pytest.mark.parametrize(
    ("text", "known"),
    [("Total 0\n", False), ("8:0 Read 10\n8:0 Write 20\n8:0 Total 30\nTotal 30\n", True)],
)
def test_block_io_without_any_device_line_is_unknown(v1_node, text, known):
    """blk-throttle counts nothing until a throttle is set, since Linux 6.10."""
    names = ("io_service_bytes_recursive", "io_serviced_recursive")
    files = {f"blkio.throttle.{name}": text for name in names}
    add_directory(v1_node, "blkio", JOB, files, pids=[10])
    v1_node.add_process(10)
    jobs = v1_node.collector()
    jobs.update()
    assert (("io_written_bytes_total", "7", "8:0") in samples(jobs)) is known
    ((_, reading),) = jobs.readings()
    assert (reading.cgroup.io is not None) is known

"""cgroup v1: a job is in several hierarchies, or in one only, and nobody says when it ends."""

import shutil
import subprocess

import pytest

from tests.collectors.jobs.nodes import samples, users, wait_until

JOB = "slurm/uid_1000/job_7"


@pytest.fixture
def v1(node):
    """The node, with v1 hierarchies instead of v2."""
    shutil.rmtree(node.cgroup)
    node.cgroup.mkdir()
    return node


def directory(node, controller, path, files=None, pids=()):
    place = node.cgroup / controller / path
    place.mkdir(parents=True, exist_ok=True)
    for name, content in (files or {}).items():
        (place / name).write_text(content)
    (place / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return place


def cpuacct(usage=2_500_000_000, system=50):
    return {"cpuacct.usage": f"{usage}\n", "cpuacct.stat": f"user 200\nsystem {system}\n"}


def memory(oom_kill=0):
    return {
        "memory.usage_in_bytes": "4096\n",
        "memory.max_usage_in_bytes": "8192\n",
        "memory.failcnt": "3\n",
        "memory.stat": "rss 0\nhierarchical_memory_limit 1048576\ntotal_rss 1024\n",
        "memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {oom_kill}\n",
    }


def whole_job(node):
    directory(node, "freezer", f"{JOB}/step_0", pids=[10])
    directory(node, "freezer", JOB, pids=[9])
    directory(node, "cpuacct", JOB, cpuacct())
    directory(node, "cpuacct", f"{JOB}/step_0/task_0", cpuacct(), pids=[10])
    directory(node, "memory", JOB, memory())
    directory(node, "memory", f"{JOB}/step_0/task_0", memory(oom_kill=2), pids=[10])
    node.process(9, uid=0, program="slurmstepd")
    node.process(10, parent=9)
    jobs = node.jobs()
    jobs.update()
    return jobs


def test_a_job_in_three_hierarchies_is_one(v1):
    numbers = samples(whole_job(v1))
    assert numbers["cpu_seconds_total", "7", "user"] == 2.0
    assert numbers["cpu_seconds_total", "7", "system"] == 0.5
    assert numbers["memory_peak_bytes", "7"] == 8192
    assert numbers["memory_limit_bytes", "7"] == 1048576
    assert numbers["memory_limit_hits_total", "7"] == 3
    assert numbers["processes", "7"] == 1


def test_kills_are_counted_in_the_directories_of_tasks(v1):
    jobs = whole_job(v1)
    assert samples(jobs)["oom_kills_total", "7"] == 2
    shutil.rmtree(v1.cgroup / "memory" / JOB / "step_0")
    v1.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["oom_kills_total", "7"] == 2


def test_kills_in_directories_gone_unread_are_in_the_kernels_log(v1):
    kmsg = v1.kernel_log()
    jobs = whole_job(v1)
    told = f"task_memcg=/{JOB}/step_1/task_0,task=python3,pid=11,uid=1000"
    with kmsg.open("a") as file:
        file.write(f"6,1,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/{JOB},{told}\n")
    for controller in ("memory", "cpuacct", "freezer"):
        shutil.rmtree(v1.cgroup / controller / "slurm")
    jobs.table.read_after_removal(jobs.table.all()[0])
    assert samples(jobs)["oom_kills_total", "7"] == 2 + 1


def test_a_host_with_the_freezer_alone_sums_its_processes(v1):
    directory(v1, "freezer", f"{JOB}/step_0", pids=[10])
    (v1.cgroup / "memory").mkdir()
    v1.process(10, cpu=(300, 100, 200, 0))
    jobs = v1.jobs()
    jobs.update()
    numbers = samples(jobs)
    ticks = 100
    assert numbers["cpu_seconds_total", "7", "user"] == 500 / ticks
    assert numbers["cpu_seconds_total", "7", "system"] == 100 / ticks
    assert ("memory_current_bytes", "7") not in numbers


def test_the_first_removed_directory_tells_of_the_end(v1):
    jobs = whole_job(v1)
    jobs.watcher.start()
    (v1.cgroup / "cpuacct" / JOB / "cpuacct.usage").write_text("9500000000\n")
    shutil.rmtree(v1.cgroup / "memory" / JOB / "step_0")
    wait_until(lambda: jobs.table.all()[0].reading.cpu_user_seconds == 9.0)
    for controller in ("memory", "cpuacct", "freezer"):
        shutil.rmtree(v1.cgroup / controller / "slurm")
    wait_until(lambda: ("end_time_seconds", "7") in samples(jobs))
    assert samples(jobs)["cpu_seconds_total", "7", "user"] == 9.0


def test_directories_that_stay_without_processes_are_an_ended_job(v1):
    jobs = whole_job(v1)
    directory(v1, "freezer", f"{JOB}/step_0")
    directory(v1, "freezer", JOB)
    v1.now += 20
    jobs.scanner.scan()
    assert samples(jobs)["end_time_seconds", "7"] == v1.now


def test_steps_on_demand(v1):
    whole_job(v1)
    directory(v1, "cpuacct", f"{JOB}/step_0", cpuacct(usage=1_500_000_000))
    jobs = v1.jobs(steps=True)
    jobs.update()
    numbers = samples(jobs)
    assert numbers["step_cpu_seconds_total", "7", "0", "user"] == 1.0
    assert users(jobs).keys() == {"7"}


def test_cpu_of_processes_does_not_stand_in_for_a_directory_to_come(v1):
    """The sum over processes, in ticks, may be more than what the cgroup says a moment later."""
    (v1.cgroup / "cpuacct" / "slurm").mkdir(parents=True)
    jobs = v1.jobs()
    jobs.update()
    directory(v1, "freezer", f"{JOB}/step_0", pids=[10])
    v1.process(10, cpu=(300, 100, 0, 0))
    jobs.walker.walk_all(is_new=True)
    jobs.scanner.scan()
    assert ("cpu_seconds_total", "7", "user") not in samples(jobs)
    directory(v1, "cpuacct", JOB, cpuacct())
    jobs.walker.walk_all(is_new=True)
    assert samples(jobs)["cpu_seconds_total", "7", "user"] == 2.0


def test_the_exit_of_a_process_tells_of_the_end_too(v1):
    """Of a real process, before any directory is removed."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        directory(v1, "freezer", f"{JOB}/step_0", pids=[process.pid])
        directory(v1, "cpuacct", JOB, cpuacct())
        v1.process(process.pid)
        jobs = v1.jobs()
        jobs.update()
        (v1.cgroup / "cpuacct" / JOB / "cpuacct.usage").write_text("9500000000\n")
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: jobs.table.all()[0].reading.cpu_user_seconds == 9.0)


def hidden(node):
    """A job of which /proc shows no process: hidepid=2 (proc(5)), or a recorded tree."""
    directory(node, "cpuacct", "slurm/uid_20821/job_11/step_0/task_0", cpuacct(), pids=[50])
    directory(node, "cpuacct", "slurm/uid_20821/job_11", cpuacct())
    return node.jobs()


def test_the_uid_of_the_path_is_the_owner_where_proc_hides_the_processes(v1):
    jobs = hidden(v1)
    jobs.update()
    assert users(jobs) == {"11": "20821"}
    assert samples(jobs)["cpu_seconds_total", "11", "system"] == 0.5


def test_and_where_there_is_no_proc_stat(v1):
    (v1.proc / "stat").unlink()
    jobs = hidden(v1)
    jobs.update()
    assert users(jobs) == {"11": "20821"}


def test_gauges_of_a_directory_that_an_admin_removed_go_after_some_seconds(v1):
    jobs = whole_job(v1)
    assert samples(jobs)["memory_current_bytes", "7"] == 4096
    shutil.rmtree(v1.cgroup / "memory" / JOB)
    v1.now += 1
    numbers = samples(jobs)  # the scheduler may be removing all of them
    assert numbers["memory_current_bytes", "7"] == 4096
    v1.now += 6
    numbers = samples(jobs)
    assert not [key for key in numbers if key[0] in ("memory_current_bytes", "memory_limit_bytes")]
    assert numbers["memory_peak_bytes", "7"] == 8192
    assert numbers["cpu_seconds_total", "7", "user"] == 2.0


@pytest.mark.parametrize(
    ("text", "known"),
    [("Total 0\n", False), ("8:0 Read 10\n8:0 Write 20\n8:0 Total 30\nTotal 30\n", True)],
)
def test_block_io_without_the_line_of_any_device_is_not_known(v1, text, known):
    """blk-throttle counts nothing until a throttle is set, since Linux 6.10."""
    names = ("io_service_bytes_recursive", "io_serviced_recursive")
    files = {f"blkio.throttle.{name}": text for name in names}
    directory(v1, "blkio", JOB, files, pids=[10])
    v1.process(10)
    jobs = v1.jobs()
    jobs.update()
    assert (("io_written_bytes_total", "7", "8:0") in samples(jobs)) is known
    ((_, reading),) = jobs.readings()
    assert (reading.cgroup.io is not None) is known

"""A run's own cgroup and its limits, where this machine lets us make one."""

import json
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from batchjob.runtime.formatting import share
from batchjob.schedulers import registry
from batchjob_cli.run import cgroup, limits
from batchjob_cli.run.limits import CgroupError, RunLimits
from collectors.host import Host
from collectors.jobs.discovery.walk import match
from tests.batchjob_cli.run.conftest import own_cgroups
from tests.helpers.waiting import scaled, until

BURN = "import time\nwhile time.process_time() < {}: pass"


@pytest.fixture(scope="module")
def require_cgroup():
    """Skips where no cgroup can be made, or none with the controllers that limits need."""
    jobid = "00000000-0000-4000-8000-000000000001"
    try:
        run_cgroup = cgroup.create(jobid, RunLimits(1, 1 << 20))
    except (CgroupError, OSError) as error:
        pytest.skip(f"no cgroup: {error}")
    _, left_out = run_cgroup.limit(RunLimits(1, 1 << 20), "/")
    assert run_cgroup.remove() == []
    if left_out:
        pytest.skip(left_out[0])


def test_exporter_finds_cgroup_of_run(require_cgroup, batchjob, tmp_path):
    output_written = tmp_path / "output-written"
    script = f"cat /proc/self/cgroup; touch {output_written}; sleep 600"
    run = batchjob.start("run", "--", "sh", "-c", script)
    record = until(lambda: batchjob.data.exists() and batchjob.records())[0]
    directories = until(lambda: own_cgroups(record["jobid"]))
    for directory in directories:
        path = str(directory.relative_to("/sys/fs/cgroup")).partition("batchjob.slice")
        assert match("".join(path[1:]), registry.layouts(), 1).jobid == record["jobid"]
    until(output_written.exists)
    run.terminate()
    output, _ = run.communicate(timeout=scaled(30))
    assert f"/batchjob.slice/run-{record['jobid']}" in output
    assert own_cgroups(record["jobid"]) == []


READ_OWN_CPU = """
import time
while time.process_time() < 0.5: sum(range(1000))
with open("/proc/self/cgroup") as lines:
    [path] = [line.strip().split(":")[2] for line in lines if ":cpuacct:" in line]
with open(f"/sys/fs/cgroup/cpuacct{path}/cpuacct.usage") as file:
    print(int(file.read()) / 1e9)
"""


def test_cpu_time_agrees_with_kernel(require_cgroup, batchjob):
    """What it says of the cgroup at the end of the job, and what the end of a process takes."""
    done = batchjob("run", "--", sys.executable, "-S", "-c", READ_OWN_CPU)
    record = batchjob.record()
    kernels = float(done.stdout)
    assert kernels >= 0.49  # a moment of it was before the process was in its cgroup
    assert kernels <= record["user_cpu_seconds"] + record["system_cpu_seconds"] <= kernels + 0.05


def test_memory_limit(require_cgroup, batchjob):
    hold = "x = bytearray(300 << 20)"
    done = batchjob("run", "--memory", "60M", "--", sys.executable, "-c", hold)
    record = batchjob.record()
    assert done.returncode == 128 + 9
    assert record["state"] == "OUT_OF_MEMORY"
    assert record["allocated_memory_bytes"] == 60 << 20
    assert record["peak_memory_bytes"] <= 60 << 20
    assert "ran out of memory, signal 9" in done.stderr
    assert "of 60 MiB" in done.stderr


def test_cpu_limit(require_cgroup, batchjob):
    """0.5 s of CPU time at 0.2 CPUs take 2.5 s, less the first period's share."""
    begun = time.monotonic()
    done = batchjob("run", "--cpus", "0.2", "--", sys.executable, "-c", BURN.format(0.5))
    assert time.monotonic() - begun > 1.9
    assert "throttled" in done.stderr
    assert "% of 0.2 CPUs" in done.stderr
    assert batchjob.record()["allocated_cpus"] == 0.2


def test_list_and_summary_agree_on_cpu_efficiency(require_cgroup, batchjob):
    done = batchjob("run", "--cpus", "0.5", "--", sys.executable, "-c", BURN.format(0.3))
    (percent,) = re.findall(r"(\d+ %) of 0\.5 CPUs", done.stderr)
    assert f"  {percent}  " in batchjob("jobs").stdout
    (row,) = json.loads(batchjob("jobs", "--format=json").stdout)
    assert (row["allocated_cpus"], share(row["cpu_efficiency"])) == (0.5, percent)


def test_io_limit(require_cgroup, batchjob, tmp_path):
    """8 MB at 4 MB a second; where the folder lies on no disk it is refused."""
    file = tmp_path / "file"
    write = f"dd if=/dev/zero of={file} bs=1M count=8 oflag=direct 2>/dev/null"
    begun = time.monotonic()
    done = batchjob("run", "--strict", "--io", "4M", "--", "sh", "-c", write, cwd=tmp_path)
    if "no controller" in done.stderr or "is not on a block device" in done.stderr:
        assert not file.exists()
        pytest.skip(done.stderr)
    assert done.returncode == 0
    assert time.monotonic() - begun > 1.3
    assert "8 MiB written" in done.stderr
    report = batchjob("job", done.stderr.split()[1])
    assert "IO 4 MiB/s" in report.stdout


def test_written_bytes(batchjob, tmp_path, cgroup_mode):
    """Whoever brings them to the disk, and whenever: here the kernel does so later."""
    write = f"dd if=/dev/zero of={tmp_path}/file bs=1M count=20 2>/dev/null"
    done = batchjob("run", "--cgroup", cgroup_mode, "--", "sh", "-c", write)
    if os.statvfs(tmp_path).f_flag and "0 B written" in done.stderr:
        pytest.skip("the folder lies in memory")
    assert batchjob.record()["written_bytes"] >= 20 << 20
    assert "20 MiB written" in done.stderr


def test_limits_not_in_force_are_not_recorded(batchjob):
    limits = ("--cpus", "0.5", "--memory", "64M")
    done = batchjob("run", "--cgroup", "never", *limits, "--", "true")
    record = batchjob.record()
    assert "allocated_cpus" not in record
    assert "allocated_memory_bytes" not in record
    assert "of 64 MiB" not in done.stderr
    (row,) = json.loads(batchjob("jobs", "--format=json").stdout)
    held = ("allocated_cpus", "allocated_memory_bytes", "cpu_efficiency", "memory_efficiency")
    assert [row[key] for key in held] == [None] * 4
    assert "64 MiB" not in batchjob("job", record["jobid"]).stdout


def test_io_limit_without_disk_is_refused_if_strict(batchjob):
    done = batchjob("run", "--strict", "--io", "4M", "--", "true", cwd="/proc")
    assert (done.returncode, batchjob.records()) == (125, [])
    assert "--io: " in done.stderr


def test_concurrent_runs_share_one_slice(require_cgroup, batchjob):
    jobids = [f"00000000-0000-4000-8000-0000000001{n:02}" for n in range(8)]
    failures = []

    def work(jobid):
        for _ in range(20):
            try:
                run_cgroup = cgroup.create(jobid, RunLimits())
                run_cgroup.read()
                failures.extend(run_cgroup.remove())
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(jobid,)) for jobid in jobids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_nested_cgroups_are_removed(require_cgroup, batchjob):
    script = """
    for each in $(grep batchjob.slice /proc/self/cgroup | cut -d: -f2,3); do
        top=/sys/fs/cgroup/${each%%:*}
        test -d $top && mkdir -p $top/${each#*:}/inner/most
    done; true"""
    assert batchjob("run", "--", "sh", "-c", script).returncode == 0
    assert own_cgroups(batchjob.record()["jobid"]) == []


class FakeCgroupTree:
    """A cgroup v2 file system as plain files."""

    def __init__(self, root: Path, own: str = "/user.slice/me") -> None:
        self.host = Host(procfs=str(root / "proc"), cgroupfs=str(root / "cgroup"))
        self.top = root / "cgroup"
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(f"0::{own}\n")
        for path in (self.top, self.top / own[1:]):
            path.mkdir(parents=True, exist_ok=True)
            for name in ("cgroup.procs", "cgroup.controllers", "cgroup.subtree_control"):
                (path / name).write_text("")


def test_cgroup_location_for_root_and_other_users(tmp_path, monkeypatch):
    tree = FakeCgroupTree(tmp_path)
    jobid = "00000000-0000-4000-8000-000000000002"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    run_cgroup = cgroup.create(jobid, RunLimits(), tree.host)
    assert run_cgroup.directories == (f"{tree.top}/batchjob.slice/run-{jobid}",)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    run_cgroup = cgroup.create(jobid, RunLimits(), tree.host)
    assert run_cgroup.directories == (f"{tree.top}/user.slice/me/batchjob.slice/run-{jobid}",)


def test_creation_error_leaves_no_trace(tmp_path, monkeypatch):
    tree = FakeCgroupTree(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert cgroup.creation_error(tree.host) == ""
    assert not (tree.top / "batchjob.slice").exists()
    none = Host(cgroupfs=str(tmp_path / "none"))
    assert cgroup.creation_error(none) == "no cgroup file system is mounted"


def test_cpu_binding_on_cgroup_v2(tmp_path, monkeypatch):
    tree = FakeCgroupTree(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    run_cgroup = cgroup.create("00000000-0000-4000-8000-000000000004", RunLimits(), tree.host)
    run = Path(*run_cgroup.directories)
    assert not run_cgroup.bind_cpus(
        "1-2"
    )  # the kernel has no such controller: each process is bound alone
    (run / "cpuset.cpus").touch()
    (run.parent / "cgroup.subtree_control").touch()
    assert run_cgroup.bind_cpus("1-2,5")
    assert (run / "cpuset.cpus").read_text() == "1-2,5"
    for above in (tree.top, run.parent):  # it is handed down from the top
        assert "+cpuset" in (above / "cgroup.subtree_control").read_text()


def test_no_usable_cgroup(tmp_path, monkeypatch):
    tree = FakeCgroupTree(tmp_path, own="/")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CgroupError, match="may not use any cgroup there"):
        cgroup.create("00000000-0000-4000-8000-000000000003", RunLimits(), tree.host)
    with pytest.raises(CgroupError, match="no cgroup file system"):
        cgroup.create("x", RunLimits(), Host(cgroupfs=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("run_limits", "version", "expected"),
    [
        (RunLimits(cpus=1.5), 2, [("cpu.max", "150000 100000")]),
        (RunLimits(cpus=0.001), 2, [("cpu.max", "1000 100000")]),
        (RunLimits(cpus=2), 1, [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "200000")]),
        (RunLimits(memory_bytes=5), 2, [("memory.max", "5"), ("memory.swap.max", "0")]),
        (
            RunLimits(memory_bytes=5), 1,
            [("memory.limit_in_bytes", "5"), ("memory.memsw.limit_in_bytes", "5")],
        ),
    ],
)  # fmt: skip
def test_cgroup_settings(run_limits, version, expected):
    assert [
        (each.file, each.value) for each in limits.cgroup_settings(run_limits, version, "/")
    ] == expected


def test_find_disk_of_partition(tmp_path):
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    disk = tmp_path / "sys/devices/sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (disk / "sda1/partition").write_text("1\n")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block" / number).symlink_to(disk / "sda1")
    assert limits.find_disk(str(tmp_path), str(tmp_path / "sys")) == "8:0"

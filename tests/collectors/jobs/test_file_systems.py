"""NFS and Lustre: what the node's counters gain is its only job's, and nobody's beside others."""

import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.quantities.reading import FileSystemIO
from collectors.host import Host
from collectors.jobs.collector import JobsOptions
from collectors.jobs.file_systems import add_gains, read_lustre, read_nfs
from tests.collectors.jobs.nodes import samples

RECORDED = Path(__file__).parents[2] / "fixtures" / "file_systems"


def test_counters_of_nfs_are_those_of_each_server_once():
    """/home and /data of alice are one file system, mounted twice."""
    assert read_nfs(f"{RECORDED}/proc") == {
        ("nfs", "0:45"): FileSystemIO(4194304, 3145728, 100),
        ("nfs", "0:46"): FileSystemIO(4096, 0, 2),
    }


def test_mounts_of_the_machine_come_before_those_that_the_exporter_sees(tmp_path):
    """Its unit hides /home."""
    shutil.copytree(RECORDED / "proc" / "self", tmp_path / "1")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountstats").write_text("device rootfs mounted on / with fstype rootfs\n")
    assert len(read_nfs(str(tmp_path))) == 2


def test_counters_of_lustre_are_its_read_and_write_calls_and_all_others():
    host = Host(procfs=f"{RECORDED}/proc", sysfs=f"{RECORDED}/sys")
    assert read_lustre(host) == {
        ("lustre", "scratch-ffff8e1234567800"): FileSystemIO(20971520, 10485760, 194)
    }


def test_old_versions_of_lustre_have_their_counters_in_proc(tmp_path):
    mount = tmp_path / "proc" / "fs" / "lustre" / "llite" / "scratch-ffff8800"
    mount.mkdir(parents=True)
    (mount / "stats").write_text(
        "snapshot_time             1420070400.123456 secs.usecs\n"
        "dirty_pages_hits          12 samples [regs]\n"
        "read_bytes                3 samples [bytes] 1 4096 5000\n"
        "brw_read                  2 samples [pages] 4096 4096 8192\n"
        "open                      4 samples [regs]\n"
    )
    host = Host(procfs=f"{tmp_path}/proc", sysfs=f"{tmp_path}/sys")
    assert list(read_lustre(host).values()) == [FileSystemIO(5000, 0, 7)]


def test_a_machine_without_network_file_systems_has_none(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountstats").write_text("device rootfs mounted on / with fstype rootfs\n")
    assert read_nfs(str(tmp_path)) == {}
    assert read_lustre(Host(procfs=str(tmp_path), sysfs=str(tmp_path))) == {}


COUNTERS = st.builds(FileSystemIO, *[st.integers(0, 100)] * 3)
MOUNTS = st.dictionaries(
    st.tuples(st.sampled_from(["nfs", "lustre"]), st.text(max_size=1)), COUNTERS
)


@given(st.lists(MOUNTS, min_size=1))
def test_sums_never_fall_and_never_gain_more_than_was_counted(readings):
    sums = {}
    for before, now in itertools.pairwise(readings):
        more = add_gains(sums, before, now)
        for kind, totals in more.items():
            counted = [each for mount, each in now.items() if mount[0] == kind]
            for field in FileSystemIO._fields:
                old = getattr(sums[kind], field) if kind in sums else 0
                gain = getattr(totals, field) - old
                assert 0 <= gain <= sum(getattr(each, field) for each in counted)
        sums = more


@pytest.fixture
def file_systems(node):
    """Sets the counters of the node's NFS, with those of Lustre as recorded."""
    shutil.copytree(RECORDED / "sys", node.host.sysfs)
    shutil.copytree(RECORDED / "proc" / "self", node.proc / "self")
    recorded = (RECORDED / "proc" / "self" / "mountstats").read_text()

    def set_nfs(read_bytes):
        text = recorded.replace(" 4194304 ", f" {read_bytes} ")
        (node.proc / "self" / "mountstats").write_text(text)
        node.now += 5

    return set_nfs


def start(node, number):
    job = node.add_job(f"job_{number}", pids=[number])
    node.add_process(number)
    return job


def end(node, job, number):
    shutil.rmtree(job)
    node.remove_process(number)


def read_bytes(jobs, number, kind="nfs"):
    return samples(jobs).get(("file_system_read_bytes_total", str(number), kind))


def test_a_job_alone_on_the_node_has_what_the_counters_gain(node, file_systems):
    jobs = node.collector(metrics=("file-systems",))
    job = start(node, 1)
    file_systems(1000)
    jobs.update()
    assert read_bytes(jobs, 1) is None
    file_systems(1500)
    jobs.update()
    assert read_bytes(jobs, 1) == 500
    assert read_bytes(jobs, 1, "lustre") == 0
    file_systems(1700)
    end(node, job, 1)
    jobs.update()
    jobs.collect()
    assert read_bytes(jobs, 1) == 700  # with what was done at the end


def test_jobs_beside_each_other_have_no_figure_for_that_time(node, file_systems):
    jobs = node.collector(metrics=("file-systems",))
    start(node, 1)
    for total in (1000, 1500):
        file_systems(total)
        jobs.update()
    second = start(node, 2)
    for total in (2000, 3000):
        file_systems(total)
        jobs.update()
        assert read_bytes(jobs, 1) is None
        assert read_bytes(jobs, 2) is None
    end(node, second, 2)
    for total in (4000, 5000):  # the first reading without it has what it did last
        file_systems(total)
        jobs.update()
    file_systems(5100)
    jobs.update()
    assert read_bytes(jobs, 1) == 600
    assert read_bytes(jobs, 2) is None
    start(node, 3)
    file_systems(9000)
    jobs.update()
    assert read_bytes(jobs, 1) is None


def test_a_job_that_came_and_went_between_two_readings_counts_as_another_one(node, file_systems):
    jobs = node.watching_collector(metrics=("file-systems",))
    start(node, 1)
    for total in (1000, 1500):
        file_systems(total)
        jobs.walker.walk_all(is_new=True)
        jobs.scanner.scan()
    assert read_bytes(jobs, 1) == 500
    short = start(node, 2)
    jobs.walker.walk_all(is_new=True)
    end(node, short, 2)
    for job in jobs.table.running():
        job.read_remaining(node.host.now())
    file_systems(2500)
    jobs.scanner.scan()
    assert read_bytes(jobs, 1) is None
    file_systems(2600)
    jobs.scanner.scan()
    file_systems(2650)
    jobs.scanner.scan()
    assert read_bytes(jobs, 1) == 650


@pytest.mark.parametrize("text", ["", "device a mounted on /a with fstype nfs4 statvers=1.1\n\n"])
def test_counters_that_are_not_understood_give_no_figure(node, file_systems, text):
    jobs = node.collector(metrics=("file-systems",))
    start(node, 1)
    for total in (1000, 1500):
        file_systems(total)
        jobs.update()
    (node.proc / "self" / "mountstats").write_text(text)
    (node.proc / "self" / "mountinfo").unlink()
    node.now += 5
    jobs.update()
    file_systems(9000)
    shutil.copy(RECORDED / "proc" / "self" / "mountinfo", node.proc / "self")
    jobs.update()
    assert read_bytes(jobs, 1) == 500  # what was meanwhile is not known
    file_systems(9001)
    jobs.update()
    assert read_bytes(jobs, 1) == 501


def test_the_group_is_off_by_default():
    assert "file-systems" not in JobsOptions().metrics

"""The helper on this machine's kernel: devices, IO and network of jobs, and nothing left behind."""

import contextlib
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batchjob_exporter.exposition import render
from collectors.host import Host
from collectors.jobs.collector import JobsCollector, JobsOptions
from collectors.jobs.discovery.site_layouts import site_layouts
from collectors.jobs.processes.kernel_counters import ContinuedCounters
from collectors.kernel import bpf
from collectors.kernel.answers import NEEDED, Helper
from collectors.kernel.client import HelperClient
from tests.collectors.kernel.device_programs import slurm
from tests.e2e.kernel_jobs import (
    directories,
    job_cgroups,
    run_in,
    skip_without_rights,
    v2_root,
)
from tests.helpers import processes
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.e2e

NOBODY = 65534
READ = 4096


@pytest.fixture(autouse=True)
def rights():
    skip_without_rights()


@contextlib.contextmanager
def helper(folder: Path, *flags: str):
    """A helper, and a client of it."""
    path = folder / "socket"
    argv = [sys.executable, "-m", "batchjob_exporter.helper", "--listen", str(path),
            "--exporter-directory", str(folder), *flags]  # fmt: skip
    process = subprocess.Popen(argv)
    try:
        until(lambda: is_listening(path), "the helper listens")
        yield process, client_of(path)
    finally:
        processes.end(process)


def client_of(path):
    """Patient: programs take a while to load on an emulated processor."""
    return HelperClient(Host(helper=str(path)), scaled(5))


def removed(directory):
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not directory.exists()


def is_listening(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def cgroup(job):
    """What its counters are found by."""
    return directories([job])[0]


def counters(client, jobs):
    found = until(lambda: client.job_counters(directories(jobs)), "an answer")
    assert found.process_io is not None
    assert found.network is not None
    return found


def test_the_kernel_and_the_helper_agree_on_a_jobs_devices(tmp_path):
    """As open(2) of a process in the job's cgroup answers."""
    nodes = {(1, 3): "null", (1, 5): "zero", (1, 7): "full", (1, 9): "urandom"}
    rules = [(1, 5, False), (1, 7, True), (1, 9, False)]
    program = "for name in sys.argv[2:]:\n try: open('/dev/' + name, 'r+b').close()\n except PermissionError: continue\n print(name)"  # noqa: E501
    with job_cgroups("v2") as (job,), helper(tmp_path) as (_, client):
        cgroup = os.open(job, os.O_RDONLY)
        loaded = bpf.load_program(bpf.CGROUP_DEVICE, slurm(rules))
        link = bpf.attach(loaded, cgroup, bpf.DEVICE)
        try:
            opened = run_in(job, program, *nodes.values()).communicate()[0].split()
            allotted = client.allotted_devices(str(job), nodes)
        finally:
            for descriptor in (link, loaded, cgroup):
                os.close(descriptor)
        assert [nodes[each] for each in allotted] == opened == ["null", "full"]
        assert client.allotted_devices(str(job), nodes) is None  # without a program


FORKS = f"""
import random, threading
r = random.Random(int(sys.argv[2])); zero = os.open("/dev/zero", 0); total = 0
def reads(n):
    for _ in range(n): os.read(zero, {READ})
def grow(depth):
    for _ in range(r.randrange(1, 4)):
        n = r.randrange(1, 40)
        if r.random() < .3:
            thread = threading.Thread(target=reads, args=(n,)); thread.start(); thread.join()
        elif not os.fork():
            r.seed(n); reads(n); depth < 3 and grow(depth + 1)
            os.write(1, b"%d\\n" % n); os._exit(0)
        else:
            os.wait(); continue
        os.write(1, b"%d\\n" % n)
def read_by_me(): return int(open("/proc/self/io").readline().split()[1])
before = read_by_me()
for _ in range(20): grow(0)
os.write(1, b"own %d\\n" % before)
"""


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_io_of_random_trees_of_short_processes_is_exact(tmp_path, version):
    with job_cgroups(version, 4) as jobs, helper(tmp_path) as (_, client):
        counters(client, jobs)
        running = [run_in(job, FORKS, number) for number, job in enumerate(jobs)]
        printed = [each.communicate()[0].split("\n") for each in running]
        found = counters(client, jobs)
        for job, lines in zip(jobs, printed, strict=True):
            own = [int(line.split()[1]) for line in lines if line.startswith("own")]
            read = sum(int(line) * READ for line in lines if line.isdigit())
            counted = found.process_io[cgroup(job)][2]
            # The start of Python, and the two reads of /proc/self/io themselves.
            assert 0 <= counted - read - sum(own) < 1000


SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0)); print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept(); buffer = bytearray(1 << 20); total = 0
while got := connection.recv_into(buffer): total += got
print(total); connection.sendall(b"x")
"""
CLIENT = """
import socket, struct
connection = socket.create_connection(("127.0.0.1", int(sys.argv[2]))); data = bytes(1 << 20)
for _ in range(int(sys.argv[3])): connection.sendall(data)
connection.shutdown(socket.SHUT_WR); connection.recv(1)
print(*struct.unpack_from("Q", connection.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 256), 200))
"""
MAX_HEADERS = 60 + 60  # bytes, of IP and of TCP


@contextlib.contextmanager
def later_jobs(earlier, count=1):
    """Jobs beside one that the helper knows: their network is counted from the beginning."""
    jobs = [earlier.with_name(f"later_{number}") for number in range(count)]
    directories = [each for job in jobs for each in (job / "step", job)]
    try:
        for job in jobs:
            (job / "step").mkdir(parents=True)
        yield jobs
    finally:
        for each in directories:
            until(lambda each=each: removed(each), "the cgroup is empty")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_traffic_between_two_jobs_is_the_bytes_sent_and_headers(tmp_path, version, long_form):
    mebibytes = 2048 if long_form else 256
    with job_cgroups(version) as (earlier,), helper(tmp_path) as (_, client):
        counters(client, [earlier])
        with later_jobs(earlier, 2) as jobs:
            server = run_in(jobs[1], SERVER)
            port = server.stdout.readline().strip()
            # tcpi_bytes_sent: with what TCP has sent again, as it does on a busy machine.
            sent = int(run_in(jobs[0], CLIENT, port, mebibytes).communicate()[0])
            received = int(server.communicate()[0])
            found = counters(client, jobs)
            (wire, (*_, bytes_out, packets_out)), (_, (bytes_in, packets_in, *_)) = (
                found.network[cgroup(job)] for job in jobs
            )
            print(mebibytes, sent, received, bytes_out, packets_out, bytes_in, packets_in)
            assert list(wire) == [0, 0, 0, 0]
            assert received == mebibytes << 20 <= sent
            assert sent < bytes_out < sent + MAX_HEADERS * packets_out < 1.005 * sent
            assert received < bytes_in < sent + MAX_HEADERS * packets_in < 1.005 * sent


SOCKETS = """
import socket
sender, receiver = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
"""
TALK = f"""{SOCKETS}
sender.sendto(b"x" * 100, receiver.getsockname()); receiver.recv(100)
"""
TALK_LATER = TALK.replace("sender.sendto", "print(flush=True); sys.stdin.readline()\nsender.sendto")
ONE_PACKET_EACH_WAY = [128, 1, 128, 1]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_traffic_of_a_job_that_was_there_before_is_marked_or_absent(tmp_path, version):
    """On v1 its sockets belong to no job, and would count zero; on v2 they are counted now."""
    with job_cgroups(version, 2) as (earlier, other), helper(tmp_path) as (_, client):
        running = run_in(earlier, TALK_LATER, stdin=subprocess.PIPE)
        running.stdout.readline()
        counters(client, [other])
        running.communicate("go on")
        with later_jobs(other) as (later,):
            run_in(later, TALK).communicate()
            found = counters(client, [earlier, other, later])
            assert found.earlier == {cgroup(earlier), cgroup(other)}
            assert found.network[cgroup(later)][1] == ONE_PACKET_EACH_WAY
            of_earlier = found.network[cgroup(earlier)]
            assert of_earlier is None if version == "v1" else of_earlier[1] == ONE_PACKET_EACH_WAY


def test_a_later_job_of_the_same_name_has_counters_of_its_own(tmp_path):
    with helper(tmp_path) as (_, client):
        ids = set()
        for _turn in range(3):
            with job_cgroups("v2", 2) as (_, job):
                found = counters(client, [job])
                assert found.network[cgroup(job)][1] == [0, 0, 0, 0]
                assert found.process_io[cgroup(job)] == [0, 0, 0, 0]
                run_in(job, TALK).communicate()
                assert counters(client, [job]).process_io[cgroup(job)][2] > 0
                ids.add(job.stat().st_ino)
        assert len(ids) == 3


@contextlib.contextmanager
def mounted(folder, controller):
    """A v1 hierarchy of a controller that has none, with one job; its numbers begin again."""
    root = folder / controller
    root.mkdir(exist_ok=True)
    done = processes.run(["mount", "-t", "cgroup", "-o", controller, "cgroup", str(root)])
    if done.returncode:
        pytest.skip(f"{controller} has a hierarchy already: {done.stderr}")
    job = root / "jobs" / "user" / "case_1"
    try:
        (job / "step").mkdir(parents=True)
        yield job
    finally:
        for each in (job / "step", job, job.parent, job.parent.parent):
            until(lambda each=each: removed(each), "the cgroup is empty")
        time.sleep(scaled(0.2))  # the kernel removes them after rmdir(2) has returned
        # As an administrator does who is told that it is busy.
        processes.run(["umount", "--lazy", str(root)])


def test_ids_that_the_kernel_would_give_again_bring_no_counters_of_an_earlier_job(tmp_path):
    """The ids of a v1 hierarchy that nobody uses any more begin again with the next one."""
    ids = []
    for _ in range(3):
        with mounted(tmp_path, "perf_event") as job:
            ids.append(job.stat().st_ino)
    assert ids[1] == ids[2]  # without a helper
    flags = ("--path.cgroupfs", str(tmp_path), "--give", "process-io")
    with helper(tmp_path, *flags):
        host = Host(helper=str(tmp_path / "socket"), cgroupfs=str(tmp_path))
        client = HelperClient(host, scaled(5))

        def counted(job):
            return until(lambda: client.job_counters(directories([job])), "an answer").process_io

        for _ in range(3):
            with mounted(tmp_path, "perf_event") as job:
                assert counted(job)[cgroup(job)] == [0, 0, 0, 0]
                run_in(job, TALK).communicate()
                assert counted(job)[cgroup(job)][2] > 0


@pytest.mark.parametrize("source", ["network", "process_io"])
def test_numbers_are_absent_with_the_reason_once_there_were_too_many_jobs(monkeypatch, source):
    """A job without a place for its counters would have zeros."""
    monkeypatch.setattr(f"collectors.kernel.{source}.MAX_JOBS", 4)
    asked = Helper()
    with contextlib.closing(asked), job_cgroups("v2", 6) as jobs:
        parent = str(jobs[0].parent.relative_to("/sys/fs/cgroup"))
        request = {"jobs": {parent: [job.stat().st_ino for job in jobs]}}
        feature = source.replace("_", "-")
        assert asked.answer(request)["problems"] == {}
        for job in jobs:
            run_in(job, TALK).communicate()
        answer = asked.answer(request)
        assert answer["numbers"][feature] is None
        assert "at a time" in answer["problems"][feature]
        for job in jobs:  # for ever: what was missed in the meantime is not known
            job_id = job.stat().st_ino
            assert asked.answer({"jobs": {parent: [job_id]}})["numbers"][feature] is None


def test_parents_of_jobs_that_have_gone_make_room_for_others(monkeypatch):
    """Each user of a machine without a scheduler has a parent, and there may be any number."""
    monkeypatch.setattr("collectors.kernel.network.MAX_PARENTS", 2)
    asked = Helper()
    for _ in range(4):
        with job_cgroups("v2") as (job,):
            parent, job_id = str(job.parent.relative_to("/sys/fs/cgroup")), job.stat().st_ino
            asked.answer({"jobs": {parent: [job_id]}})
            run_in(job, TALK).communicate()
            (network,) = asked.answer({"jobs": {parent: [job_id]}})["numbers"]["network"]
            assert network[1] == ONE_PACKET_EACH_WAY
    asked.close()


def programs_of(cgroup, place):
    with contextlib.ExitStack() as opened:
        descriptor = os.open(cgroup, os.O_RDONLY)
        opened.callback(os.close, descriptor)
        return bpf.attached_programs(descriptor, place)


READ_SOME = """
os.read(os.open("/dev/zero", 0), 65536)
print(open("/proc/self/io").readline().split()[1])
"""


def test_a_killed_helper_leaves_nothing_and_the_next_one_counts_again(tmp_path, long_form):
    """What the exporter shows neither falls nor has anything twice."""
    shown, used = ContinuedCounters(), 0
    with job_cgroups("v2") as (job,):
        for turn in range(1, 1 + (200 if long_form else 10)):
            with helper(tmp_path) as (process, client):
                found = counters(client, [job])
                assert programs_of(job.parent, bpf.EGRESS)
                assert found.process_io[cgroup(job)] == [0, 0, 0, 0]
                shown.update(found.instance, found.process_io[cgroup(job)])
                used += int(run_in(job, READ_SOME).communicate()[0])
                found = counters(client, [job])
                shown.update(found.instance, found.process_io[cgroup(job)])
                assert 0 <= shown.shown[2] - used < 1000 * turn  # the reads of /proc/self/io
                process.send_signal(signal.SIGKILL)
                process.wait()
            until(lambda: not programs_of(job.parent, bpf.EGRESS), "the programs are gone")


def test_an_exporter_that_was_away_for_hours_finds_all_counters(monkeypatch):
    """Also those of jobs that it finds again later than others."""
    asked, past = Helper(), time.monotonic
    with contextlib.closing(asked), job_cgroups("v2", 2) as jobs:
        parent = str(jobs[0].parent.relative_to("/sys/fs/cgroup"))
        first, second = (job.stat().st_ino for job in jobs)

        def read(*ids):
            return asked.answer({"jobs": {parent: list(ids)}})["numbers"]["process-io"]

        read(first, second)
        run_in(jobs[1], READ_SOME).communicate()
        before = read(first, second)
        assert before[1][2] > 65536
        monkeypatch.setattr(time, "monotonic", lambda: past() + 2 * 3600)
        read(first)
        assert read(first, second) == before


def test_two_exporters_read_the_same_counters(tmp_path):
    with job_cgroups("v2") as jobs, helper(tmp_path) as (_, client):
        counters(client, jobs)
        run_in(jobs[0], FORKS, 5).communicate()
        other = client_of(tmp_path / "socket")
        assert counters(other, jobs) == counters(client, jobs)


def test_an_exclusive_program_of_a_parent_is_named(tmp_path):
    with job_cgroups("v2") as (job,), helper(tmp_path) as (_, client):
        parent = os.open(job.parent.parent, os.O_RDONLY)
        code = bytes.fromhex("b7000000010000009500000000000000")
        program = bpf.load_program(bpf.CGROUP_SKB, code, bpf.EGRESS)
        bpf.call(8, "IIII", parent, program, bpf.EGRESS, 0)  # BPF_PROG_ATTACH, exclusive
        try:
            path = str(job.parent.relative_to("/sys/fs/cgroup"))
            request = {"jobs": {path: [job.stat().st_ino]}}
            answer = until(lambda: client.ask(request), "an answer", 60)
            assert answer["numbers"]["network"] is None
            assert "exclusive" in answer["problems"]["network"]
            assert answer["numbers"]["process-io"]
        finally:
            bpf.call(9, "IIII", parent, program, bpf.EGRESS, 0)
            os.close(program)
            os.close(parent)


CHECK = """
from collectors.kernel.answers import Helper
print(json.dumps(Helper().answer({"check": True})["problems"]))
"""
ALL = ["bpf", "perfmon", "net_admin", "sys_admin"]


@pytest.mark.parametrize(
    ("held", "works"),
    [
        (ALL, {"process-io", "network", "devices"}),
        (["bpf", "perfmon", "net_admin"], {"process-io", "network"}),
        (["bpf", "perfmon"], {"process-io"}),
        # It stands for the others; to attach programs of networks, since Linux 6.9 only.
        (["sys_admin", "net_admin"], {"process-io", "network", "devices"}),
        ([], set()),
    ],
)
def test_a_missing_capability_is_named(held, works):
    bounds = ",".join(["-all", *(f"+{each}" for each in held)])
    argv = ["setpriv", "--bounding-set", bounds, sys.executable, "-c", "import json" + CHECK]
    problems = json.loads(processes.run(argv).stdout)
    assert {feature for feature, problem in problems.items() if not problem} == works
    assert all("needs CAP_" in problem for problem in problems.values() if problem)


def capabilities(process):
    """Those of the helper's that are effective, and those that it may use."""
    numbers = {"net_admin": 12, "sys_admin": 21, "perfmon": 38, "bpf": 39}
    status = Path(f"/proc/{process.pid}/status").read_text()
    effective, permitted = (
        int(re.search(rf"^{field}:\s*(\w+)$", status, re.MULTILINE)[1], 16)
        for field in ("CapEff", "CapPrm")
    )
    assert permitted & ~sum(1 << number for number in numbers.values()) == 0
    return effective, {name for name, number in numbers.items() if permitted >> number & 1}


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (["process-io"], {"bpf", "perfmon"}),
        (["process-io", "network"], {"bpf", "perfmon", "net_admin"}),
        (["devices"], {"sys_admin"}),
    ],
)
def test_capabilities_rest_while_counting_and_others_are_given_up(tmp_path, given, held):
    """New parents of jobs, and trees of another hierarchy, are counted after the first answer."""
    with helper(tmp_path, "--give", *given) as (process, client):
        for version in ("v2", "v1", "v2"):
            with job_cgroups(version) as (first,):
                until(lambda job=first: client.job_counters(directories([job])), "an answer", 60)
                with later_jobs(first) as (job,):
                    run_in(job, TALK).communicate()
                    asked = directories([job])
                    found = until(lambda asked=asked: client.job_counters(asked), "one", 60)
                    if "network" in given:
                        assert found.network[cgroup(job)][1] == ONE_PACKET_EACH_WAY
                    if "process-io" in given:
                        assert found.process_io[cgroup(job)][2] > 0
            assert capabilities(process) == (0, held)


IN_A_NAMESPACE = f"""
mount -t cgroup2 cgroup2 "$1"
exec {sys.executable} -c '
import json, sys
from collectors.kernel.answers import Helper
print(json.dumps(Helper(sys.argv[1]).answer({{"check": True}})["problems"]))' "$1"
"""


def test_levels_of_a_cgroup_namespace_are_not_known(tmp_path):
    """A job would have zeros: the programs see its cgroup at a lower level than its path says."""
    program = "import os\nos.execvp('unshare', ['unshare', '--cgroup', '--mount', *sys.argv[2:]])"
    with job_cgroups("v2") as (job,):
        argv = ("sh", "-ec", IN_A_NAMESPACE, "sh", tmp_path)
        problems = json.loads(run_in(job, program, *argv).communicate()[0])
    assert problems["devices"] == ""
    assert all("cgroup namespace" in problems[each] for each in ("network", "process-io"))


WITHOUT_BPF = """
import ctypes, json, struct
rules = (0x20, 0, 0, 0), (0x15, 0, 1, 321), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7FFF0000)
packed = b"".join(struct.pack("HBBI", *rule) for rule in rules)
code = ctypes.create_string_buffer(packed, len(packed))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
ctypes.CDLL(None).prctl(22, 2, program)  # PR_SET_SECCOMP: bpf(2) answers ENOSYS
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="has the number of bpf(2) of x86-64")
def test_a_kernel_without_bpf_is_named():
    done = processes.run([sys.executable, "-c", WITHOUT_BPF + CHECK])
    named = dict.fromkeys(NEEDED, "the kernel has no bpf(2) (CONFIG_BPF_SYSCALL)")
    assert json.loads(done.stdout) == named, done.stderr


def test_ten_thousand_jobs_have_their_answers_at_once(tmp_path):
    with job_cgroups("v2") as (job,), helper(tmp_path) as (_, client):
        counters(client, [job])
        run_in(job, TALK).communicate()
        others = [(f"{job.parent}/gone_{number}", 10**15 + number) for number in range(9_999)]
        found = client.job_counters([*directories([job]), *others])
        assert len(found.process_io) == len(found.network) == 10_000
        assert found.network[cgroup(job)][1] == ONE_PACKET_EACH_WAY
        assert not any(map(any, (found.process_io[each] for each in others)))


AS_OTHER_USER = """
import os, sys
from collectors.host import Host
from collectors.kernel.client import HelperClient
os.setuid(int(sys.argv[2]))
print(HelperClient(Host(helper=sys.argv[1])).ask({"check": True}) is not None)
"""


def test_only_root_and_the_owner_of_the_exporters_directory_may_ask(tmp_path):
    tmp_path.chmod(0o755)
    for above in list(tmp_path.parents)[:3]:
        if above.stat().st_uid == os.getuid() and above != Path("/tmp"):
            above.chmod(0o755)
    with helper(tmp_path):

        def asks(uid):
            argv = [sys.executable, "-c", AS_OTHER_USER, str(tmp_path / "socket"), str(uid)]
            return processes.run(argv).stdout.strip()

        assert asks(0) == "True"
        assert asks(NOBODY) == "False"
        os.chown(tmp_path, NOBODY, -1)
        assert asks(NOBODY) == "True"


@pytest.mark.parametrize(
    "request_text",
    [
        '{"devices": "../../../etc", "numbers": []}', '{"devices": "/etc", "numbers": []}',
        '{"devices": "unified", "numbers": [[1]]}', '{"devices": "unified", "numbers": [[-1, 2]]}',
        '{"devices": "unified", "numbers": [], "file": "/etc/passwd"}',
        '{"jobs": {"unified": "1"}}',
        '{"jobs": {"unified/../x": [1]}}', '{"jobs": {"unified/a": [true]}}', "[]", "null", "{",
        '{"check": false}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_bad_request_has_an_error_and_the_helper_goes_on(tmp_path, request_text):
    with helper(tmp_path) as (_, client):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "socket"))
            connection.sendall(request_text.encode() + b"\n")
            assert "expected" in json.loads(connection.makefile().readline()).get("error", "") or (
                request_text.startswith(("{", "[["))
            )
        assert until(client.problems, "an answer")


def test_a_symbolic_link_is_not_followed(tmp_path):
    root = tmp_path / "cgroup"
    (root / "job").mkdir(parents=True)
    (root / "cgroup.controllers").touch()
    (root / "link").symlink_to("/sys/fs/cgroup")
    with helper(tmp_path, "--path.cgroupfs", str(root)) as (_, client):
        assert client.ask({"devices": "link", "numbers": []}) is None


def test_a_client_that_says_nothing_holds_up_others_for_its_deadline_only(tmp_path):
    with helper(tmp_path) as (_, client), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(tmp_path / "socket"))
        found = until(lambda: client.problems(), "an answer")
        assert set(found) == {"devices", "network", "process-io"}


@contextlib.contextmanager
def jobs_collector(folder, jobs):
    """The exporter's collector of jobs, which finds the jobs of a test."""
    (base,) = {job.parent for job in jobs}
    root = "/" + base.relative_to(v2_root()).as_posix()
    pattern = f"{os.path.dirname(root)}/user_{{uid}}/case_{{jobid}}"
    layouts = site_layouts([{"manager": "mybatch", "pattern": pattern}])
    options = JobsOptions(layouts=layouts, processes_interval=0.2)
    collector = JobsCollector(Host(helper=str(folder / "socket"), state=str(folder)), options)
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()


def shown(collector, metric):
    """The value of the test's only job; None if it has none."""
    text = render(collector.collect()).decode()
    found = re.search(rf'^{metric}{{manager="mybatch".*}} (\S+)$', text, re.MULTILINE)
    return found and float(found[1])


READS = "batchjob_job_process_io_read_characters_total"


def test_the_exporter_shows_exact_io_of_jobs_and_goes_on_after_its_restart(tmp_path):
    with job_cgroups("v2", 1) as (job,), helper(tmp_path):
        holder = run_in(job, "sys.stdin.read()", stdin=subprocess.PIPE)

        def read():
            return shown(collector, READS) or 0

        with jobs_collector(tmp_path, [job]) as collector:
            before = until(read, "IO of the job")
            run_in(job, FORKS, 1).communicate()
            first = until(lambda: read() > before and read(), "more IO")
        run_in(job, FORKS, 2).communicate()  # while no exporter runs
        client = client_of(tmp_path / "socket")
        exact = counters(client, [job]).process_io[cgroup(job)][2]
        with jobs_collector(tmp_path, [job]) as collector:
            until(lambda: read() == exact, "all IO")
            assert exact > first
            holder.communicate()
            until(lambda: read() >= exact, "the IO of the ended job")

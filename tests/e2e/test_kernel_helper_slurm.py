"""The helper and the exporter, with the rights of their units, on a real Slurm with cgroup v1."""

import subprocess
import sys

import pytest

from batchjob.runtime.formatting import size
from tests.e2e import messages_site
from tests.e2e.watched_node import ALONE, HELPED
from tests.e2e.workload import PYTHON
from tests.helpers import processes
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

PROCESSES, BLOCKS, BLOCK_BYTES = 300, 64, 4096
BYTES = PROCESSES * BLOCKS * BLOCK_BYTES
COPY = f"dd if=/dev/zero of=/dev/null bs={BLOCK_BYTES} count={BLOCKS} status=none"
SCRIPT = f"for each in $(seq {PROCESSES}); do {COPY}; done"
READ, WRITTEN = (f"batchjob_job_process_io_{way}_characters_total" for way in ("read", "written"))

RECEIVED, SENT = (f"batchjob_job_network_{way}_bytes_total" for way in ("receive", "transmit"))
MIB = 1 << 20
ASKED, ANSWERED = {"bob": 3 * MIB, "carol": 96 * MIB}, {"bob": 64 * MIB, "carol": MIB}
# Another machine: it is told how much to expect and how much to answer, in two numbers.
OTHER = """
import socket, struct, threading
def serve(connection):
    asked, answered = struct.unpack("QQ", connection.recv(16, socket.MSG_WAITALL))
    while asked: asked -= len(connection.recv(min(asked, 1 << 20)))
    connection.sendall(bytes(answered)); connection.close()
listener = socket.create_server(("", 7000)); print(flush=True)
while True: threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""
# What is said over loopback, here to oneself, is not of the network.
TALK = """
import socket, struct, sys
asked, answered = map(int, sys.argv[2:])
with socket.create_connection((sys.argv[1], 7000)) as connection:
    connection.sendall(struct.pack("QQ", asked, answered))
    for _ in range(asked >> 20): connection.sendall(bytes(1 << 20))
    while connection.recv(1 << 20): pass
near, far = (socket.socket(type=socket.SOCK_DGRAM) for _ in "12")
far.bind(("127.0.0.1", 0))
for _ in range(10000): near.sendto(bytes(1000), far.getsockname()); far.recv(1000)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with messages_site.running(tmp_path_factory.mktemp("kernel")) as running:
        yield running


@pytest.fixture(scope="module")
def other_machine():
    """The address of another machine on a cable."""
    argv = ["unshare", "--net", sys.executable, "-c", OTHER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline()
            near, net = f"kt{process.pid}", f"--net=/proc/{process.pid}/ns/net"
            there = ("nsenter", net, "ip")
            peer = ("peer", "name", "far", "netns", str(process.pid))
            processes.call("ip", "link", "add", near, "type", "veth", *peer)
            for ip, name, number in ((("ip",), near, 1), (there, "far", 2)):
                processes.call(*ip, "addr", "add", f"198.51.100.{number}/30", "dev", name)
                processes.call(*ip, "link", "set", name, "up")
            yield "198.51.100.2"
        finally:
            process.kill()  # the cable goes with its end


def test_bytes_of_short_processes_of_a_job_are_exact(site):
    """Starting a program reads its libraries, which is some more than `dd` reads itself.

    A first job is seen before: the helper begins to count with the first that it is asked about.
    """
    first = site.slurm.submit("alice", "sleep 600", "--time=60")
    until(lambda: site.exporters[HELPED].scrape().series(WRITTEN, jobid=first), "a counted job", 60)
    site.slurm.command("scancel", first)
    job = site.slurm.submit("alice", f"{SCRIPT}; sleep 5; {SCRIPT}; sleep 600", "--time=60")
    labels = {"manager": "slurm", "jobid": job}

    def written():
        return site.exporters[HELPED].scrape().value(WRITTEN, **labels) or 0

    until(lambda: written() >= 2 * BYTES, "all bytes of the job", 240)
    assert written() < 2.02 * BYTES
    assert 2 * BYTES <= site.exporters[HELPED].scrape().value(READ, **labels) < 2.1 * BYTES


@pytest.fixture(scope="module")
def talking(site, other_machine):
    """Two jobs at the same time, by user, that have talked to the other machine and go on.

    They begin once they are seen: on v1, sockets older than the helper's programs are not counted.
    """
    jobs, scrape = {}, site.exporters[HELPED].scrape
    for user, asked in ASKED.items():
        (site.slurm.home(user) / "talk.py").write_text(TALK)
        talk = f"{PYTHON} talk.py {other_machine} {asked} {ANSWERED[user]} && touch said"
        script = f"until [ -e go ]; do sleep 0.2; done; {talk}; sleep 600"
        jobs[user] = site.slurm.submit(user, script, "--time=60")
    for user, job in jobs.items():
        until(lambda job=job: scrape().series(SENT, jobid=job), "the job is seen", 60)
        (site.slurm.home(user) / "go").touch()
        until((site.slurm.home(user) / "said").exists, f"{user}'s job has talked", 120)
    return jobs


@pytest.mark.parametrize("user", ASKED)
def test_bytes_of_a_jobs_sockets_are_those_sent_and_headers(site, talking, user):
    """In metrics, database, report and page; without the helper, nobody knows them."""
    job = talking[user]
    exporter = site.exporters[HELPED]
    series = {"manager": "slurm", "jobid": job, "device": "sockets"}
    until(lambda: (exporter.scrape().value(SENT, **series) or 0) > ASKED[user], "traffic", 60)
    shown = [exporter.scrape().value(name, **series) for name in (SENT, RECEIVED)]
    for counted, true in zip(shown, (ASKED[user], ANSWERED[user]), strict=True):
        # One way's acknowledgements are part of the other's bytes.
        assert true < counted < 1.005 * true + 0.005 * max(ASKED[user], ANSWERED[user])

    def stored(cluster):
        rows = site.node.rows(f"/jobs/{job}", cluster=cluster)
        return [[row[f"usage_network_{way}_bytes"] for way in ("sent", "received")] for row in rows]

    def report(cluster):
        return site.node.get(f"/api/v1/jobs/{job}/report", cluster=cluster, format="text")

    until(lambda: stored(HELPED) == [shown], "the totals in the database", 120, 1)
    sent, received = map(size, shown)
    page = site.node.get(f"/jobs/{job}", cluster=HELPED)
    for text in (report(HELPED), page):
        assert f"{received} received, {sent} sent" in text.replace("\u202f", " ")
    assert until(lambda: stored(ALONE), "the other cluster", 60) == [[None, None]]
    assert site.exporters[ALONE].scrape().series(SENT, jobid=job) == []
    assert "Network" not in report(ALONE)

"""Network traffic is counted for processes in a network namespace of their own only."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest

from collectors.jobs.processes.proc import read_network
from tests.helpers.processes import call
from tests.helpers.waiting import until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"),
    reason="network namespaces need root, and Debian's iproute2",
)

SEND = """
import socket, sys, time
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(100):
    to.sendto(bytes(1000), ("192.0.2.2", 9))
print("sent", flush=True)
time.sleep(600)
"""


@pytest.fixture
def network_namespace():
    """Command prefix that enters a new network namespace with one veth interface."""
    name = f"bj-{os.getpid()}"
    inside = ("nsenter", f"--net=/run/netns/{name}", "--")
    call("ip", "netns", "add", name)
    try:
        call(*inside, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "far")
        call(*inside, "ip", "address", "add", "192.0.2.1/24", "dev", "cable")
        for device in ("lo", "cable", "far"):
            call(*inside, "ip", "link", "set", device, "up")
        neighbour = ("192.0.2.2", "lladdr", "02:00:00:00:00:02", "dev", "cable")
        call(*inside, "ip", "neighbour", "add", *neighbour)
        yield inside
    finally:
        call("ip", "netns", "delete", name)


@pytest.fixture
def procfs(tmp_path):
    """The kernel's /proc, in which this process stands for the machine's first one."""
    (tmp_path / "1").symlink_to("/proc/self")
    return tmp_path


def test_network_counters_match_those_of_the_interface(network_namespace, procfs):
    sender = subprocess.Popen(
        [*network_namespace, sys.executable, "-c", SEND], stdout=subprocess.PIPE
    )
    try:
        assert sender.stdout.readline() == b"sent\n"
        (procfs / str(sender.pid)).symlink_to(f"/proc/{sender.pid}")

        def matching_counters():
            found = read_network(str(procfs), sender.pid)["cable"]
            (link,) = json.loads(
                call(*network_namespace, "ip", "-s", "-j", "link", "show", "cable")
            )
            sent, got = link["stats64"]["tx"], link["stats64"]["rx"]
            kernel = (got["bytes"], got["packets"], sent["bytes"], sent["packets"])
            counters = (
                found.receive_bytes, found.receive_packets,
                found.transmit_bytes, found.transmit_packets,
            )  # fmt: skip
            return counters == kernel and found

        # Neighbours are announced meanwhile.
        found = until(matching_counters, "the counters match those of the kernel")
        assert found.transmit_bytes >= 100 * 1042  # with the headers of UDP, IP and Ethernet
        assert "lo" not in read_network(str(procfs), sender.pid)
    finally:
        sender.kill()
        sender.communicate()


def test_process_in_the_host_network_namespace_has_no_counters(procfs):
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        (procfs / str(sleeper.pid)).symlink_to(f"/proc/{sleeper.pid}")
        assert read_network(str(procfs), sleeper.pid) is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_host_namespace_that_may_not_be_read(procfs, monkeypatch):
    """A process in our own namespace has no other one; of any other process, nobody knows."""
    for pid, namespace in (("self", "ours"), ("10", "ours"), ("11", "another")):
        (procfs / pid / "ns").mkdir(parents=True)
        (procfs / namespace).touch()
        (procfs / pid / "ns/net").symlink_to(procfs / namespace)
    read = os.stat

    def stat(path):
        if path == f"{procfs}/1/ns/net":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(path)

    monkeypatch.setattr("os.stat", stat)
    assert read_network(str(procfs), 10) is None
    with pytest.raises(PermissionError, match="1/ns/net"):
        read_network(str(procfs), 11)

"""Traffic of a process with a network namespace of its own, and none of one without."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from collectors.jobs.processes.proc import read_network
from tests.e2e.processes import call, until

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
def network():
    """The command that starts another in a network of its own, with a cable to nowhere."""
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


def test_they_are_the_interface_s_own_counters(network, procfs):
    sender = subprocess.Popen([*network, sys.executable, "-c", SEND], stdout=subprocess.PIPE)
    try:
        assert sender.stdout.readline() == b"sent\n"
        (procfs / str(sender.pid)).symlink_to(f"/proc/{sender.pid}")

        def same():
            found = read_network(str(procfs), sender.pid)["cable"]
            (link,) = json.loads(call(*network, "ip", "-s", "-j", "link", "show", "cable"))
            sent, got = link["stats64"]["tx"], link["stats64"]["rx"]
            kernel = (got["bytes"], got["packets"], sent["bytes"], sent["packets"])
            ours = (
                found.receive_bytes, found.receive_packets,
                found.transmit_bytes, found.transmit_packets,
            )  # fmt: skip
            return ours == kernel and found

        found = until(same, "the kernel's own numbers")  # neighbours are announced meanwhile
        assert found.transmit_bytes >= 100 * 1042  # with the headers of UDP, IP and Ethernet
        assert "lo" not in read_network(str(procfs), sender.pid)
    finally:
        sender.kill()
        sender.communicate()


def test_who_shares_the_machine_s_network_has_none(procfs):
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        (procfs / str(sleeper.pid)).symlink_to(f"/proc/{sleeper.pid}")
        assert read_network(str(procfs), sleeper.pid) is None
    finally:
        sleeper.kill()
        sleeper.wait()

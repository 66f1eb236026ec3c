"""`batchjob up` on one machine and the command line on a second one.

Each has a network of its own, joined by a cable: two network namespaces and a veth pair, created
and removed here. The network of this machine is not changed.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.helpers.processes import call
from tests.helpers.waiting import until
from tests.security.remote_up import RemoteUp, remote_server, run_cli

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"),
    reason="network namespaces need root, and Debian's iproute2",
)

ADDRESSES = ("192.0.2.1", "192.0.2.2")  # of TEST-NET-1, RFC 5737
PORT = 9443


class Machines(NamedTuple):
    """The first machine runs the server, the second one the command line."""

    served: RemoteUp
    second: tuple[str, ...]
    cable: tuple[str, ...]

    def cli(self, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return run_cli(self.served, *arguments, command_prefix=self.second, **options)


def in_namespace(name: str) -> tuple[str, ...]:
    """The prefix of a command in a namespace; `ip netns exec` would mount another /sys as well."""
    return ("nsenter", f"--net=/run/netns/{name}", "--")


@contextlib.contextmanager
def joined_networks(*names: str) -> Iterator[None]:
    created = []
    try:
        for name in names:
            call("ip", "netns", "add", name)
            created.append(name)
            call(*in_namespace(name), "ip", "link", "set", "lo", "up")
        one, two = names
        call(*in_namespace(one), "ip", "link", "add", "cable", "type", "veth",
             "peer", "name", "cable", "netns", two)  # fmt: skip
        for name, address in zip(names, ADDRESSES, strict=True):
            call(*in_namespace(name), "ip", "address", "add", f"{address}/24", "dev", "cable")
            call(*in_namespace(name), "ip", "link", "set", "cable", "up")
        yield
    finally:
        for name in created:
            call("ip", "netns", "delete", name)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    one, two = (f"bj-{os.getpid()}-{place}" for place in ("one", "two"))
    with (
        joined_networks(one, two),
        remote_server(folder, ADDRESSES[0], PORT, in_namespace(one)) as server,
    ):
        pair = Machines(
            server, in_namespace(two), (*in_namespace(one), "ip", "link", "set", "cable")
        )
        until(lambda: pair.cli("jobs").returncode == 0, "the first machine answers", 60)
        yield pair


def test_first_machine_is_reachable_only_over_cable(machines: Machines) -> None:
    result = run_cli(machines.served, "jobs")
    assert result.returncode != 0
    assert result.stderr.count("\n") == 1


def test_run_lifecycle(machines: Machines) -> None:
    script = "echo out; echo problem >&2; sleep 600"
    started = machines.cli("run", "--detach", "--name=far", "--", "sh", "-c", script)
    jobid = started.stdout.strip()
    assert (started.returncode, len(jobid)) == (0, 36), started.stderr
    until(lambda: "far" in machines.cli("jobs", "--running").stdout, "in the list", 30)
    job = machines.cli("job", "far", who="vera")
    assert "sleep 600" in job.stdout, job.stderr
    output = machines.cli("logs", "far", who="vera").stdout
    assert sorted(output.splitlines()) == ["out", "problem"]
    refused = machines.cli("stop", "far", who="vera")
    assert (refused.returncode, "only an admin" in refused.stderr) == (4, True)
    if any((machines.served.folder / "data" / "samples").glob(f"{jobid}/*")):  # it has a cgroup
        table = machines.cli("metrics", "--no-follow", "--type=memory", "far").stdout
        assert table.startswith("TIME"), table
    stopped = machines.cli("stop", "--grace=1s", "far")
    assert (stopped.returncode, "stopped" in stopped.stdout) == (0, True), stopped.stderr
    assert machines.cli("delete", "far").stdout == "batchjob: deleted 1 run\n"
    log = machines.served.log()
    for line in ("started", "stopped", "deleted"):
        assert f"{line} run {jobid}" in log


def test_foreground_run_and_scheduled_run(machines: Machines) -> None:
    foreground = machines.cli("run", "--", "sh", "-c", "echo here; exit 3")
    assert (foreground.returncode, foreground.stdout) == (3, "here\n"), foreground.stderr
    scheduled = machines.cli("run", "--at=+1h", "--", "true").stdout.strip()
    until(lambda: scheduled[:8] in machines.cli("jobs", "--pending").stdout, "in the list", 30)
    assert "cancelled" in machines.cli("cancel", scheduled[:13]).stdout


def test_rights_by_token_and_certificate(machines: Machines) -> None:
    token = {"BATCHJOB_TOKEN": machines.served.token}
    assert machines.cli("jobs", who="", **token).returncode == 0
    for who in ("", "nemo"):  # no certificate, and one without a role
        refused = machines.cli("jobs", who=who)
        assert (refused.returncode, refused.stderr.count("\n")) == (4, 1), refused.stderr
    refused = machines.cli("run", "--", "true", who="vera")
    assert (refused.returncode, "only an admin" in refused.stderr) == (4, True)
    wrong = machines.cli("jobs", BATCHJOB_CA_FILE=str(machines.served.folder / "clients.pem"))
    assert wrong.returncode not in (0, 1)
    assert wrong.stderr.count("\n") == 1


def test_run_survives_network_outage(machines: Machines) -> None:
    jobid = machines.cli("run", "--detach", "--", "sleep", "600").stdout.strip()
    call(*machines.cable, "down")
    disconnected = machines.cli("job", jobid)
    assert disconnected.returncode not in (0, 1)
    assert disconnected.stderr.count("\n") == 1
    call(*machines.cable, "up")
    until(lambda: "RUNNING" in machines.cli("job", jobid).stdout, "it runs", 60)
    assert machines.cli("stop", "--grace=1s", jobid).returncode == 0

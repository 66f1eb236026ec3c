"""`batchjob up` on one machine and the command line on a second one.

Each has a network of its own, which a cable joins: two network namespaces and a veth pair, made and
removed here. The machine's own network is left as it is.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.e2e.processes import call, until
from tests.security.remote_up import RemoteUp, cli, serving

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"),
    reason="network namespaces need root, and Debian's iproute2",
)

ADDRESSES = ("192.0.2.1", "192.0.2.2")  # of TEST-NET-1, RFC 5737
PORT = 9443


class Machines(NamedTuple):
    """The first serves; commands are given on the second."""

    served: RemoteUp
    second: tuple[str, ...]
    cable: tuple[str, ...]

    def cli(self, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return cli(self.served, *arguments, within=self.second, **options)


def inside(name: str) -> tuple[str, ...]:
    """Start a command in a network alone: `ip netns exec` would mount another /sys as well."""
    return ("nsenter", f"--net=/run/netns/{name}", "--")


@contextlib.contextmanager
def networks(*names: str) -> Iterator[None]:
    made = []
    try:
        for name in names:
            call("ip", "netns", "add", name)
            made.append(name)
            call(*inside(name), "ip", "link", "set", "lo", "up")
        one, two = names
        call(*inside(one), "ip", "link", "add", "cable", "type", "veth",
             "peer", "name", "cable", "netns", two)  # fmt: skip
        for name, address in zip(names, ADDRESSES, strict=True):
            call(*inside(name), "ip", "address", "add", f"{address}/24", "dev", "cable")
            call(*inside(name), "ip", "link", "set", "cable", "up")
        yield
    finally:
        for name in made:
            call("ip", "netns", "delete", name)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    one, two = (f"bj-{os.getpid()}-{place}" for place in ("one", "two"))
    with networks(one, two), serving(folder, ADDRESSES[0], PORT, inside(one)) as served:
        made = Machines(served, inside(two), (*inside(one), "ip", "link", "set", "cable"))
        until(lambda: made.cli("jobs").returncode == 0, "the first machine answers", 60)
        yield made


def test_the_first_machine_can_only_be_reached_by_the_cable(machines: Machines) -> None:
    told = cli(machines.served, "jobs")
    assert told.returncode != 0
    assert told.stderr.count("\n") == 1


def test_a_run_from_its_start_to_its_deletion(machines: Machines) -> None:
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
    assert machines.cli("delete", "far").stdout == "batchjob: 1 deleted\n"
    told = machines.served.log()
    for line in ("started", "stopped", "deleted"):
        assert f"{line} run {jobid}" in told


def test_a_run_in_the_foreground_and_one_of_later(machines: Machines) -> None:
    done = machines.cli("run", "--", "sh", "-c", "echo here; exit 3")
    assert (done.returncode, done.stdout) == (3, "here\n"), done.stderr
    later = machines.cli("run", "--at=+1h", "--", "true").stdout.strip()
    until(lambda: later[:8] in machines.cli("jobs", "--pending").stdout, "in the list", 30)
    assert "cancelled" in machines.cli("cancel", later[:13]).stdout


def test_who_may_do_what(machines: Machines) -> None:
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


def test_a_cable_that_is_pulled_out_ends_no_run(machines: Machines) -> None:
    jobid = machines.cli("run", "--detach", "--", "sleep", "600").stdout.strip()
    call(*machines.cable, "down")
    cut = machines.cli("job", jobid)
    assert cut.returncode not in (0, 1)
    assert cut.stderr.count("\n") == 1
    call(*machines.cable, "up")
    until(lambda: "RUNNING" in machines.cli("job", jobid).stdout, "it runs", 60)
    assert machines.cli("stop", "--grace=1s", jobid).returncode == 0

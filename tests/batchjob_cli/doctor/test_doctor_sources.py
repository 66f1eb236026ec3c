"""Permissions, meters and the rest."""

import os
import socket

import pytest

from batchjob_cli.doctor.check import Check, Finding, Node, answer
from batchjob_cli.doctor.subjects import examine


def findings(host, listen=()):
    return {(a.subject, a.name): a.finding for a in examine(Node(host, listen=listen))}


def test_capabilities(machine):
    held = machine({"proc/self/status": "Name:\tx\nCapEff:\t0000000000080000\n"})
    seen = findings(held)
    assert seen["permissions", "CAP_SYS_PTRACE"].result == "ok"
    assert seen["permissions", "CAP_DAC_READ_SEARCH"].result == "warning"
    assert "CAP_DAC_READ_SEARCH" in seen["permissions", "CAP_DAC_READ_SEARCH"].advice


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("rw", True),
        ("rw,hidepid=0", True),
        ("rw,hidepid=2,gid=5", False),
        ("rw,hidepid=invisible", False),
    ],
)
def test_hidepid(machine, options, shown):
    line = f"22 27 0:21 / /proc rw,relatime - proc proc {options}\n"
    seen = findings(machine({"proc/self/mountinfo": line}))["permissions", "hidepid"]
    assert (seen.result == "ok") == shown


def test_few_inotify_watches(machine):
    host = machine(
        {
            "proc/sys/fs/inotify/max_user_watches": "100\n",
            "proc/sys/fs/inotify/max_user_instances": "128\n",
        }
    )
    seen = findings(host)["permissions", "inotify"]
    assert seen == (
        "warning",
        "100 watches and 128 instances per user; short jobs may be missed",
        "sysctl -w fs.inotify.max_user_watches=8192",
    )


def test_meters(machine):
    zone = "sys/class/powercap/intel-rapl:0"
    host = machine(
        {
            f"{zone}/name": "package-0\n",
            f"{zone}/energy_uj": "12\n",
            "sys/class/hwmon/hwmon0/power1_average": "1\n",
            "sys/class/hwmon/hwmon1/power1_input": "1\n",
            "sys/cray/pm_counters/power": "300 W\n",
        }
    )
    seen = findings(host)
    assert seen["energy", "rapl"] == ("ok", "zones package", "")
    assert seen["energy", "hwmon"].seen.endswith("power1_average and 1 more")
    assert seen["energy", "cray"].result == "ok"


def test_no_meters(machine):
    seen = findings(machine())
    assert {name: f.result for (about, name), f in seen.items() if about == "energy"} == {
        "rapl": "missing",
        "ipmi": "missing",
        "hwmon": "missing",
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_meter_for_root_only(machine, tmp_path):
    host = machine({"dev/ipmi0": ""})
    (tmp_path / "dev/ipmi0").chmod(0)
    assert findings(host)["energy", "ipmi"].result == "missing"


def test_gpus_are_asked_about_only_where_there_are_some(machine):
    assert not [key for key in findings(machine()) if key[0] == "gpus"]


def test_gpus_without_a_driver(machine):
    seen = findings(machine({"dev/nvidia0": "", "dev/nvidiactl": ""}))
    assert seen["gpus", "nvidia"] == ("missing", "1 devices, no driver", "modprobe nvidia")
    assert ("gpus", "nvml") in seen


def test_the_address(machine):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        seen = findings(machine(), listen=(f"127.0.0.1:{port}",))["service", "address"]
    assert seen.result == "warning"
    assert f"127.0.0.1:{port}" in seen.seen
    free = findings(machine(), listen=(f"127.0.0.1:{port}",))["service", "address"]
    assert free == ("ok", f"127.0.0.1:{port} is free", "")


def test_the_clock_has_an_answer(machine):
    assert findings(machine())["service", "clock"].result in ("ok", "warning")


def test_a_question_that_fails_hides_no_other():
    def broken(node):
        raise OSError("gone")

    checks = (
        Check("a", broken),
        Check("b", lambda _: None),
        Check("c", lambda _: Finding("ok", "x")),
    )
    assert [(a.name, a.finding.result) for a in answer(Node(), "s", checks)] == [
        ("a", "warning"),
        ("c", "ok"),
    ]

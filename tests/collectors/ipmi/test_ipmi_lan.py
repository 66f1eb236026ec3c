"""Over the network, with the real protocol: pyghmi's BMC on 127.0.0.1."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest

from collectors.power.ipmi import dcmi, lan
from collectors.power.ipmi.lan import LanLogin, LanSession
from collectors.power.ipmi.message import CompletionError, IpmiError, Request
from collectors.power.ipmi.power import BmcPower
from collectors.power.ipmi.tool import ToolPower

pytest.importorskip("pyghmi")
PROGRAM = os.path.join(os.path.dirname(__file__), "../../simulated/lan_bmc.py")


class LanBmc:
    """The simulated BMC's process, and how to reach it."""

    def __init__(self, directory, watts=345):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.password_file = directory / "password"
        self.password_file.write_text("geheim\n")
        self.password_file.chmod(0o600)
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, str(self.port), str(watts)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def login(self, user="power"):
        return LanLogin("127.0.0.1", self.port, user, str(self.password_file), "user")

    def ipmitool(self, *words):
        return [
            "ipmitool", "-I", "lanplus", "-H", "127.0.0.1", "-p", str(self.port), "-U", "power",
            "-f", str(self.password_file), "-L", "USER", *words,
        ]  # fmt: skip

    def end(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def bmc(tmp_path):
    bmc = LanBmc(tmp_path)
    yield bmc
    bmc.end()


@contextlib.contextmanager
def logged_in(bmc):
    session = LanSession(bmc.login())
    try:
        yield session
    finally:
        session.close()


needs_ipmitool = pytest.mark.skipif(not shutil.which("ipmitool"), reason="ipmitool not installed")


@needs_ipmitool
def test_our_client_and_ipmitool_read_the_same_watts(bmc):
    bmc.tell("watts 412")
    printed = subprocess.run(
        bmc.ipmitool("dcmi", "power", "reading"), capture_output=True, text=True, check=True
    ).stdout
    theirs = [int(watts) for watts in re.findall(r"(\d+) Watts", printed)]
    with logged_in(bmc) as session:
        ours = dcmi.read_power(session, 5)
    assert theirs == [412, 300, 400, 350]
    assert list(ours[:4]) == theirs


@needs_ipmitool
def test_the_command_of_the_site_reads_them_too(bmc):
    power = ToolPower(tuple(bmc.ipmitool("dcmi", "power", "reading")), 5).read()
    with logged_in(bmc) as session:
        assert power == BmcPower(lambda: session, 5).read()


def test_sensors_are_read_where_dcmi_is_unsupported(bmc):
    bmc.tell("dcmi off")
    source = BmcPower(lambda: LanSession(bmc.login()), 5)
    power = source.read()
    source.close()
    assert (power.source, power.watts) == ("sdr", (50 + 36) * 4)


def test_refusals_come_with_their_completion_code(bmc):
    with logged_in(bmc) as session, pytest.raises(CompletionError, match="0xc1"):
        session.query(Request(0x2C, 0x07, b"\xdc"), 5)


def test_a_wrong_password_is_told_and_never_shown(bmc):
    bmc.password_file.write_text("gehaim\n")
    with pytest.raises(IpmiError, match="assword") as caught:
        LanSession(bmc.login())
    assert caught.value.reason == "authentication"
    assert "gehaim" not in str(caught.value)


def test_a_wrong_user_costs_the_deadline_of_a_login(bmc, monkeypatch):
    monkeypatch.setattr(lan, "LOGIN_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(IpmiError) as caught:
        LanSession(bmc.login("nobody"))
    assert caught.value.reason == "timeout"
    assert time.monotonic() - began < 3


def test_a_password_file_that_is_missing_is_named(bmc):
    bmc.password_file.unlink()
    with pytest.raises(IpmiError, match=r"password: No such file") as caught:
        LanSession(bmc.login())
    assert caught.value.reason == "authentication"


def test_the_password_is_in_no_argument_and_no_environment(bmc):
    with logged_in(bmc) as session:
        process = f"/proc/{session.process.pid}"
        for file in ("cmdline", "environ"):
            with open(f"{process}/{file}", "rb") as text:
                assert b"geheim" not in text.read()


def test_a_bmc_that_hangs_costs_a_deadline_and_recovers_in_a_new_session(bmc):
    source = BmcPower(lambda: LanSession(bmc.login()), 2.5)  # the library may stall for 1 s
    assert source.read().watts == 345
    bmc.tell("silent on")
    with pytest.raises(IpmiError) as caught:
        source.read()
    assert caught.value.reason == "timeout"
    bmc.tell("silent off")
    assert source.read().watts == 345
    source.close()


def test_a_bmc_that_dies_in_mid_request_leaves_no_process_behind(bmc):
    session = LanSession(bmc.login())
    bmc.tell("die")
    with pytest.raises(IpmiError) as caught:
        dcmi.read_power(session, 0.3)
    assert caught.value.reason == "timeout"
    assert session.process.returncode is not None
    session.close()


def test_a_session_closed_by_another_thread_fails_and_does_not_hang(bmc):
    with logged_in(bmc) as session:
        session.close()
        with pytest.raises(IpmiError) as caught:
            dcmi.read_power(session, 5)
        assert caught.value.reason == "session"

"""IPMI over LAN with the real protocol: pyghmi's BMC on 127.0.0.1."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from collectors.power.ipmi import lan, power
from collectors.power.ipmi.lan import LanSession
from collectors.power.ipmi.message import CompletionError, Request
from collectors.power.ipmi.power import BmcPower, read_tool
from collectors.power.meter import BmcError
from tests.helpers.waiting import scaled

pytest.importorskip("pyghmi")
PROGRAM = os.path.join(os.path.dirname(__file__), "../../../simulated/lan_bmc.py")


class LanBmcProcess:
    """The simulated BMC's process, and how to reach it."""

    def __init__(self, directory, watts=345):
        self.password_file = directory / "password"
        self.password_file.write_text("geheim\n")
        self.password_file.chmod(0o600)
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, str(watts)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.port = int(self.process.stdout.readline())

    def send_command(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def login(self, user="power"):
        return "127.0.0.1", self.port, user, str(self.password_file), "user"

    def ipmitool(self, *arguments):
        return [
            "ipmitool", "-I", "lanplus", "-H", "127.0.0.1", "-p", str(self.port), "-U", "power",
            "-f", str(self.password_file), "-L", "USER", *arguments,
        ]  # fmt: skip

    def kill(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def bmc(tmp_path):
    bmc = LanBmcProcess(tmp_path)
    yield bmc
    bmc.kill()


@contextlib.contextmanager
def open_session(bmc):
    session = LanSession(*bmc.login())
    try:
        yield session
    finally:
        session.close()


needs_ipmitool = pytest.mark.skipif(not shutil.which("ipmitool"), reason="ipmitool not installed")


@needs_ipmitool
def test_client_and_ipmitool_read_the_same_watts(bmc):
    bmc.send_command("watts 412")
    ipmitool_output = subprocess.run(
        bmc.ipmitool("dcmi", "power", "reading"), capture_output=True, text=True, check=True
    ).stdout
    ipmitool_watts = [int(watts) for watts in re.findall(r"(\d+) Watts", ipmitool_output)]
    with open_session(bmc) as session:
        reading = power.read_dcmi(session, 5)
    assert ipmitool_watts == [412, 300, 400, 350]
    assert [reading.watts, *dict(reading.statistics).values()] == ipmitool_watts


@needs_ipmitool
def test_configured_command_reads_the_same_power(bmc):
    power = read_tool(bmc.ipmitool("dcmi", "power", "reading"), 5)
    with open_session(bmc) as session:
        assert power == BmcPower(lambda: session, 5).read()


def test_sensors_are_read_if_dcmi_is_unsupported(bmc):
    bmc.send_command("dcmi off")
    power_reader = BmcPower(lambda: LanSession(*bmc.login()), 5)
    power = power_reader.read()
    power_reader.close()
    assert (power.source, power.watts) == ("sdr", (50 + 36) * 4)


def test_refused_request_has_its_completion_code(bmc):
    with open_session(bmc) as session, pytest.raises(CompletionError, match="0xc1"):
        session.query(Request(0x2C, 0x07, b"\xdc"), 5)


def test_wrong_password_is_reported_without_showing_it(bmc):
    bmc.password_file.write_text("gehaim\n")
    with pytest.raises(BmcError, match="assword") as caught:
        LanSession(*bmc.login())
    assert caught.value.reason == "authentication"
    assert "gehaim" not in str(caught.value)


def test_login_of_an_unknown_user_times_out(bmc, monkeypatch):
    monkeypatch.setattr(lan, "LOGIN_SECONDS", 1.0)
    started = time.monotonic()
    with pytest.raises(BmcError) as caught:
        LanSession(*bmc.login("nobody"))
    assert caught.value.reason == "timeout"
    assert time.monotonic() - started < scaled(3)


def test_missing_password_file_is_named(bmc):
    bmc.password_file.unlink()
    with pytest.raises(BmcError, match=r"password: No such file") as caught:
        LanSession(*bmc.login())
    assert caught.value.reason == "authentication"


def test_password_is_in_no_argument_or_environment_variable(bmc):
    with open_session(bmc) as session:
        process = f"/proc/{session.process.pid}"
        for file in ("cmdline", "environ"):
            with open(f"{process}/{file}", "rb") as text:
                assert b"geheim" not in text.read()


def test_hanging_bmc_times_out_and_recovers_in_a_new_session(bmc):
    power_reader = BmcPower(lambda: LanSession(*bmc.login()), 2.5)  # the library may stall for 1 s
    assert power_reader.read().watts == 345
    bmc.send_command("silent on")
    with pytest.raises(BmcError) as caught:
        power_reader.read()
    assert caught.value.reason == "timeout"
    bmc.send_command("silent off")
    assert power_reader.read().watts == 345
    power_reader.close()


def test_session_process_ends_if_the_bmc_dies_during_a_request(bmc):
    session = LanSession(*bmc.login())
    bmc.send_command("die")
    with pytest.raises(BmcError) as caught:
        power.read_dcmi(session, 0.3)
    assert caught.value.reason == "timeout"
    assert session.process.returncode is not None
    session.close()


def test_read_from_a_closed_session_fails(bmc):
    with open_session(bmc) as session:
        session.close()
        with pytest.raises(BmcError) as caught:
            power.read_dcmi(session, 5)
        assert caught.value.reason == "session"

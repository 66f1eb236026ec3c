"""The kernel's IPMI driver: ioctl numbers, structures and queries."""

import ctypes
import errno
import os
import platform
import shutil
import subprocess
import time

import pytest

from collectors.power.ipmi import in_band
from collectors.power.ipmi.in_band import IpmiDevice, find_device, ioctl_number, open_device
from collectors.power.ipmi.message import CompletionError, Request
from collectors.power.meter import BmcError
from tests.helpers.waiting import scaled
from tests.simulated.bmc import SimulatedBmc
from tests.simulated.ipmi_driver import RECEIVE_MSG_TRUNC, SEND_COMMAND, SimulatedDriver

pytestmark = pytest.mark.skipif(
    ctypes.sizeof(ctypes.c_void_p) != 8, reason="the simulated driver is 64-bit"
)
POWER = Request(0x2C, 0x02, bytes.fromhex("dc010000"))


@pytest.fixture
def driver():
    return SimulatedDriver(SimulatedBmc())


@pytest.fixture
def device(driver):
    device = IpmiDevice(driver.descriptor, driver.ioctl)
    yield device
    device.close()


@pytest.mark.skipif(platform.machine().startswith("ppc"), reason="powerpc has other numbers")
def test_ioctl_numbers():
    assert in_band.SEND_COMMAND == SEND_COMMAND
    assert in_band.RECEIVE_TRUNCATED == RECEIVE_MSG_TRUNC


def test_ioctl_numbers_on_powerpc():
    assert ioctl_number(13, 40, "r", "ppc64le") == 0x4028690D
    assert ioctl_number(11, 48, "rw", "ppc64le") == 0xC030690B


@pytest.mark.parametrize(
    ("structure", "size", "offsets"),
    [
        (in_band.IpmiMessage, 16, {"netfn": 0, "cmd": 1, "data_len": 2, "data": 8}),
        (in_band.IpmiRequest, 40, {"addr": 0, "addr_len": 8, "msgid": 16, "msg": 24}),
        (
            in_band.IpmiReceived,
            48,
            {"recv_type": 0, "addr": 8, "addr_len": 16, "msgid": 24, "msg": 32},
        ),
        (in_band.IpmiAddress, 8, {"addr_type": 0, "channel": 4, "lun": 6}),
        (in_band.AnyAddress, 40, {"addr_type": 0, "channel": 4, "data": 6}),
    ],
)
def test_structure_layout(structure, size, offsets):
    assert ctypes.sizeof(structure) == size
    assert {name: getattr(structure, name).offset for name, _ in structure._fields_} == offsets


HEADER = "/usr/include/linux/ipmi.h"
C_NAMES = {  # each structure by its name in the kernel's header
    in_band.IpmiMessage: "struct ipmi_msg",
    in_band.IpmiRequest: "struct ipmi_req",
    in_band.IpmiReceived: "struct ipmi_recv",
    in_band.IpmiAddress: "struct ipmi_system_interface_addr",
    in_band.AnyAddress: "struct ipmi_addr",
}


@pytest.mark.skipif(
    not (shutil.which("cc") and os.path.exists(HEADER)), reason="no C compiler or kernel headers"
)
def test_structures_and_constants_match_the_kernel_header(tmp_path):
    """A C compiler checks the values against this machine's header."""
    constants = [
        ("IPMICTL_SEND_COMMAND", in_band.SEND_COMMAND),
        ("IPMICTL_RECEIVE_MSG_TRUNC", in_band.RECEIVE_TRUNCATED),
        ("IPMI_SYSTEM_INTERFACE_ADDR_TYPE", in_band.SYSTEM_INTERFACE),
        ("IPMI_BMC_CHANNEL", in_band.BMC_CHANNEL),
        ("IPMI_RESPONSE_RECV_TYPE", in_band.RESPONSE),
        ("IPMI_MAX_MSG_LENGTH", in_band.LONGEST_MESSAGE),
    ]
    for structure, name in C_NAMES.items():
        constants.append((f"sizeof({name})", ctypes.sizeof(structure)))
        for field, _ in structure._fields_:
            offset = getattr(structure, field).offset
            constants.append((f"offsetof({name}, {field})", offset))
    checks = "".join(
        f'_Static_assert({expression} == {value}, "{expression}");\n'
        for expression, value in constants
    )
    source = tmp_path / "layout.c"
    source.write_text(
        f"#include <stddef.h>\n#include <sys/ioctl.h>\n#include <linux/ipmi.h>\n{checks}"
    )
    subprocess.run(["cc", "-fsyntax-only", str(source)], check=True)


def test_query_returns_the_data_without_completion_code(device, driver):
    answer = device.query(POWER, 1)
    assert answer.hex(" ") == "dc 59 01 2c 01 90 01 5e 01 5b 30 00 6b e8 03 00 00 40"
    assert driver.requests == [(1, 0x2C, 0x02, POWER.data, 0)]


def test_lun_is_sent_in_the_address(device, driver):
    driver.bmc.readings = {7: 1}
    device.query(Request(0x04, 0x2D, b"\x07", lun=2), 1)
    assert driver.requests[-1][-1] == 2


def test_late_answer_to_an_earlier_request_is_ignored(device, driver):
    driver.silent = True
    with pytest.raises(BmcError, match="no response from the BMC within"):
        device.query(POWER, 0.05)
    driver.silent = False
    driver.deliver(1, 0x2D, 0x02, b"\0\xdc" + bytes(17))  # the BMC woke up: 0 W, for request 1
    assert device.query(POWER, 1)[1:3] == (345).to_bytes(2, "little")


def test_events_and_answers_to_other_commands_are_ignored(device, driver):
    driver.deliver(1, 0x2D, 0x02, b"\0", kind=2)  # an asynchronous event
    driver.deliver(1, 0x2D, 0x01, b"\0")
    driver.deliver(7, 0x2D, 0x02, b"\0")  # another request's sequence number
    assert device.query(POWER, 1)[1:3] == (345).to_bytes(2, "little")


def test_query_times_out_if_the_bmc_is_silent(device, driver):
    driver.silent = True
    started = time.monotonic()
    with pytest.raises(BmcError) as caught:
        device.query(POWER, 0.1)
    assert caught.value.reason == "timeout"
    assert 0.09 < time.monotonic() - started < scaled(1)


def test_stale_answers_do_not_extend_the_timeout(device, driver):
    driver.silent = True
    for _ in range(50):
        driver.deliver(99, 0x2D, 0x02, b"\0")
    with pytest.raises(BmcError, match="no response"):
        device.query(POWER, 0.05)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0xC1, "unsupported"),
        (0xC9, "unsupported"),
        (0xC0, "busy"),
        (0xC3, "timeout"),
        (0xD4, "privilege"),
        (0xFF, "completion_code"),
        (0x80, "completion_code"),
    ],
)
def test_reason_of_a_completion_code(device, driver, code, reason):
    driver.bmc.power_code = code
    with pytest.raises(CompletionError, match=f"0x{code:02x}") as caught:
        device.query(POWER, 1)
    assert caught.value.reason == reason


def test_answer_without_completion_code_is_malformed(device, driver):
    driver.silent = True
    driver.deliver(1, 0x2D, 0x02, b"")
    with pytest.raises(BmcError) as caught:
        device.query(POWER, 1)
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EIO, "device"),
        (errno.ENODEV, "no_device"),
        (errno.EACCES, "permission"),
        (errno.EMSGSIZE, "malformed"),
    ],
)
def test_reason_of_a_driver_error(device, driver, number, reason):
    driver.fails = number
    with pytest.raises(BmcError) as caught:
        device.query(POWER, 1)
    assert caught.value.reason == reason


def test_missing_driver_is_no_device(tmp_path):
    with pytest.raises(BmcError) as caught:
        open_device(str(tmp_path))
    assert caught.value.reason == "no_device"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_forbidden_device_is_a_permission_error(tmp_path):
    (tmp_path / "ipmi0").write_bytes(b"")
    (tmp_path / "ipmi0").chmod(0)
    with pytest.raises(BmcError, match="ipmi0: Permission denied") as caught:
        open_device(str(tmp_path))
    assert caught.value.reason == "permission"


@pytest.mark.parametrize("name", ["ipmi0", "ipmi/0", "ipmidev/0"])
def test_device_is_found_by_each_of_its_names(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    assert find_device(str(tmp_path)) == f"{tmp_path}/{name}"

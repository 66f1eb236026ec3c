"""The node's own BMC through the kernel's IPMI driver, `/dev/ipmi0`.

Needs no secret and no network. Source: Linux include/uapi/linux/ipmi.h and
drivers/char/ipmi/ipmi_devintf.c; the structures have the platform's natural alignment.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import time
from collections.abc import Callable, Iterator
from typing import Any

from collectors.power.ipmi.message import Request, payload
from collectors.power.meter import BmcError

DEVICES = ("ipmi0", "ipmi/0", "ipmidev/0")  # as named by udev, devfs and older rules

SYSTEM_INTERFACE = 0x0C  # IPMI_SYSTEM_INTERFACE_ADDR_TYPE
BMC_CHANNEL = 0x0F  # IPMI_BMC_CHANNEL
RESPONSE = 1  # IPMI_RESPONSE_RECV_TYPE
LONGEST_MESSAGE = 272  # IPMI_MAX_MSG_LENGTH


def _structure(name: str, **fields: Any) -> Any:
    """`struct <name>` of linux/ipmi.h."""
    return type(name, (ctypes.Structure,), {"_fields_": tuple(fields.items())})


# fmt: off
IpmiAddress = _structure("ipmi_system_interface_addr",
    addr_type=ctypes.c_int, channel=ctypes.c_short, lun=ctypes.c_ubyte)
AnyAddress = _structure("ipmi_addr",  # room for every kind of address
    addr_type=ctypes.c_int, channel=ctypes.c_short, data=ctypes.c_char * 32)
IpmiMessage = _structure("ipmi_msg", netfn=ctypes.c_ubyte, cmd=ctypes.c_ubyte,
    data_len=ctypes.c_ushort, data=ctypes.c_void_p)
IpmiRequest = _structure("ipmi_req", addr=ctypes.c_void_p, addr_len=ctypes.c_uint,
    msgid=ctypes.c_long, msg=IpmiMessage)
IpmiReceived = _structure("ipmi_recv", recv_type=ctypes.c_int, addr=ctypes.c_void_p,
    addr_len=ctypes.c_uint, msgid=ctypes.c_long, msg=IpmiMessage)
# fmt: on


def ioctl_number(number: int, size: int, directions: str, machine: str = "") -> int:
    """A request number as the macros _IOR and _IOWR of ioctl.h make it; group 'i'.

    powerpc divides the 32 bits differently (arch/powerpc/include/uapi/asm/ioctl.h).
    """
    powerpc = (machine or platform.machine()).startswith("ppc")
    size_bits, read, write = (13, 2, 4) if powerpc else (14, 2, 1)
    direction = (read if "r" in directions else 0) | (write if "w" in directions else 0)
    return direction << (16 + size_bits) | size << 16 | ord("i") << 8 | number


SEND_COMMAND = ioctl_number(13, ctypes.sizeof(IpmiRequest), "r")
RECEIVE_TRUNCATED = ioctl_number(11, ctypes.sizeof(IpmiReceived), "rw")

Ioctl = Callable[[int, int, Any], int]


class IpmiDevice:
    """An open `/dev/ipmi0`.

    Every request has a message id of its own, and only the answer with that id is accepted: a late
    answer to an earlier request is delivered to whoever reads next.
    """

    def __init__(self, descriptor: int, ioctl: Ioctl = fcntl.ioctl) -> None:
        self._descriptor = descriptor
        self._ioctl = ioctl
        self._msgid = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def query(self, request: Request, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        self._msgid += 1
        with _driver_errors():
            self._send(request)
            while (left := deadline - time.monotonic()) > 0 and self._poll.poll(left * 1000):
                head, data = self._receive()
                # The network function of an answer is odd.
                if head == (RESPONSE, self._msgid, request.netfn | 1, request.command):
                    return payload(request, data)
        raise BmcError("timeout", f"no response from the BMC within {timeout:g} s")

    def close(self) -> None:
        """Close the device; the kernel then discards answers still to come."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _send(self, request: Request) -> None:
        address = IpmiAddress(SYSTEM_INTERFACE, BMC_CHANNEL, request.lun)
        data = ctypes.create_string_buffer(request.data, max(1, len(request.data)))
        message = IpmiMessage(
            request.netfn, request.command, len(request.data), ctypes.addressof(data)
        )
        ipmi_request = IpmiRequest(
            ctypes.addressof(address), ctypes.sizeof(address), self._msgid, message
        )
        self._ioctl(self._descriptor, SEND_COMMAND, ipmi_request)

    def _receive(self) -> tuple[tuple[int, ...], bytes]:
        """Kind, message id, network function and command of a message, and its data."""
        address = AnyAddress()
        data = ctypes.create_string_buffer(LONGEST_MESSAGE)
        message = IpmiMessage(0, 0, len(data), ctypes.addressof(data))
        received = IpmiReceived(0, ctypes.addressof(address), ctypes.sizeof(address), 0, message)
        try:
            self._ioctl(self._descriptor, RECEIVE_TRUNCATED, received)
        except BlockingIOError:  # another reader of this handle was faster
            return (), b""
        msg = received.msg
        return (received.recv_type, received.msgid, msg.netfn, msg.cmd), data.raw[: msg.data_len]


_REASONS_BY_ERRNO = {
    errno.ENXIO: "no_device",
    errno.ENODEV: "no_device",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EMSGSIZE: "malformed",  # longer than any IPMI message
}


@contextlib.contextmanager
def _driver_errors(path: str = "the IPMI driver") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _REASONS_BY_ERRNO.get(error.errno or 0, "device")
        raise BmcError(reason, f"{path}: {error.strerror}") from error


def find_device(dev: str) -> str | None:
    """The path of the driver's device below `dev`, or None on a machine without one."""
    paths = (f"{dev}/{name}" for name in DEVICES)
    return next((path for path in paths if os.path.exists(path)), None)


def open_device(dev: str) -> IpmiDevice:
    """Open the device below `dev` for reading, which is all that its ioctls need."""
    path = find_device(dev)
    if path is None:
        raise BmcError("no_device", f"no {dev}/{DEVICES[0]}: no IPMI driver, or no BMC")
    with _driver_errors(path):
        return IpmiDevice(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

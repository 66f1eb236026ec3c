"""The kernel's IPMI driver at the ioctl boundary, by the numbers and offsets of 64-bit Linux.

Nothing here is taken from the client under test: structures are read and written at the offsets
that a C compiler gives them (include/uapi/linux/ipmi.h).
"""

import ctypes
import errno
import os
import struct
from collections import deque

SEND_COMMAND = 0x8028690D
RECEIVE_MSG_TRUNC = 0xC030690B


class SimulatedDriver:
    """`ioctl` and a descriptor that polls readable while an answer waits."""

    def __init__(self, bmc):
        self.bmc = bmc
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self.requests = []
        self.silent = False
        self.fails = None  # errno of every ioctl
        self._waiting = deque()

    def deliver(self, msgid, netfn, command, data, kind=1):
        """Put a message into the queue of this handle."""
        self._waiting.append((kind, msgid, netfn, command, data))
        os.eventfd_write(self.descriptor, 1)

    def ioctl(self, descriptor, number, argument):
        assert descriptor == self.descriptor
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))
        {SEND_COMMAND: self._send, RECEIVE_MSG_TRUNC: self._receive}[number](argument)
        return 0

    def _send(self, argument):
        raw = bytes(argument)
        assert len(raw) == 40
        address, address_len, msgid, netfn, command, length, data = struct.unpack(
            "@PIxxxxlBBHxxxxP", raw
        )
        kind, channel, lun = struct.unpack("@ihB", ctypes.string_at(address, 7))
        assert (kind, channel, address_len) == (0x0C, 0x0F, 8)
        request = (netfn, command, ctypes.string_at(data, length), lun)
        self.requests.append((msgid, *request))
        if not self.silent:
            self.deliver(msgid, netfn | 1, command, self.bmc.answer(*request))

    def _receive(self, argument):
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        os.eventfd_read(self.descriptor)
        kind, msgid, netfn, command, answer = self._waiting.popleft()
        layout = struct.Struct("@ixxxxPIxxxxlBBHxxxxP")
        _, address, room, _, _, _, size, data = layout.unpack(bytes(argument))
        assert layout.size == 48
        assert room >= 8
        assert size >= len(answer)
        ctypes.memmove(data, answer, len(answer))
        ctypes.memmove(address, struct.pack("@ihB", 0x0C, 0x0F, 0), 7)
        filled = layout.pack(kind, address, 8, msgid, netfn, command, len(answer), data)
        ctypes.memmove(ctypes.addressof(argument), filled, len(filled))

"""A BMC that answers IPMI requests; tests put a transport in front of it."""

import struct

FULL, COMPACT = 0x01, 0x02
WATTS, CELSIUS = 6, 1


def full_record(
    name, number, unit=WATTS, m=1, b=0, b_exp=0, r_exp=0, linearization=0, form=0, owner=0x20, lun=0
):
    """A full sensor record (IPMI v2.0, table 43-1) without record id."""
    body = bytearray(43)
    body[0], body[1], body[2] = owner, lun, number
    body[3], body[4] = 0x0A, 1  # entity: power supply
    body[7], body[8] = 0x03, 0x01  # type Current, threshold
    body[15], body[16] = form << 6, unit
    body[18] = linearization
    body[19], body[20] = m & 0xFF, (m >> 8 & 3) << 6
    body[21], body[22] = b & 0xFF, (b >> 8 & 3) << 6
    body[24] = (r_exp & 0xF) << 4 | b_exp & 0xF
    body[42] = 0xC0 | len(name)
    return bytes((0x51, FULL, len(body) + len(name))) + bytes(body) + name.encode()


def other_record():
    """A compact record, of which every repository has many."""
    return bytes((0x51, COMPACT, 27)) + bytes(27)


class SimulatedBmc:
    """Power by DCMI, by sensors, or by neither; `answer()` gives completion code and data."""

    def __init__(self, watts=345, dcmi=True, records=(), readings=None, chunk=16):
        self.watts = watts
        self.minimum, self.maximum, self.average = 300, 400, 350
        self.period_ms = 1000
        self.active = True
        self.dcmi = dcmi
        self.power_code = 0
        self.records = list(records)
        self.readings = dict(readings or {})  # sensor number -> raw reading, None: unavailable
        self.chunk = chunk  # maximum number of bytes of one Get SDR
        self.asked = []
        self._reservation = 0
        self.changes = 0  # number of reservations that are still to be cancelled

    def answer(self, netfn, command, data, lun=0):
        self.asked.append((netfn, command, bytes(data), lun))
        handler = {
            (0x2C, 0x02): self._power,
            (0x0A, 0x22): self._reserve,
            (0x0A, 0x23): self._get_sdr,
            (0x04, 0x2D): self._reading,
            (0x04, 0x23): self._factors,
        }.get((netfn, command))
        return handler(bytes(data)) if handler else b"\xc1"

    def _power(self, data):
        if not self.dcmi:
            return b"\xc1"
        if self.power_code:
            return bytes((self.power_code,))
        state = 0x40 if self.active else 0
        numbers = (self.watts, self.minimum, self.maximum, self.average, 1795174491, self.period_ms)
        return b"\0" + struct.pack("<BHHHHIIB", 0xDC, *numbers, state)

    def _reserve(self, data):
        self._reservation += 1
        return struct.pack("<BH", 0, self._reservation)

    def _get_sdr(self, data):
        reservation, record_id, offset, count = struct.unpack("<HHBB", data)
        if self.changes or reservation != self._reservation:
            self.changes = max(0, self.changes - 1)
            return b"\xc5"
        if count > self.chunk:
            return b"\xca"
        if record_id >= len(self.records):
            return b"\xcb"
        following = record_id + 1 if record_id + 1 < len(self.records) else 0xFFFF
        record = struct.pack("<H", record_id) + self.records[record_id]
        return struct.pack("<BH", 0, following) + record[offset : offset + count]

    def _reading(self, data):
        if data[0] not in self.readings:
            return b"\xcb"
        raw = self.readings[data[0]]
        return bytes((0, 0, 0xE0, 0)) if raw is None else bytes((0, raw, 0xC0, 0))

    def _factors(self, data):
        """A non-linear sensor: twice the raw reading below 100, three times from there."""
        return bytes((0, 0, 2 if data[1] < 100 else 3, 0, 0, 0, 0, 0))


class InProcess:
    """The simulated BMC without any transport, as `collectors.power.ipmi.message.Bmc`."""

    def __init__(self, bmc, payload):
        self.bmc = bmc
        self.closed = False
        self._payload = payload

    def query(self, request, timeout):
        return self._payload(request, self.bmc.answer(*request))

    def close(self):
        self.closed = True

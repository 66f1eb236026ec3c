"""Power from the BMC's sensors, for boards without DCMI.

The sensor data repository (SDR) describes each sensor; a reading is 8 bits that its description
converts to a value. Source: IPMI v2.0, sections 33.12 (Get SDR), 35.14 (Get Sensor Reading), 36.3
(conversion) and 43.1 (full sensor record).
"""

import math
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from collectors.power.ipmi.message import Bmc, CompletionError, IpmiError, Request

_STORAGE, _SENSOR = 0x0A, 0x04
_RESERVE = Request(_STORAGE, 0x22)
_HEADER_BYTES = 5
_FIRST, _LAST = 0x0000, 0xFFFF
_FULL_RECORD = 0x01
_SHORTEST_FULL_RECORD = 48
_CHUNKS = (32, 16, 8)  # bytes per request; slow transports accept only the smaller ones
_TOO_LONG = (0xC8, 0xCA, 0xFF)
_RESERVATION_LOST = 0xC5
_MOST_RECORDS = 4096  # a repository without an end is broken

_THRESHOLD = 0x01  # event/reading type of an analog sensor
_WATTS = 6  # unit type code
_BMC_ADDRESS = 0x20
_NO_SENSOR = 0xCB  # "requested sensor, data, or record not present"

_FUNCTIONS: dict[int, Callable[[float], float]] = {
    0x00: lambda x: x,
    0x01: math.log,
    0x02: math.log10,
    0x03: math.log2,
    0x04: math.exp,
    0x05: lambda x: 10.0**x,
    0x06: lambda x: 2.0**x,
    0x07: lambda x: 1 / x,
    0x08: lambda x: x**2,
    0x09: lambda x: x**3,
    0x0A: math.sqrt,
    0x0B: math.cbrt,
}


class ConversionFactors(NamedTuple):
    """value = f((slope * raw + offset * 10**offset_exponent) * 10**result_exponent)."""

    slope: int
    offset: int
    offset_exponent: int
    result_exponent: int


class IpmiSensor(NamedTuple):
    """An analog sensor as its full record describes it."""

    name: str
    owner: int
    lun: int
    number: int
    unit: int
    format: int  # 0 unsigned, 1 ones' complement, 2 two's complement, 3 not analog
    linearization: int
    factors: ConversionFactors
    rated: bool  # a rate or a percentage

    def value(self, raw: int) -> float | None:
        """The value of a raw reading; None if the formula has none, or is vendor-specific."""
        function = _FUNCTIONS.get(self.linearization)
        signed = _signed(raw, self.format)
        if function is None or signed is None:
            return None
        slope, offset, offset_exponent, result_exponent = self.factors
        try:
            linear = (slope * signed + offset * 10.0**offset_exponent) * 10.0**result_exponent
            value = function(linear)
        except (ValueError, OverflowError, ZeroDivisionError):
            return None
        return value if math.isfinite(value) else None


def _signed(raw: int, form: int) -> int | None:
    if form == 0 or (form in (1, 2) and raw < 0x80):
        return raw
    return {1: raw - 0xFF, 2: raw - 0x100}.get(form)


def _twos_complement(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def parse_factors(data: bytes) -> ConversionFactors:
    """Decode six bytes: M, M and tolerance, B, B and accuracy, accuracy, exponents of R and B."""
    m, m_high, b, b_high, _, exponents = data[:6]
    return ConversionFactors(
        slope=_twos_complement(m | (m_high & 0xC0) << 2, 10),
        offset=_twos_complement(b | (b_high & 0xC0) << 2, 10),
        offset_exponent=_twos_complement(exponents & 0x0F, 4),
        result_exponent=_twos_complement(exponents >> 4, 4),
    )


def parse_record(record: bytes) -> IpmiSensor | None:
    """The sensor of an SDR record; None unless it is a full record of an analog sensor."""
    if len(record) < _SHORTEST_FULL_RECORD or record[3] != _FULL_RECORD:
        return None
    form, event_type = record[20] >> 6, record[13]
    if form == 3 or event_type != _THRESHOLD:
        return None
    return IpmiSensor(
        name=_name(record[47], record[48:]),
        owner=record[5],
        lun=record[6] & 0x03,
        number=record[7],
        unit=record[21],
        format=form,
        linearization=record[23] & 0x7F,
        factors=parse_factors(record[24:30]),
        rated=bool(record[20] & 0x3F),
    )


def _name(type_and_length: int, data: bytes) -> str:
    """The id string (IPMI v2.0, 43.15): 8-bit text, 6-bit packed ASCII, BCD plus or UTF-16."""
    kind, length = type_and_length >> 6, type_and_length & 0x1F
    raw = data[:length]
    if kind == 3:
        text = raw.decode("latin-1")
    elif kind == 2:
        bits = int.from_bytes(raw, "little")
        text = "".join(chr(0x20 + (bits >> 6 * i & 0x3F)) for i in range(len(raw) * 8 // 6))
    elif kind == 1:
        text = "".join("0123456789 -.:,_"[nibble] for byte in raw for nibble in divmod(byte, 16))
    else:
        text = raw.decode("utf-16-le", "replace")
    return "".join(character for character in text if character.isprintable()).strip()


def power_sensors(bmc: Bmc, timeout: float, deadline: float) -> tuple[IpmiSensor, ...]:
    """All sensors in watts that the BMC itself owns; `deadline` bounds the whole repository.

    They are recognised by their unit: some vendors give power sensors the type Current.
    """
    found = []
    for record in _records(bmc, timeout, time.monotonic() + deadline):
        sensor = parse_record(record)
        if sensor and sensor.unit == _WATTS and not sensor.rated and sensor.owner == _BMC_ADDRESS:
            found.append(sensor)
    return tuple(found)


def read_sensor(bmc: Bmc, sensor: IpmiSensor, timeout: float) -> float | None:
    """Watts now; None while the sensor has no reading (unplugged, host off, scanning disabled)."""
    try:
        data = bmc.ask(_to_sensor(sensor, 0x2D, sensor.number), timeout)
    except CompletionError as error:
        if error.code == _NO_SENSOR:
            return None
        raise
    if len(data) < 2:
        raise IpmiError("malformed", f"reading of sensor {sensor.name!r}: {data.hex(' ')}")
    raw, state = data[0], data[1]
    scanning, unavailable = state & 0x40, state & 0x20
    if unavailable or not scanning:
        return None
    if sensor.linearization == 0x70:  # non-linear: the factors depend on the reading
        sensor = _with_factors_for(bmc, sensor, raw, timeout)
    return sensor.value(raw)


def _with_factors_for(bmc: Bmc, sensor: IpmiSensor, raw: int, timeout: float) -> IpmiSensor:
    data = bmc.ask(_to_sensor(sensor, 0x23, sensor.number, raw), timeout)
    if len(data) < 7:
        raise IpmiError("malformed", f"factors of sensor {sensor.name!r}: {data.hex(' ')}")
    return sensor._replace(linearization=0, factors=parse_factors(data[1:7]))


def _to_sensor(sensor: IpmiSensor, command: int, *data: int) -> Request:
    return Request(_SENSOR, command, bytes(data), sensor.lun)


def _records(bmc: Bmc, timeout: float, give_up: float) -> Iterator[bytes]:
    """Every full record of the repository; for others, only the header is fetched."""
    reader = _Repository(bmc, timeout)
    record_id, seen = _FIRST, 0
    while record_id != _LAST and seen < _MOST_RECORDS:
        if time.monotonic() > give_up:
            raise IpmiError("timeout", "the sensor data repository took too long to read")
        following, header = reader.part(record_id, 0, _HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            raise IpmiError("malformed", f"SDR header: {header.hex(' ')}")
        if header[3] == _FULL_RECORD:
            yield header + reader.body(record_id, header[4])
        record_id, seen = following, seen + 1


class _Repository:
    """Partial reads, under a reservation that any change of the repository ends."""

    def __init__(self, bmc: Bmc, timeout: float) -> None:
        self._bmc = bmc
        self._timeout = timeout
        self._chunks = list(_CHUNKS)
        self._reserve()

    def body(self, record_id: int, length: int) -> bytes:
        """The `length` bytes after the header."""
        body = b""
        while len(body) < length:
            want = min(self._chunks[0], length - len(body))
            try:
                part = self.part(record_id, _HEADER_BYTES + len(body), want)[1]
            except CompletionError as error:
                if error.code not in _TOO_LONG or len(self._chunks) == 1:
                    raise
                self._chunks.pop(0)
                continue
            if not part:
                raise IpmiError("malformed", f"SDR record {record_id} ends early")
            body += part
        return body[:length]

    def part(self, record_id: int, offset: int, count: int) -> tuple[int, bytes]:
        """The id of the next record, and `count` bytes of this one from `offset`."""
        try:
            return self._part(record_id, offset, count)
        except CompletionError as error:
            if error.code != _RESERVATION_LOST:
                raise
        self._reserve()
        return self._part(record_id, offset, count)

    def _part(self, record_id: int, offset: int, count: int) -> tuple[int, bytes]:
        asked = struct.pack("<HHBB", self._reservation, record_id, offset, count)
        data = self._bmc.ask(Request(_STORAGE, 0x23, asked), self._timeout)
        if len(data) < 2:
            raise IpmiError("malformed", f"SDR record {record_id}: {data.hex(' ')}")
        return int.from_bytes(data[:2], "little"), data[2:]

    def _reserve(self) -> None:
        data = self._bmc.ask(_RESERVE, self._timeout)
        if len(data) < 2:
            raise IpmiError("malformed", f"SDR reservation: {data.hex(' ')}")
        self._reservation = int.from_bytes(data[:2], "little")

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

from collectors.power.ipmi.message import Bmc, CompletionError, Request
from collectors.power.meter import BmcError

_STORAGE, _SENSOR = 0x0A, 0x04
_RESERVE = Request(_STORAGE, 0x22)
_HEADER_BYTES = 5
_FIRST, _LAST = 0x0000, 0xFFFF
_FULL_RECORD = 0x01
_SHORTEST_FULL_RECORD = 48
_CHUNK_SIZES = (32, 16, 8)  # bytes per request; slow transports accept only the smaller ones
_TOO_LONG = (0xC8, 0xCA, 0xFF)
_RESERVATION_LOST = 0xC5
_MAX_RECORDS = 4096  # a broken repository may have no end

_THRESHOLD = 0x01  # event/reading type of an analog sensor
_WATTS = 6  # unit type code
_BMC_ADDRESS = 0x20
_NOT_PRESENT = 0xCB  # "requested sensor, data, or record not present"

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

ConversionFactors = tuple[int, int, int, int]
"""Slope, offset, offset_exponent and result_exponent: value = f((slope * raw + offset *
10**offset_exponent) * 10**result_exponent)."""


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
    is_rate: bool  # a rate or a percentage

    def value(self, raw: int) -> float | None:
        """The value of a raw reading; None if the formula has none, or is vendor-specific."""
        function = _FUNCTIONS.get(self.linearization)
        signed = _to_signed(raw, self.format)
        if function is None or signed is None:
            return None
        slope, offset, offset_exponent, result_exponent = self.factors
        try:
            linear = (slope * signed + offset * 10.0**offset_exponent) * 10.0**result_exponent
            value = function(linear)
        except (ValueError, OverflowError, ZeroDivisionError):
            return None
        return value if math.isfinite(value) else None


def _to_signed(raw: int, number_format: int) -> int | None:
    if number_format == 0 or (number_format in (1, 2) and raw < 0x80):
        return raw
    return {1: raw - 0xFF, 2: raw - 0x100}.get(number_format)


def _twos_complement(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def parse_factors(data: bytes) -> ConversionFactors:
    """Decode six bytes: M, M and tolerance, B, B and accuracy, accuracy, exponents of R and B."""
    m, m_high, b, b_high, _, exponents = data[:6]
    return (
        _twos_complement(m | (m_high & 0xC0) << 2, 10),
        _twos_complement(b | (b_high & 0xC0) << 2, 10),
        _twos_complement(exponents & 0x0F, 4),
        _twos_complement(exponents >> 4, 4),
    )


def parse_record(record: bytes) -> IpmiSensor | None:
    """The sensor of an SDR record; None unless it is a full record of an analog sensor."""
    if len(record) < _SHORTEST_FULL_RECORD or record[3] != _FULL_RECORD:
        return None
    number_format, event_type = record[20] >> 6, record[13]
    if number_format == 3 or event_type != _THRESHOLD:
        return None
    return IpmiSensor(
        name=_decode_name(record[47], record[48:]),
        owner=record[5],
        lun=record[6] & 0x03,
        number=record[7],
        unit=record[21],
        format=number_format,
        linearization=record[23] & 0x7F,
        factors=parse_factors(record[24:30]),
        is_rate=bool(record[20] & 0x3F),
    )


def _decode_name(type_and_length: int, data: bytes) -> str:
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


def find_power_sensors(bmc: Bmc, timeout: float, total_seconds: float) -> tuple[IpmiSensor, ...]:
    """All sensors in watts that the BMC itself owns; `total_seconds` bounds the whole repository.

    They are recognised by their unit: some vendors give power sensors the type Current.
    """
    sensors = []
    for record in _read_records(bmc, timeout, time.monotonic() + total_seconds):
        sensor = parse_record(record)
        if sensor and sensor.unit == _WATTS and not sensor.is_rate and sensor.owner == _BMC_ADDRESS:
            sensors.append(sensor)
    return tuple(sensors)


def read_sensor(bmc: Bmc, sensor: IpmiSensor, timeout: float) -> float | None:
    """Watts now; None while the sensor has no reading (unplugged, host off, scanning disabled)."""
    try:
        data = bmc.query(_sensor_request(sensor, 0x2D, sensor.number), timeout)
    except CompletionError as error:
        if error.code == _NOT_PRESENT:
            return None
        raise
    if len(data) < 2:
        raise BmcError("malformed", f"reading of sensor {sensor.name!r}: {data.hex(' ')}")
    raw, state = data[0], data[1]
    scanning, unavailable = state & 0x40, state & 0x20
    if unavailable or not scanning:
        return None
    if sensor.linearization == 0x70:  # non-linear: the factors depend on the reading
        sensor = _with_current_factors(bmc, sensor, raw, timeout)
    return sensor.value(raw)


def _with_current_factors(bmc: Bmc, sensor: IpmiSensor, raw: int, timeout: float) -> IpmiSensor:
    data = bmc.query(_sensor_request(sensor, 0x23, sensor.number, raw), timeout)
    if len(data) < 7:
        raise BmcError("malformed", f"factors of sensor {sensor.name!r}: {data.hex(' ')}")
    return sensor._replace(linearization=0, factors=parse_factors(data[1:7]))


def _sensor_request(sensor: IpmiSensor, command: int, *data: int) -> Request:
    return Request(_SENSOR, command, bytes(data), sensor.lun)


def _read_records(bmc: Bmc, timeout: float, deadline: float) -> Iterator[bytes]:
    """Read every full record; of other records, only the header is read."""
    reader = _RepositoryReader(bmc, timeout)
    record_id, count_read = _FIRST, 0
    while record_id != _LAST and count_read < _MAX_RECORDS:
        if time.monotonic() > deadline:
            raise BmcError("timeout", "the sensor data repository took too long to read")
        next_id, header = reader.read_part(record_id, 0, _HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            raise BmcError("malformed", f"SDR header: {header.hex(' ')}")
        if header[3] == _FULL_RECORD:
            yield header + reader.read_body(record_id, header[4])
        record_id, count_read = next_id, count_read + 1


class _RepositoryReader:
    """Reads parts of records under a reservation, which any change of the repository cancels."""

    def __init__(self, bmc: Bmc, timeout: float) -> None:
        self._bmc = bmc
        self._timeout = timeout
        self._chunk_sizes = list(_CHUNK_SIZES)
        self._reserve()

    def read_body(self, record_id: int, length: int) -> bytes:
        """The `length` bytes after the header."""
        body = b""
        while len(body) < length:
            count = min(self._chunk_sizes[0], length - len(body))
            try:
                chunk = self.read_part(record_id, _HEADER_BYTES + len(body), count)[1]
            except CompletionError as error:
                if error.code not in _TOO_LONG or len(self._chunk_sizes) == 1:
                    raise
                self._chunk_sizes.pop(0)
                continue
            if not chunk:
                raise BmcError("malformed", f"SDR record {record_id} ends early")
            body += chunk
        return body[:length]

    def read_part(self, record_id: int, offset: int, count: int) -> tuple[int, bytes]:
        """The id of the next record, and `count` bytes of this one from `offset`."""
        try:
            return self._read_part(record_id, offset, count)
        except CompletionError as error:
            if error.code != _RESERVATION_LOST:
                raise
        self._reserve()
        return self._read_part(record_id, offset, count)

    def _read_part(self, record_id: int, offset: int, count: int) -> tuple[int, bytes]:
        arguments = struct.pack("<HHBB", self._reservation, record_id, offset, count)
        data = self._bmc.query(Request(_STORAGE, 0x23, arguments), self._timeout)
        if len(data) < 2:
            raise BmcError("malformed", f"SDR record {record_id}: {data.hex(' ')}")
        return int.from_bytes(data[:2], "little"), data[2:]

    def _reserve(self) -> None:
        data = self._bmc.query(_RESERVE, self._timeout)
        if len(data) < 2:
            raise BmcError("malformed", f"SDR reservation: {data.hex(' ')}")
        self._reservation = int.from_bytes(data[:2], "little")

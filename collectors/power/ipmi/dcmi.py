"""Power from DCMI, the BMC's own statistics of the node's power.

Source: Data Center Manageability Interface 1.5, sections 6.1.1 and 6.6.1.
"""

import struct
import time
from typing import NamedTuple

from collectors.power.ipmi.message import Bmc, CompletionError, IpmiError, Request

_GROUP_EXTENSION = 0x2C
_DCMI = 0xDC
_POWER_READING = Request(_GROUP_EXTENSION, 0x02, bytes((_DCMI, 0x01, 0x00, 0x00)))
_LAYOUT = struct.Struct("<BHHHHIIB")
_ACTIVE = 0x40
_NOT_MEASURED = (0, 0xFFFF)  # a running node draws more than 0 W; all ones means not implemented
_ATTEMPTS = 3  # some boards answer "busy" or "unspecified" at first
RETRY_SECONDS = 0.2


class PowerReading(NamedTuple):
    """Get Power Reading, mode "system power statistics"; watts, None if not measured."""

    current_watts: int | None
    minimum_watts: int | None  # this and the next two: over the reporting period
    maximum_watts: int | None
    average_watts: int | None
    bmc_time: int  # epoch seconds of the BMC's own clock, which is often wrong
    period_seconds: float  # the statistics reporting period; 0: the BMC keeps no statistics
    active: bool  # the BMC states that it measures; some state otherwise, but report correct watts


def parse_power_reading(data: bytes) -> PowerReading:
    """Decode the 18 bytes of the answer (DCMI 1.5, table 6-16)."""
    if len(data) < _LAYOUT.size or data[0] != _DCMI:
        raise IpmiError("malformed", f"DCMI power reading of {len(data)} bytes: {data.hex(' ')}")
    _, current, minimum, maximum, average, bmc_time, period, state = _LAYOUT.unpack_from(data)
    return PowerReading(
        _watts(current),
        _watts(minimum),
        _watts(maximum),
        _watts(average),
        bmc_time,
        period / 1000,
        bool(state & _ACTIVE),
    )


def _watts(raw: int) -> int | None:
    return None if raw in _NOT_MEASURED else raw


def read_power(bmc: Bmc, timeout: float) -> PowerReading:
    """Query the node's power; IpmiError `no_reading` if the BMC measures none."""
    reading = parse_power_reading(_query_with_retries(bmc, _POWER_READING, timeout))
    if reading.current_watts is None:
        state = "active" if reading.active else "deactivated"
        raise IpmiError("no_reading", f"DCMI reports no power (measurement is {state})")
    return reading


def _query_with_retries(bmc: Bmc, request: Request, timeout: float) -> bytes:
    for _ in range(_ATTEMPTS - 1):
        try:
            return bmc.query(request, timeout)
        except CompletionError as error:
            if error.reason not in ("busy", "completion_code"):
                raise
        time.sleep(RETRY_SECONDS)
    return bmc.query(request, timeout)

"""Power from DCMI, the BMC's own statistics of the node's power.

Source: Data Center Manageability Interface 1.5, sections 6.1.1 and 6.6.1.
"""

import struct
import time

from collectors.power.ipmi.message import Bmc, CompletionError, IpmiError, Power, Request

_GROUP_EXTENSION = 0x2C
_DCMI = 0xDC
_POWER_READING = Request(_GROUP_EXTENSION, 0x02, bytes((_DCMI, 0x01, 0x00, 0x00)))
# After the watts: the time of the BMC's own clock, which is often wrong, and the period of the
# statistics in milliseconds.
_LAYOUT = struct.Struct("<BHHHHIIB")
_ACTIVE = 0x40
_NOT_MEASURED = (0, 0xFFFF)  # a running node draws more than 0 W; all ones means not implemented
_ATTEMPTS = 3  # some boards answer "busy" or "unspecified" at first
RETRY_SECONDS = 0.2


def parse_power_reading(data: bytes) -> Power:
    """Decode the 18 bytes of the answer, mode "system power statistics" (DCMI 1.5, table 6-16).

    Statistics are absent if the BMC keeps none. Raises IpmiError, `no_reading` if it measures no
    power.
    """
    if len(data) < _LAYOUT.size or data[0] != _DCMI:
        raise IpmiError("malformed", f"DCMI power reading of {len(data)} bytes: {data.hex(' ')}")
    _, current, minimum, maximum, average, _, period, state = _LAYOUT.unpack_from(data)
    active = bool(state & _ACTIVE)
    if current in _NOT_MEASURED:
        state_text = "active" if active else "deactivated"
        raise IpmiError("no_reading", f"DCMI reports no power (measurement is {state_text})")
    statistics = (("min", minimum), ("max", maximum), ("average", average))
    return Power(
        source="dcmi",
        watts=float(current),
        statistics=tuple(
            (name, float(watts))
            for name, watts in statistics
            if period and watts not in _NOT_MEASURED
        ),
        period_seconds=period / 1000 or None,
        active=active,  # some BMCs state that they do not measure, but report correct watts
    )


def read_power(bmc: Bmc, timeout: float) -> Power:
    """Query the node's power; IpmiError `no_reading` if the BMC measures none."""
    return parse_power_reading(_query_with_retries(bmc, _POWER_READING, timeout))


def _query_with_retries(bmc: Bmc, request: Request, timeout: float) -> bytes:
    for _ in range(_ATTEMPTS - 1):
        try:
            return bmc.query(request, timeout)
        except CompletionError as error:
            if error.reason not in ("busy", "completion_code"):
                raise
        time.sleep(RETRY_SECONDS)
    return bmc.query(request, timeout)

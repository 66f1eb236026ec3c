"""Selects the power sensors of a BMC that together measure the node's power.

Either one sensor of the whole node, or else the sum of the power supplies' inputs. Never both,
never an input with an output, never limits or parts of the node.
"""

import re
from collections.abc import Sequence

from collectors.power.ipmi.sdr import IpmiSensor

_WHOLE_NODE = (
    "pwr consumption", "system level", "total power", "sys power", "system power", "power meter",
    "pw consumption", "power consumption", "node power",
)  # fmt: skip
_SUPPLY_INPUT = re.compile(r"(psu?|power supply) ?\d+.*\b(in|pin|input)\b")
_NO_MEASUREMENT = re.compile(r"\b(cap|limit|max|min|rated|peak|avg|average)\b")


def node_sensors(
    sensors: Sequence[IpmiSensor], names: Sequence[str] = ()
) -> tuple[IpmiSensor, ...]:
    """The sensors whose sum is the node's power; `names`: those configured, if any."""
    if names:
        normalized = {_normalize(name) for name in names}
        return tuple(sensor for sensor in sensors if _normalize(sensor.name) in normalized)
    measured = [each for each in sensors if not _NO_MEASUREMENT.search(_normalize(each.name))]
    for name in _WHOLE_NODE:
        for sensor in measured:
            if _normalize(sensor.name) == name:
                return (sensor,)
    return tuple(each for each in measured if is_supply_input(each.name))


def is_supply_input(name: str) -> bool:
    """Whether a sensor is one power supply's input."""
    return bool(_SUPPLY_INPUT.search(_normalize(name)))


def _normalize(name: str) -> str:
    """Lower case, with a blank for each run of other characters: `PSU0_PIN` is `psu0 pin`."""
    return " ".join(re.findall(r"[a-z0-9]+", name.lower()))

"""Power from a command: ipmitool, FreeIPMI's ipmi-dcmi or ipmiutil, recognised by its output.

For sites that allow the exporter exactly one command, for example by sudo.
"""

import re
from collections.abc import Sequence

from batchjob.runtime.subprocesses import CommandTimeoutError, SchedulerError, call
from collectors.power.ipmi.message import IpmiError, Power

_OUTPUT_LIMIT = 64 * 1024
_WATTS = r"[^:\n]*:\s*(\d+)\s*watts"
# Texts printed by ipmitool 1.8.18 and 1.8.19, ipmi-dcmi (FreeIPMI 1.6) and ipmiutil 3.1.
_CURRENT = re.compile(r"^\s*(?:Instantaneous power reading|Current Power)" + _WATTS, re.I | re.M)
_STATISTICS = (
    ("min", re.compile(r"^\s*Min(?:imum)?\b" + _WATTS, re.I | re.M)),
    ("max", re.compile(r"^\s*Max(?:imum)?\b" + _WATTS, re.I | re.M)),
    ("average", re.compile(r"^\s*(?:Average|Avg)\b" + _WATTS, re.I | re.M)),
)
# ipmitool 1.8.19 prints the period after the time stamp, on the same line.
_PERIOD = re.compile(r"(?:Sampling period|Statistics reporting time period)\s*:\s*(\d+)\s*(\w+)")
_STATE = re.compile(r"(?:Power reading state is|Power Measurement)\s*:\s*(\w[\w ]*)", re.I)
_UNITS = {"seconds": 1.0, "milliseconds": 0.001, "ms": 0.001}
_PASSWORD_FLAGS = {"ipmitool": ("-P",), "ipmi-dcmi": ("-p", "--password"), "ipmiutil": ("-P",)}


def password_on_command_line(argv: tuple[str, ...]) -> str | None:
    """The flag of this command line that exposes a password to every user, if any."""
    for position, word in enumerate(argv):
        for flag in _PASSWORD_FLAGS.get(word.rsplit("/", 1)[-1], ()):
            for argument in argv[position + 1 :]:
                if argument == flag or (len(flag) > 2 and argument.startswith(f"{flag}=")):
                    return flag
    return None


def parse(text: str) -> Power:
    """The power in the tool's output; IpmiError if there are no watts, which may be 0."""
    current = _CURRENT.search(text)
    if current is None:
        beginning = " ".join(text.split())[:100]
        raise IpmiError("tool", f"no power reading in the output: {beginning!r}")
    matches = ((name, pattern.search(text)) for name, pattern in _STATISTICS)
    period, state = _period(text), _STATE.search(text)
    return Power(
        source="dcmi",
        watts=float(current[1]),
        statistics=tuple(
            (name, float(match[1])) for name, match in matches if period and match and int(match[1])
        ),
        period_seconds=period,
        active=None if state is None else state[1].strip().lower() in ("activated", "active"),
    )


def _period(text: str) -> float | None:
    match = _PERIOD.search(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    return int(match[1]) * unit or None if match and unit else None


def read_power(argv: Sequence[str], timeout: float) -> Power:
    """Run the command once; at the deadline it is killed with its children. Raises IpmiError."""
    try:
        result = call(argv, timeout=timeout, output_limit=_OUTPUT_LIMIT)
    except CommandTimeoutError as error:
        raise IpmiError("timeout", str(error)) from error
    except SchedulerError as error:
        raise IpmiError("tool", str(error)) from error
    power = parse(result.stdout.decode("utf-8", "replace"))
    if power.watts == 0:
        raise IpmiError("no_reading", f"{argv[0]} reports 0 W")
    return power

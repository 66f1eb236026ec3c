"""Power from a command: ipmitool, FreeIPMI's ipmi-dcmi or ipmiutil, recognised by its output.

For sites that allow the exporter exactly one command, for example by sudo.
"""

import re
from typing import NamedTuple

from batchjob.runtime.subprocesses import CommandTimeoutError, SchedulerError, call
from collectors.power.ipmi.message import IpmiError
from collectors.power.ipmi.power import Power

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


class ToolOutput(NamedTuple):
    """The output of the tool."""

    current_watts: int
    statistics: tuple[tuple[str, float], ...]
    period_seconds: float | None
    active: bool | None


def password_on_command_line(argv: tuple[str, ...]) -> str | None:
    """The flag of this command line that exposes a password to every user, if any."""
    for position, word in enumerate(argv):
        for flag in _PASSWORD_FLAGS.get(word.rsplit("/", 1)[-1], ()):
            for argument in argv[position + 1 :]:
                if argument == flag or (len(flag) > 2 and argument.startswith(f"{flag}=")):
                    return flag
    return None


def parse(text: str) -> ToolOutput:
    """Find the watts in the tool's output; IpmiError if there are none."""
    current = _CURRENT.search(text)
    if current is None:
        beginning = " ".join(text.split())[:100]
        raise IpmiError("tool", f"no power reading in the output: {beginning!r}")
    matches = ((name, pattern.search(text)) for name, pattern in _STATISTICS)
    state = _STATE.search(text)
    return ToolOutput(
        current_watts=int(current[1]),
        statistics=tuple((name, float(match[1])) for name, match in matches if match),
        period_seconds=_period(text),
        active=None if state is None else state[1].strip().lower() in ("activated", "active"),
    )


def _period(text: str) -> float | None:
    match = _PERIOD.search(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    return int(match[1]) * unit if match and unit else None


class ToolPower:
    """Runs the command; at the deadline it is killed with its children."""

    def __init__(self, argv: tuple[str, ...], timeout: float) -> None:
        self._argv = argv
        self._timeout = timeout

    def read(self) -> Power:
        """Run the command once."""
        try:
            result = call(self._argv, timeout=self._timeout, output_limit=_OUTPUT_LIMIT)
        except CommandTimeoutError as error:
            raise IpmiError("timeout", str(error)) from error
        except SchedulerError as error:
            raise IpmiError("tool", str(error)) from error
        output = parse(result.stdout.decode("utf-8", "replace"))
        if output.current_watts == 0:
            raise IpmiError("no_reading", f"{self._argv[0]} reports 0 W")
        statistics = tuple(each for each in output.statistics if each[1] > 0)
        return Power(
            source="dcmi",
            watts=float(output.current_watts),
            statistics=statistics if output.period_seconds else (),
            period_seconds=output.period_seconds or None,
            active=output.active,
        )

    def close(self) -> None:
        """Nothing stays open between runs."""

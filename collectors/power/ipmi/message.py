"""Requests to a BMC, its answers, errors, and the node's power, which is read from either source.

Source: IPMI v2.0 rev. 1.1, sections 5.2 (completion codes) and 22 to 35 (commands).
"""

from typing import NamedTuple, Protocol

from collectors.power.meter import BmcError


class Request(NamedTuple):
    """A command of a network function; `lun` is the part of the BMC it is addressed to."""

    netfn: int
    command: int
    data: bytes = b""
    lun: int = 0


class Bmc(Protocol):
    """A connection to a BMC. For one thread; only `close()` may be called from another."""

    def query(self, request: Request, timeout: float) -> bytes:
        """The data after completion code 0, or BmcError within `timeout` seconds."""

    def close(self) -> None:
        """Release what is open; safe to call twice."""


class Power(NamedTuple):
    """The node's power, and the other values of its source."""

    source: str  # dcmi or sdr
    watts: float
    statistics: tuple[tuple[str, float], ...] = ()  # min, max and average over the period
    sensors: tuple[tuple[str, float], ...] = ()  # name and watts of each


# Why a reading failed: the values of the label `reason`.
REASONS = (
    "authentication",  # the BMC rejected name or password
    "busy",
    "completion_code",  # any other refusal
    "implausible",  # far more watts than before, or than any node draws
    "device",  # the kernel driver failed
    "no_device",  # no IPMI driver, or no BMC
    "malformed",  # the answer is too short or makes no sense
    "no_reading",  # the BMC answers, but does not measure power (now)
    "permission",  # this process has no permission to open the device
    "privilege",  # the user's privilege level is too low
    "session",  # the session could not be established, or ended
    "tool",  # the configured command failed
    "timeout",
    "unsupported",
)


class CompletionError(BmcError):
    """The BMC answered with a completion code other than 0."""

    def __init__(self, request: Request, code: int) -> None:
        reason, text = _COMPLETION_CODES.get(code, ("completion_code", "refused"))
        command = f"netfn 0x{request.netfn:02x} command 0x{request.command:02x}"
        super().__init__(reason, f"{command}: {text} (completion code 0x{code:02x})")
        self.code = code


# C7, C9 and CC mean an invalid request. It is not: BMCs without power monitoring answer so.
_COMPLETION_CODES = {
    0xC0: ("busy", "node busy"),
    0xC1: ("unsupported", "command not supported"),
    0xC2: ("unsupported", "command not supported for this LUN"),
    0xC3: ("timeout", "the BMC itself timed out"),
    0xC7: ("unsupported", "request data length invalid"),
    0xC9: ("unsupported", "parameter out of range"),
    0xCC: ("unsupported", "invalid field in the request"),
    0xCE: ("busy", "response could not be provided"),
    0xD0: ("busy", "sensor data repository in update mode"),
    0xD2: ("busy", "BMC is starting"),
    0xD4: ("privilege", "privilege level too low"),
    0xD5: ("unsupported", "not supported in the present state"),
    0xFF: ("completion_code", "unspecified error"),
}


def payload(request: Request, answer: bytes) -> bytes:
    if not answer:
        raise BmcError("malformed", "answer without a completion code")
    if answer[0]:
        raise CompletionError(request, answer[0])
    return answer[1:]

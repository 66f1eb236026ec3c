"""Power readings by DCMI."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.power.ipmi import power
from collectors.power.ipmi.message import CompletionError, Power, payload
from collectors.power.ipmi.power import parse_power_reading
from collectors.power.meter import BmcError
from tests.simulated.bmc import InProcess, SimulatedBmc

# An iDRAC-like answer, and OpenBMC's with the measurement "deactivated".
ACTIVE = bytes.fromhex("dc 59 01 2c 01 90 01 5e 01 1b 44 00 6b e8 03 00 00 40")
OPENBMC = bytes.fromhex("dc 59 01 59 01 59 01 59 01 00 00 00 00 00 00 00 00 00")


@pytest.fixture(autouse=True)
def no_retry_delay(monkeypatch):
    monkeypatch.setattr(power, "RETRY_SECONDS", 0)


def test_deactivated_reading_has_watts_but_no_statistics():
    assert parse_power_reading(OPENBMC) == Power("dcmi", 345.0)


def test_reading_with_a_period_has_statistics():
    assert parse_power_reading(ACTIVE) == Power(
        "dcmi", 345.0, (("min", 300.0), ("max", 400.0), ("average", 350.0))
    )


@pytest.mark.parametrize("watts", [0, 0xFFFF])
@pytest.mark.parametrize("active", [True, False])
def test_reading_without_watts_is_an_error(watts, active):
    bmc = SimulatedBmc(watts=watts)
    bmc.active = active
    with pytest.raises(BmcError) as caught:
        power.read_dcmi(InProcess(bmc, payload), 1)
    assert caught.value.reason == "no_reading"


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_parsed_or_rejected(data):
    is_complete = len(data) >= 18 and data[0] == 0xDC
    if not is_complete or data[1:3] in (b"\0\0", b"\xff\xff"):
        with pytest.raises(BmcError):
            parse_power_reading(data)
        return
    reading = parse_power_reading(data)
    assert 0 < reading.watts < 65535


class RefusingBmc(SimulatedBmc):
    """Refuses the first requests, as some boards do."""

    def __init__(self, refusals, code):
        super().__init__()
        self.refusals, self.code = refusals, code

    def answer(self, *request):
        self.refusals -= 1
        return bytes((self.code,)) if self.refusals >= 0 else super().answer(*request)


@pytest.mark.parametrize("code", [0xC0, 0xFF])
def test_busy_bmc_is_tried_three_times(code):
    assert power.read_dcmi(InProcess(RefusingBmc(2, code), payload), 1).watts == 345
    with pytest.raises(CompletionError):
        power.read_dcmi(InProcess(RefusingBmc(3, code), payload), 1)


def test_unsupported_command_is_not_retried():
    with pytest.raises(CompletionError):
        power.read_dcmi(InProcess(RefusingBmc(1, 0xC1), payload), 1)

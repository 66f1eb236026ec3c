"""Power readings by command-line tools."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.power.ipmi.message import Power
from collectors.power.ipmi.power import parse_tool_output, password_on_command_line, read_tool
from collectors.power.meter import BmcError
from tests.helpers.waiting import scaled

STATISTICS = (("min", 300.0), ("max", 400.0), ("average", 350.0))

IPMITOOL_1_8_19 = """

    Instantaneous power reading:                   345 Watts
    Minimum during sampling period:                300 Watts
    Maximum during sampling period:                400 Watts
    Average power reading over sample period:      350 Watts
    IPMI timestamp:                           11/20/26 11:34:51 UTC    Sampling period:   00000001 Seconds.
    Power reading state is:                   activated

"""  # noqa: E501  (as the tool prints it)

IPMI_DCMI = """\
Current Power                        : 345 Watts
Minimum Power over sampling duration : 300 watts
Maximum Power over sampling duration : 400 watts
Average Power over sampling duration : 350 watts
Time Stamp                           : 11/20/2026 - 11:34:51
Statistics reporting time period     : 1000 milliseconds
Power Measurement                    : Active
"""

IPMIUTIL = """\
ipmiutil dcmi ver 3.18
  Current Power:                   345 Watts
  Min Power over sample duration:  300 Watts
  Max Power over sample duration:  400 Watts
  Avg Power over sample duration:  350 Watts
  Power reading state is:          active
"""


# Since 3.17, ipmiutil also prints the period.
IPMIUTIL_3_17 = IPMIUTIL + "  Sampling period:                 5000 ms\n"


@pytest.mark.parametrize(
    ("text", "statistics"),
    [
        (IPMITOOL_1_8_19, STATISTICS),
        (IPMI_DCMI, STATISTICS),
        (IPMIUTIL, ()),
        (IPMIUTIL_3_17, STATISTICS),
    ],
)
def test_output_of_each_tool_is_parsed(text, statistics):
    assert parse_tool_output(text) == Power("dcmi", 345.0, statistics)


@pytest.mark.parametrize("text", ["", "<html>", "Current Power : n/a Watts", "345 Watts"])
def test_output_without_a_reading_is_an_error(text):
    with pytest.raises(BmcError) as caught:
        parse_tool_output(text)
    assert caught.value.reason == "tool"


@given(st.text(max_size=300))
def test_arbitrary_text_is_an_error(text):
    with pytest.raises(BmcError):
        parse_tool_output(text)


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        ("ipmitool -I lanplus -H b -U u -P secret dcmi power reading", "-P"),
        ("sudo /usr/sbin/ipmi-dcmi -h b -u u -p secret", "-p"),
        ("ipmi-dcmi --password=secret --get-system-power-statistics", "--password"),
        ("ipmitool -I lanplus -H b -p 6623 -U u -f /etc/bmc dcmi power reading", None),
        ("ipmi-dcmi --get-system-power-statistics", None),
    ],
)
def test_password_on_the_command_line_is_found(argv, flag):
    assert password_on_command_line(tuple(argv.split())) == flag


def run_tool(code, timeout=None):
    return read_tool((sys.executable, "-c", code), timeout or scaled(5))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('DCMI request failed because: Invalid command (c1)')", "tool"),
        ("print('Current Power : 0 Watts')", "no_reading"),
        ("print('x' * 100_000)", "tool"),
        ("print(1)", "tool"),
    ],
)
def test_reason_of_a_failing_tool(code, reason):
    with pytest.raises(BmcError) as caught:
        run_tool(code)
    assert caught.value.reason == reason


def test_hanging_tool_is_killed():
    with pytest.raises(BmcError) as caught:
        run_tool("import time; time.sleep(60)", 0.3)
    assert caught.value.reason == "timeout"


def test_missing_tool_is_named():
    with pytest.raises(BmcError, match="/nonexistent/ipmitool: No such file"):
        read_tool(("/nonexistent/ipmitool",), 1)

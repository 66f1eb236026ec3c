"""Power sensors in the sensor data repository (SDR)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.power.ipmi.message import CompletionError, payload
from collectors.power.ipmi.power import node_sensors, read_sensors
from collectors.power.ipmi.sdr import (
    IpmiSensor,
    find_power_sensors,
    parse_factors,
    parse_record,
    read_sensor,
)
from collectors.power.meter import BmcError
from tests.simulated.bmc import (
    CELSIUS,
    InProcess,
    SimulatedBmc,
    full_record,
    other_record,
)

RECORDS = (
    other_record(),
    full_record("Inlet Temp", 1, unit=CELSIUS),
    full_record("PS1 Input Power", 2, m=4),
    full_record("PS2 Input Power", 3, m=4),
    full_record("PS1 Output Power", 4, m=4),
    other_record(),
    full_record("ME Power", 5, owner=0x2C),
    full_record("Pwr Consumption", 6, m=7, lun=1),
)


def bmc_with_records(*records, **options):
    return SimulatedBmc(dcmi=False, records=records or RECORDS, **options)


def power_sensors(bmc):
    return find_power_sensors(InProcess(bmc, payload), 1, 10)


def sensor_names(sensors):
    return [sensor.name for sensor in sensors]


def test_power_sensors_are_found_by_unit_and_owner():
    assert sensor_names(power_sensors(bmc_with_records())) == [
        "PS1 Input Power",
        "PS2 Input Power",
        "PS1 Output Power",
        "Pwr Consumption",
    ]


@pytest.mark.parametrize("chunk", [8, 16, 32, 255])
def test_records_are_read_in_chunks_that_the_bmc_accepts(chunk):
    assert len(power_sensors(bmc_with_records(chunk=chunk))) == 4


def test_repository_is_reserved_again_after_a_change():
    bmc = bmc_with_records()
    bmc.changes = 1
    assert len(power_sensors(bmc)) == 4


def test_constantly_changing_repository_is_an_error():
    bmc = bmc_with_records()
    bmc.changes = 99
    with pytest.raises(CompletionError):
        power_sensors(bmc)


def test_empty_repository_is_an_error():
    bmc = bmc_with_records()
    bmc.records = []
    with pytest.raises(CompletionError):
        power_sensors(bmc)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["PS1 Input Power", "Pwr Consumption"], ["Pwr Consumption"]),
        (["System_Level", "PS1 Power In"], ["System_Level"]),
        (["PS1 Power In", "PS2 Power In", "PS1 Power Out"], ["PS1 Power In", "PS2 Power In"]),
        (["PSU0_PIN", "PSU1_PIN", "PSU0_POUT"], ["PSU0_PIN", "PSU1_PIN"]),
        (["PS1 Input Power", "PS1 Input Power Max", "PS1 Input Rated"], ["PS1 Input Power"]),
        (["Power Cap", "CPU Power", "MEM Power"], []),
        (["Power Supply 1 Input"], ["Power Supply 1 Input"]),
        (["Total_Power"], ["Total_Power"]),
    ],
)
def test_node_power_is_one_sensor_or_all_supply_inputs(names, chosen):
    records = [full_record(name, number) for number, name in enumerate(names)]
    assert sensor_names(node_sensors(power_sensors(bmc_with_records(*records)))) == chosen


def test_configured_sensors_are_chosen():
    assert sensor_names(node_sensors(power_sensors(bmc_with_records()), ["ps1 output power"])) == [
        "PS1 Output Power"
    ]


def test_reading_is_scaled_and_requested_from_the_lun_of_the_sensor():
    bmc = bmc_with_records(readings={6: 14})
    sensor = power_sensors(bmc)[-1]
    assert read_sensor(InProcess(bmc, payload), sensor, 1) == 98.0
    assert bmc.asked[-1] == (0x04, 0x2D, b"\x06", 1)


def test_nonlinear_sensor_has_factors_by_reading():
    bmc = bmc_with_records(full_record("System Level", 9, linearization=0x70), readings={9: 120})
    assert read_sensor(InProcess(bmc, payload), power_sensors(bmc)[0], 1) == 360.0


def test_unavailable_supply_is_left_out_of_the_sum():
    bmc = bmc_with_records(readings={2: 50, 3: None})
    chosen = node_sensors(power_sensors(bmc), ["PS1 Input Power", "PS2 Input Power"])
    power = read_sensors(InProcess(bmc, payload), chosen, 1)
    assert power.watts == 200.0
    assert power.sensors == (("PS1 Input Power", 200.0),)
    bmc.readings = {2: None, 3: None}
    with pytest.raises(BmcError) as caught:
        read_sensors(InProcess(bmc, payload), chosen, 1)
    assert caught.value.reason == "no_reading"


def test_missing_reading_of_a_chosen_sensor_is_an_error():
    bmc = bmc_with_records(readings={2: 50})
    chosen = node_sensors(power_sensors(bmc), ["PS1 Input Power", "Pwr Consumption"])
    with pytest.raises(BmcError, match="no reading from Pwr Consumption"):
        read_sensors(InProcess(bmc, payload), chosen, 1)


LINEAR = IpmiSensor("x", 0x20, 0, 1, 6, 0, 0, (1, 0, 0, 0), False)


@pytest.mark.parametrize(
    ("linearization", "raw", "value"),
    [
        (0x00, 8, 8.0),
        (0x01, 1, 0.0),
        (0x02, 100, 2.0),
        (0x03, 8, 3.0),
        (0x04, 0, 1.0),
        (0x05, 2, 100.0),
        (0x06, 8, 256.0),
        (0x07, 4, 0.25),
        (0x08, 8, 64.0),
        (0x09, 2, 8.0),
        (0x0A, 64, 8.0),
        (0x0B, 27, 3.0),
    ],
)
def test_linearizations(linearization, raw, value):
    assert LINEAR._replace(linearization=linearization).value(raw) == pytest.approx(value)


@pytest.mark.parametrize(("form", "value"), [(0, 254.0), (1, -1.0), (2, -2.0), (3, None)])
def test_raw_reading_formats(form, value):
    assert LINEAR._replace(format=form).value(0xFE) == value


@pytest.mark.parametrize("linearization", [0x01, 0x07, 0x71])
def test_reading_outside_the_domain_of_the_linearization_has_no_value(linearization):
    assert LINEAR._replace(linearization=linearization).value(0) is None


@given(
    st.integers(-512, 511), st.integers(-512, 511), st.integers(-8, 7), st.integers(-8, 7),
    st.integers(0, 255),
)  # fmt: skip
def test_encoded_factors_are_parsed(m, b, b_exp, r_exp, raw):
    record = b"\0\0" + full_record("P", 1, m=m, b=b, b_exp=b_exp, r_exp=r_exp)
    sensor = parse_record(record)
    assert sensor.factors == (m, b, b_exp, r_exp)
    assert sensor.value(raw) == pytest.approx((m * raw + b * 10.0**b_exp) * 10.0**r_exp)


@given(st.binary(min_size=6, max_size=6))
def test_arbitrary_factors_are_finite(data):
    factors = parse_factors(data)
    assert all(math.isfinite(each) for each in factors)


@given(st.binary(max_size=80), st.integers(0, 255))
def test_arbitrary_record_is_a_sensor_or_none(data, raw):
    sensor = parse_record(data)
    if sensor is not None:
        value = sensor.value(raw)
        assert value is None or math.isfinite(value)
        assert sensor.name.isprintable()


@pytest.mark.parametrize(
    ("code", "data", "name"),
    [
        (0xC5, b"Watts\0\0", "Watts"),
        (0x83, bytes((0x29, 0xDC, 0xA6)), "IPMI"),  # 6-bit packed, IPMI v2.0 table 43.15
        (0x42, bytes((0x12, 0x3A)), "123"),
        (0x04, "PS".encode("utf-16-le"), "PS"),
    ],
)
def test_sensor_name_encodings(code, data, name):
    record = bytearray(b"\0\0" + full_record("", 1))
    record[47] = code
    assert parse_record(bytes(record) + data).name == name

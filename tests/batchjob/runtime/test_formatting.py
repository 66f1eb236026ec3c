"""Formatting of quantities."""

import pytest

from batchjob.runtime.formatting import (
    digits,
    energy,
    escape_formula,
    format_clock,
    format_duration,
    format_exact_duration,
    mass,
    share,
    size,
)


@pytest.mark.parametrize(
    ("formatted", "text"),
    [
        (digits(0), "0"), (digits(12), "12"), (digits(3.14159), "3.14"), (digits(99.96), "100"),
        (digits(1234.5), "1234"), (digits(0.00012), "0.00012"), (digits(0.00002), "0"),
        (digits(-12.34), "-12.3"), (digits(60), "60"),
        (size(0), "0 B"), (size(812), "812 B"), (size(1023), "1023 B"), (size(1024), "1 KiB"),
        (size(3.1 * 2**30), "3.1 GiB"), (size(150 << 20), "150 MiB"), (size(3 << 70), "3072 EiB"),
        (size(1536, "_"), "1.5_KiB"),
        (energy(360), "0.1 Wh"), (energy(4.5e6), "1.25 kWh"), (energy(999.96 * 3.6e6), "1 MWh"),
        (mass(12), "12 g"), (mass(61_400), "61.4 kg"),
        (share(0), "0 %"), (share(0.004), "0.4 %"), (share(0.4213), "42 %"),
        (share(1.034), "103 %"),
        (format_duration(0), "0 s"), (format_duration(0.25), "0.25 s"),
        (format_duration(59.94), "59.9 s"), (format_duration(312), "5 min 12 s"),
        (format_duration(3600), "1 h"), (format_duration(183_600), "2 d 3 h"),
        (format_duration(-90), "\u22121 min 30 s"), (format_exact_duration(60), "1 min"),
        (format_exact_duration(1.053608), "1.054 s"),
        (format_exact_duration(83.4567), "1 min 23 s (83.457 s)"),
        (format_exact_duration(0.0004), "0.0004 s"), (format_clock(3723), "1:02:03"),
        (format_clock(100 * 3600), "100:00:00"),
    ],
)  # fmt: skip
def test_quantities(formatted, text):
    assert formatted == text


@pytest.mark.parametrize("prefix", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_formula_prefix_is_escaped(prefix):
    assert escape_formula(f"{prefix}1+1") == f"'{prefix}1+1"


@pytest.mark.parametrize("value", ["train", "", "a=b", -1, 1.5, None, "１"])
def test_other_values_are_not_escaped(value):
    assert escape_formula(value) == value

"""Decoding of Slurm's SLUIDs, which contain the submission time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.slurm.sluid import Sluid, decode

DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def encode(value: int) -> str:
    return "s" + "".join(DIGITS[value >> shift & 31] for shift in range(60, -1, -5))


def test_decode_recorded_sluid():
    assert decode("sEKNKTV3WPV500") == Sluid(3741, 1781174000.485, 0)


@given(st.integers(0, 2**12 - 1), st.integers(0, 2**42 - 1), st.integers(0, 2**10 - 1))
def test_sluid_round_trip(cluster, milliseconds, sequence):
    value = cluster << 52 | milliseconds << 10 | sequence
    assert decode(encode(value)) == Sluid(cluster, milliseconds / 1000, sequence)


@pytest.mark.parametrize("text", ["", "job_1", "s5K1KKYAYG5D0", "s5K1KKYAYG5DI0", "sZZZZZZZZZZZZZ"])
def test_invalid_sluid_is_rejected(text):
    with pytest.raises(ValueError, match="expected"):
        decode(text)

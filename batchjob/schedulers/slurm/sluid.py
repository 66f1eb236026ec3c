"""Slurm's sortable ids ("SLUID"), which name a job over all its requeues and clusters.

Source: Slurm src/common/sluid.c. Text: `s` and 13 digits of Crockford's base 32, upper case.
Value: 12 bits cluster id, 42 bits Unix time of submission in milliseconds, 10 bits sequence.
"""

import re
from typing import NamedTuple

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32 omits I, L, O and U
_VALUE = {digit: value for value, digit in enumerate(_DIGITS)}
PATTERN = rf"s[{_DIGITS}]{{13}}"
_SHAPE = re.compile(PATTERN)


class Sluid(NamedTuple):
    """The parts of a SLUID."""

    cluster_id: int
    submitted_at: float  # epoch seconds
    sequence: int


def decode(text: str) -> Sluid:
    """Decode a SLUID; raises ValueError for any other text."""
    value = 0
    if not _SHAPE.fullmatch(text):
        raise ValueError(f"expected s and 13 base-32 digits, got {text!r}")
    for digit in text[1:]:
        value = value * 32 + _VALUE[digit]
    if value >= 1 << 64:
        raise ValueError(f"expected a value of 64 bits, got {text!r}")
    milliseconds = (value >> 10) & ((1 << 42) - 1)
    return Sluid(value >> 52, milliseconds / 1000, value & 1023)

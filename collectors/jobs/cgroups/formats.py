"""The formats of cgroup files (Linux Documentation/admin-guide/cgroup-v2.rst, "Format")."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Parse = Callable[[bytes], Mapping[str, Any]]
"""Field → value; ValueError or LookupError for a text that is not in the file's format."""


def flat_keyed(fields: Mapping[str, tuple[str, int]]) -> Parse:
    """A parser of `key value` lines (cgroup-v2.rst, "Flat keyed"): key → (field, divisor).

    Unknown keys are ignored and missing ones left out. A kernel writes the keys of a file in a
    fixed order, so their lines are remembered: reading 8 of 50 keys costs a quarter of reading all.
    """
    wanted = {key.encode(): target for key, target in fields.items()}
    lines = _compile_lines(b"", wanted)

    def parse(data: bytes) -> Mapping[str, Any]:
        nonlocal lines
        match = lines.pattern.fullmatch(data)
        if match is None:
            lines = _compile_lines(data, wanted)
            match = lines.pattern.fullmatch(data)
            if match is None:
                raise ValueError("not lines of a key and a number")
        values: dict[str, float] = dict(zip(lines.fields, map(int, match.groups()), strict=True))
        for field, divisor in lines.divided:
            values[field] /= divisor
        return values

    return parse


class _Lines(NamedTuple):
    """The wanted lines of a file: a pattern with a group for each of their numbers."""

    pattern: re.Pattern[bytes]
    fields: tuple[str, ...]
    divided: tuple[tuple[str, int], ...]


def _compile_lines(data: bytes, wanted: Mapping[bytes, tuple[str, int]]) -> _Lines:
    pattern, skipped, targets = b"", 0, []
    for line in data.splitlines():
        key = line.partition(b" ")[0]
        if key in wanted:
            pattern += rb"(?:.*+\n){%d}+%s (\d{1,20})\n" % (skipped, re.escape(key))
            skipped = 0
            targets.append(wanted[key])
        else:
            skipped += 1
    return _Lines(
        re.compile(pattern + rb"(?:.*+\n){%d}+" % skipped),
        tuple(field for field, _ in targets),
        tuple((field, divisor) for field, divisor in targets if divisor != 1),
    )


def parse_uint64(text: bytes | str) -> int:
    """Parse a number as the kernel writes it: 64 bits, so at most 20 digits and a line feed.

    Raises ValueError for anything else: a sign, digits of other scripts or with `_` between them,
    or more than fit a sample.
    """
    digits = text.strip()
    if len(text) > 21 or not (digits.isdigit() and digits.isascii()):
        raise ValueError("not a number of 64 bits")
    return int(digits)


def single(field: str, divisor: int = 1) -> Parse:
    """A parser of a file with one number; `max` means no limit."""

    def parse(data: bytes) -> Mapping[str, Any]:
        if data == b"max\n":
            return {}
        return {field: parse_uint64(data) if divisor == 1 else parse_uint64(data) / divisor}

    return parse


def count_list(data: bytes) -> int:
    """The number of members of a kernel list such as `0-3,8` (cpusets.rst, "List format")."""
    count = 0
    for part in data.strip().split(b","):
        if part:
            first, _, last = part.partition(b"-")
            span = parse_uint64(last or first) - parse_uint64(first) + 1
            if span < 1:
                raise ValueError(f"range runs backwards: {part!r}")
            count += span
    return count

"""Instructions of BPF and the programs made of them, without a compiler.

Format and opcodes: Linux, Documentation/bpf/standardization/instruction-set.rst.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

FORMAT = struct.Struct("<BBhi")  # opcode, source << 4 | destination, offset, immediate

RESULT, STACK = 0, 10  # registers; arguments are in 1 to 5, and 6 to 9 survive calls
EXIT_CODE = 0x95
_LOAD = {1: 0x71, 2: 0x69, 4: 0x61, 8: 0x79}
_STORE = {4: 0x63, 8: 0x7B}
_JUMPS = {"always": 0x05, "==": 0x15, "!=": 0x55, "<": 0xA5, ">=": 0x35}
_MAP_DESCRIPTOR = 1  # BPF_PSEUDO_MAP_FD, as the source register of a 64-bit load


class Instruction(NamedTuple):
    """One instruction; a jump names the label to which it goes."""

    code: int
    destination: int = 0
    source: int = 0
    offset: int = 0
    immediate: int = 0
    label: str = ""


Part = Instruction | str
"""A string is a label: it names the instruction after it."""


def move(to: int, register: int) -> Instruction:
    return Instruction(0xBF, to, register)


def constant(to: int, value: int) -> Instruction:
    return Instruction(0xB7, to, immediate=value)


def add(to: int, value: int) -> Instruction:
    return Instruction(0x07, to, immediate=value)


def address(to: int, offset: int) -> list[Part]:
    return [move(to, STACK), add(to, offset)]


def load(to: int, base: int, offset: int, size: int = 8) -> Instruction:
    return Instruction(_LOAD[size], to, base, offset)


def store(base: int, offset: int, register: int, size: int = 8) -> Instruction:
    return Instruction(_STORE[size], base, register, offset)


def store_zero(base: int, offset: int) -> Instruction:
    return Instruction(0x7A, base, 0, offset)


def atomic_add(base: int, offset: int, register: int) -> Instruction:
    return Instruction(0xDB, base, register, offset)


def map_descriptor(to: int, descriptor: int) -> list[Part]:
    return [Instruction(0x18, to, _MAP_DESCRIPTOR, 0, descriptor), Instruction(0)]


def jump(label: str, register: int = 0, comparison: str = "always", value: int = 0) -> Instruction:
    """Go to a label, always or if the register compares with the value."""
    return Instruction(_JUMPS[comparison], register, 0, 0, value, label)


def jump_if_different(label: str, left: int, right: int) -> Instruction:
    return Instruction(0x5D, left, right, label=label)


def call(helper: int) -> Instruction:
    """Call a helper of the kernel; it clears the registers 1 to 5."""
    return Instruction(0x85, immediate=helper)


def leave(value: int) -> list[Part]:
    """End the program with a result."""
    return [constant(RESULT, value), Instruction(EXIT_CODE)]


def assemble(parts: Iterable[Part]) -> bytes:
    """The program as the kernel loads it. Raises KeyError if a label is missing."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for part in parts:
        if isinstance(part, str):
            labels[part] = len(instructions)
        else:
            instructions.append(part)
    return b"".join(
        FORMAT.pack(
            each.code,
            each.destination | each.source << 4,
            labels[each.label] - position - 1 if each.label else each.offset,
            each.immediate,
        )
        for position, each in enumerate(instructions)
    )

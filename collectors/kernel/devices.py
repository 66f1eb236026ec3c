"""The devices that the device programs of a cgroup v2 allow, by evaluating the programs.

Slurm, systemd and container runtimes write such a program as a list of rules: compare type, major
and minor number with constants, and return 0 or 1. Whatever else a program does is "unknown": the
answer is then None, and never a guess. (Linux, Documentation/admin-guide/cgroup-v2.rst,
"Device controller"; the context is struct bpf_cgroup_dev_ctx.)
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from collectors.kernel import bpf
from collectors.kernel.assembler import EXIT_CODE, FORMAT

Device = tuple[int, int]
"""Major and minor number of a character device."""

_MAX_STEPS = 100_000
_REGISTERS = 12  # 11 is the kernel's own, in programs whose constants it has hidden
_CHARACTER, _READ_AND_WRITE = 2, 6
_MINOR_OFFSET = 8
_LOAD, _NUMBERS_32, _JUMP, _JUMP_32, _NUMBERS_64 = 1, 4, 5, 6, 7  # classes of instructions
_FROM_REGISTER, _FAR_JUMP = 0x08, 0x06
_SIZES = {0x61: "<I", 0x69: "<H", 0x71: "<B"}  # loads from memory
_ARITHMETIC: Mapping[int, Callable[[int, int, int], int]] = {
    0x00: lambda left, right, _: left + right,
    0x10: lambda left, right, _: left - right,
    0x40: lambda left, right, _: left | right,
    0x50: lambda left, right, _: left & right,
    0x60: lambda left, right, bits: left << right % bits,
    0x70: lambda left, right, bits: left >> right % bits,
    0xA0: lambda left, right, _: left ^ right,
    0xB0: lambda _, right, __: right,
}
_MOVE, _EQUAL, _NOT_EQUAL = 0xB0, 0x10, 0x50
_WITHOUT_LEFT = (0x05, 0xB4, 0xB7, 0xBC, 0xBF)  # the plain jump and moves
_COMPARISONS: Mapping[int, Callable[[int, int], bool]] = {
    0x00: lambda _, __: True,
    _EQUAL: lambda left, right: left == right,
    0x20: lambda left, right: left > right,
    0x30: lambda left, right: left >= right,
    0x40: lambda left, right: left & right != 0,
    _NOT_EQUAL: lambda left, right: left != right,
    0xA0: lambda left, right: left < right,
    0xB0: lambda left, right: left <= right,
}


class Verdict(NamedTuple):
    """What a program says of a device."""

    allowed: bool
    named: bool  # it compared the minor number with this one, and did not allow just anything


class _Unknown(Exception):
    """The program does something else than compare numbers."""


class _Evaluation:
    """One run of a program. A register is None before it has a number."""

    def __init__(self, code: bytes, device: Device) -> None:
        self._code = list(FORMAT.iter_unpack(code))
        self._context = struct.pack("<III", _READ_AND_WRITE << 16 | _CHARACTER, *device)
        self._values: list[int | None] = [None] * _REGISTERS
        self._has_minor: set[int] = set()  # registers that hold the minor number as it is
        self._position = 0
        self._named = False

    def run(self) -> Verdict:
        for _ in range(_MAX_STEPS):
            if not 0 <= self._position < len(self._code):
                break
            code, registers, offset, immediate = self._code[self._position]
            self._position += 1
            if code == EXIT_CODE and self._values[0] in (0, 1):
                return Verdict(self._values[0] == 1, self._named)
            self._step(code, registers & 15, registers >> 4, offset, immediate)
        raise _Unknown

    def _step(self, code: int, to: int, source: int, offset: int, immediate: int) -> None:
        kind = code & 7
        if kind == _LOAD:
            self._load(code, to, source, offset)
            return
        if kind not in (_NUMBERS_32, _JUMP, _JUMP_32, _NUMBERS_64):
            raise _Unknown
        bits = 64 if kind in (_JUMP, _NUMBERS_64) else 32
        right = self._values[source] if code & _FROM_REGISTER else immediate
        left = 0 if code in _WITHOUT_LEFT else self._values[to]
        if left is None or right is None:
            raise _Unknown
        left, right = left % (1 << bits), right % (1 << bits)
        if kind in (_JUMP, _JUMP_32):
            self._jump(code, to, left, right, offset)
            return
        calculate = _ARITHMETIC.get(code & 0xF0)
        if calculate is None or offset:
            raise _Unknown
        copies_minor = code & 0xF8 == _MOVE | _FROM_REGISTER and source in self._has_minor
        self._set(to, calculate(left, right, bits) % (1 << bits), is_minor=copies_minor)

    def _load(self, code: int, to: int, source: int, offset: int) -> None:
        form = _SIZES.get(code)
        is_context = source == 1 and self._values[1] is None
        if form is None or offset < 0 or not is_context:
            raise _Unknown
        value = struct.unpack_from(form, self._context, offset)[0]
        self._set(to, int(value), is_minor=form == "<I" and offset == _MINOR_OFFSET)

    def _jump(self, code: int, to: int, left: int, right: int, offset: int) -> None:
        compare = _COMPARISONS.get(code & 0xF0)
        if compare is None or code == _FAR_JUMP:
            raise _Unknown
        if code & 0xF0 in (_EQUAL, _NOT_EQUAL):
            self._named |= to in self._has_minor and left == right
        if compare(left, right):
            self._position += offset

    def _set(self, register: int, value: int, *, is_minor: bool) -> None:
        self._values[register] = value
        (self._has_minor.add if is_minor else self._has_minor.discard)(register)


def evaluate(code: bytes, device: Device) -> Verdict | None:
    """What a device program says of opening a device for reading and writing; None: unknown."""
    try:
        return _Evaluation(code, device).run()
    except (_Unknown, struct.error, IndexError):
        return None


def allotted(
    own: Sequence[bytes], effective: Iterable[bytes], devices: Iterable[Device]
) -> list[Device] | None:
    """The devices that a cgroup may open and that its own programs distinguish from others.

    None: unknown, or its own programs treat all devices alike, so that they allot none. Every one
    of the effective programs, the own and those of the parents, must allow a device.
    """
    found = []
    distinguishes = False
    programs = list(effective)
    for device in devices:
        of_own = [evaluate(code, device) for code in own]
        verdicts = [evaluate(code, device) for code in programs]
        if None in of_own or None in verdicts:
            return None
        distinguishes |= any(each and (each.named or not each.allowed) for each in of_own)
        if all(each and each.allowed for each in verdicts):
            found.append(device)
    return found if distinguishes else None


def allotted_devices(cgroup: int, devices: Iterable[Device]) -> list[Device] | None:
    """As `allotted`, for the descriptor of a cgroup v2. Raises OSError."""
    own = bpf.attached_programs(cgroup, bpf.DEVICE)
    if not own:
        return None
    effective = bpf.attached_programs(cgroup, bpf.DEVICE, effective=True)
    codes = {each: bpf.instructions(each) for each in {*own, *effective}}
    return allotted([codes[each] for each in own], [codes[each] for each in effective], devices)

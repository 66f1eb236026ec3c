"""Offsets of the running kernel's structures, from its own description of its types.

Format: Linux, Documentation/bpf/btf.rst. Reading takes about 0.2 s, once.
"""

import struct
from collections.abc import Iterable

VMLINUX = "/sys/kernel/btf/vmlinux"

_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_MEMBER = struct.Struct("<III")
_MAGIC = 0xEB9F
_ENUM64, _STRUCT, _UNION, _TYPEDEF, _FUNCTION = 19, 4, 5, 8, 12
# Bytes after the type itself, by kind: of all, and of each of its members.
_FIXED_BYTES = {1: 4, 3: 12, 14: 4, 17: 4}
_MEMBER_BYTES = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}


class KernelTypes:
    """Structures, and the ids of functions and tracepoints.

    Raises OSError without a description, ValueError if it is not understood.
    """

    def __init__(self, data: bytes) -> None:
        magic, _, _, header_bytes, types, type_bytes, strings, _ = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("expected the kernel's types (BTF)")
        self._data = data
        self._strings = header_bytes + strings
        self._positions = [0]  # id 0 is void
        self._ids: dict[tuple[int, int], int] = {}  # (kind, name's offset) → id
        position, end = header_bytes + types, header_bytes + types + type_bytes
        while position < end:
            name, info, _ = _TYPE.unpack_from(data, position)
            kind = info >> 24 & 0x1F
            if not 0 < kind <= _ENUM64:
                raise ValueError(f"unknown kind {kind} of a kernel's type")
            if kind in (_STRUCT, _TYPEDEF, _FUNCTION):
                self._ids.setdefault((kind, name), len(self._positions))
            self._positions.append(position)
            members = info & 0xFFFF
            position += 12 + _FIXED_BYTES.get(kind, 0) + members * _MEMBER_BYTES.get(kind, 0)

    def function(self, name: str) -> int:
        """The id of a function. Raises ValueError."""
        return self._id(_FUNCTION, name)

    def tracepoint(self, name: str) -> int:
        """The id of a tracepoint. Raises ValueError."""
        return self._id(_TYPEDEF, f"btf_trace_{name}")

    def offset(self, structure: str, member: str) -> int:
        """The offset of a member in bytes. Raises ValueError."""
        found = dict(self._members(self._id(_STRUCT, structure), 0)).get(member)
        if found is None:
            raise ValueError(f"this kernel's struct {structure} has no member {member}")
        return found

    def _id(self, kind: int, name: str) -> int:
        place = self._data.find(b"\0%s\0" % name.encode(), self._strings)
        found = self._ids.get((kind, place + 1 - self._strings))
        if place < 0 or found is None:
            raise ValueError(f"this kernel has no {name}")
        return found

    def _members(self, number: int, base: int) -> Iterable[tuple[str, int]]:
        position = self._positions[number]
        _, info, _ = _TYPE.unpack_from(self._data, position)
        for index in range(info & 0xFFFF):
            name, kind, bits = _MEMBER.unpack_from(self._data, position + 12 + 12 * index)
            offset = base + ((bits & 0xFFFFFF if info >> 31 else bits) >> 3)
            if name:
                begin = self._strings + name
                yield self._data[begin : self._data.index(b"\0", begin)].decode(), offset
            elif self._kind(kind) in (_STRUCT, _UNION):  # its members belong to this one
                yield from self._members(kind, offset)

    def _kind(self, number: int) -> int:
        return int(_TYPE.unpack_from(self._data, self._positions[number])[1]) >> 24 & 0x1F


def read_kernel_types(path: str = VMLINUX) -> KernelTypes:
    """The types of the running kernel. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        return KernelTypes(file.read())

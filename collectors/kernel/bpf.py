"""The system call bpf(2): programs, maps, links, and the programs that others have attached.

A program that is attached by a link, and a map, exist as long as a process holds their descriptor:
nothing is left when the process ends. Numbers and structures: Linux, include/uapi/linux/bpf.h.
"""

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator

_SYSTEM_CALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_MAP_CREATE, _DELETE, _PROGRAM_LOAD = 0, 3, 5
_PROGRAM_BY_ID, _INFO, _QUERY, _OPEN_TRACEPOINT, _LOAD_TYPES = 13, 15, 16, 17, 18
_LOOKUP_BATCH, _LINK_CREATE, _ITERATOR_CREATE = 24, 28, 33
HASH, PER_CPU_HASH, SOCKET_STORAGE = 1, 5, 24
_NO_PREALLOCATION, _CLONE = 1, 1 << 9
CGROUP_SKB, CGROUP_SOCK, CGROUP_DEVICE, TRACING = 8, 9, 15, 26  # types of programs
INGRESS, EGRESS, SOCKET_CREATED, DEVICE, RAW_TRACEPOINT, ITERATOR = 0, 1, 2, 6, 23, 28  # places
_EFFECTIVE = 1
_MAX_PROGRAMS = 64
_PROGRAM_INFO_BYTES = 232
_LOG_BYTES = 1 << 16
_BATCH = 1024

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: "ctypes.Array[ctypes.c_char]") -> int:
    number = _SYSTEM_CALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) of {platform.machine()} is not known")
    result: int = _libc.syscall(number, command, attributes, len(attributes))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def call(command: int, layout: str, *values: int | bytes) -> int:
    """One call with its attributes; the result is mostly a descriptor. Raises OSError."""
    attributes = struct.pack(layout, *values)
    return _bpf(command, ctypes.create_string_buffer(attributes, len(attributes)))


def create_hash(kind: int, key_bytes: int, value_bytes: int, entries: int) -> int:
    """The descriptor of a new map, which takes memory for the entries that exist. OSError."""
    sizes = key_bytes, value_bytes, entries
    return call(_MAP_CREATE, "6I4x16s", kind, *sizes, _NO_PREALLOCATION, 0, b"batchjob")


def create_socket_storage() -> int:
    """A map with eight bytes for each socket, which accept(2) copies to the new one. OSError."""
    strings = b"\0int\0u64\0"
    types = struct.pack("<4I", 1, 1 << 24, 4, 1 << 24 | 32)  # int: signed, 32 bits
    types += struct.pack("<4I", 5, 1 << 24, 8, 64)
    header = struct.pack(
        "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings)
    )  # Documentation/bpf/btf.rst
    data = ctypes.create_string_buffer(header + types + strings, 24 + len(types) + len(strings))
    described = call(_LOAD_TYPES, "QQIII4x", ctypes.addressof(data), 0, len(data), 0, 0)
    try:
        return call(
            _MAP_CREATE, "6I4x16sIIII", SOCKET_STORAGE, 4, 8, 0, _NO_PREALLOCATION | _CLONE, 0,
            b"batchjob", 0, described, 1, 2,
        )  # fmt: skip
    finally:
        os.close(described)


def load_program(kind: int, code: bytes, place: int = 0, target: int = 0) -> int:
    """The descriptor of a program; `target`: BTF id of what it is attached to.

    Raises OSError with the last line of the verifier's log.
    """
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    try:
        return call(
            _PROGRAM_LOAD, "IIQQIIQII16sIIIIQIIQII", kind, len(code) // 8, ctypes.addressof(text),
            ctypes.addressof(licence), 1, len(log), ctypes.addressof(log), 0, 0, b"batchjob", 0,
            place, 0, 0, 0, 0, 0, 0, 0, target,
        )  # fmt: skip
    except OSError as error:
        lines = [line for line in log.value.decode(errors="replace").splitlines() if line]
        said = next((each for each in reversed(lines) if not each.startswith("processed ")), "")
        raise OSError(error.errno, f"{error.strerror}{said and f' ({said})'}") from error


def attach(program: int, target: int, place: int) -> int:
    """A link of the program to a cgroup's descriptor, or (target 0) to its iterator. OSError."""
    return call(_LINK_CREATE, "IIII48x", program, target, place, 0)


def attach_tracepoint(program: int) -> int:
    """A link of the program to the tracepoint for which it was loaded. Raises OSError."""
    return call(_OPEN_TRACEPOINT, "QI4x", 0, program)


def run_iterator(link: int) -> None:
    """Run the program of an iterator for each of its objects. Raises OSError."""
    descriptor = call(_ITERATOR_CREATE, "II", link, 0)
    try:
        while os.read(descriptor, 1 << 12):
            pass
    finally:
        os.close(descriptor)


def delete(table: int, key: bytes) -> None:
    """Remove an entry of a map, if it exists. Raises OSError."""
    name = ctypes.create_string_buffer(key, len(key))
    with contextlib.suppress(FileNotFoundError):
        call(_DELETE, "I4xQ", table, ctypes.addressof(name))


def entries(table: int, key_bytes: int, value_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """All entries of a hash map; a value has the values of all CPUs. Raises OSError."""
    count, position = _BATCH, ctypes.create_string_buffer(8)
    begun = False
    while True:
        keys = ctypes.create_string_buffer(count * key_bytes)
        values = ctypes.create_string_buffer(count * value_bytes)
        start, *places = map(ctypes.addressof, (position, position, keys, values))
        packed = struct.pack("QQQQIIQQ", start if begun else 0, *places, count, table, 0, 0)
        attributes = ctypes.create_string_buffer(packed, len(packed))
        try:
            _bpf(_LOOKUP_BATCH, attributes)
            at_end = False
        except OSError as error:
            if error.errno == errno.ENOSPC:  # one bucket has more entries than that
                count *= 2
                continue
            if error.errno != errno.ENOENT:
                raise
            at_end = True
        for index in range(struct.unpack_from("I", attributes, 32)[0]):
            yield (
                keys.raw[index * key_bytes : (index + 1) * key_bytes],
                values.raw[index * value_bytes : (index + 1) * value_bytes],
            )
        if at_end:
            return
        begun = True


def attached_programs(cgroup: int, place: int, *, effective: bool = False) -> list[int]:
    """The ids of a cgroup's programs at a place, or with those of its parents. Raises OSError."""
    found = ctypes.create_string_buffer(4 * _MAX_PROGRAMS)
    flags = _EFFECTIVE if effective else 0
    packed = struct.pack(
        "IIIIQI36x", cgroup, place, flags, 0, ctypes.addressof(found), _MAX_PROGRAMS
    )
    attributes = ctypes.create_string_buffer(packed, len(packed))
    _bpf(_QUERY, attributes)
    return list(struct.unpack_from(f"{struct.unpack_from('I', attributes, 24)[0]}I", found))


def instructions(program: int) -> bytes:
    """The instructions of a loaded program, as the verifier has left them. Raises OSError."""
    descriptor = call(_PROGRAM_BY_ID, "III", program, 0, 0)
    try:
        length = struct.unpack_from("I", program_info(descriptor), 20)[0]
        code = ctypes.create_string_buffer(length)
        wanted = struct.pack("20xIQQ", length, 0, ctypes.addressof(code))
        program_info(descriptor, wanted)
        return code.raw
    finally:
        os.close(descriptor)


def program_info(descriptor: int, wanted: bytes = b"") -> "ctypes.Array[ctypes.c_char]":
    """The kernel's struct bpf_prog_info, with the pointers of `wanted`. Raises OSError."""
    info = ctypes.create_string_buffer(wanted, _PROGRAM_INFO_BYTES)
    call(_INFO, "IIQ", descriptor, len(info), ctypes.addressof(info))
    return info

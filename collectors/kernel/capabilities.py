"""The capabilities of this process, which are effective only while the kernel asks for them.

Structures and numbers: Linux, include/uapi/linux/capability.h.
"""

import contextlib
import ctypes
import struct
from collections.abc import Collection, Iterator

_NUMBERS = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread
_Words = ctypes.c_uint32 * 6  # of effective, permitted and inheritable: 32 low bits, then the high

_libc = ctypes.CDLL(None, use_errno=True)


def permitted() -> frozenset[str]:
    """Those of the helper's that this process may use. Raises OSError."""
    return frozenset(name for name, number in _NUMBERS.items() if _sets()[1] >> number & 1)


def keep(names: Collection[str]) -> None:
    """Give up all others for ever, and let these rest until they are `raised`. Raises OSError."""
    # Before Linux 5.8 there is only CAP_SYS_ADMIN, which stands for the others since.
    kept = {*names} if permitted().issuperset(names) else {*names, "CAP_SYS_ADMIN"}
    _set(0, sum(1 << _NUMBERS[name] for name in kept & permitted()))


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Use what is permitted. Raises OSError."""
    effective, allowed = _sets()
    _set(allowed, allowed)
    try:
        yield
    finally:
        _set(effective, allowed)


def _sets() -> tuple[int, int]:
    words = _Words()
    if _libc.capget(_HEADER, words):
        raise OSError(ctypes.get_errno(), "capget(2) failed")
    return words[3] << 32 | words[0], words[4] << 32 | words[1]


def _set(effective: int, allowed: int) -> None:
    words = _Words(effective, allowed, 0, effective >> 32, allowed >> 32, 0)
    if _libc.capset(_HEADER, words):
        raise OSError(ctypes.get_errno(), "capset(2) failed")

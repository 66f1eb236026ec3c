"""A process with an environment and a command line of gigabytes, in a few MB of memory.

    python long_environment.py MEGABYTES UID

Any user may move the bounds of both (prctl(2), PR_SET_MM_MAP) to a mapping that has no pages.
Prints "ready" or the error of the kernel, and waits until its standard input is closed.
"""

import ctypes
import mmap
import os
import sys
from pathlib import Path

PR_SET_MM, PR_SET_MM_MAP = 35, 14  # <linux/prctl.h>


class MemoryMap(ctypes.Structure):
    """struct prctl_mm_map of <linux/prctl.h>."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
            "arg_start", "arg_end", "env_start", "env_end", "auxv",
        )),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )  # fmt: skip


def main() -> None:
    """Move the bounds of environment and command line, and wait."""
    size = int(sys.argv[1]) << 20
    os.setuid(int(sys.argv[2]))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    # proc_pid_stat(5), from the third field on.
    stat_fields = [0, 0, 0, *Path("/proc/self/stat").read_text().rpartition(")")[2].split()]
    memory_map = MemoryMap(
        *(int(stat_fields[index]) for index in (26, 27, 45, 46, 47)),
        libc.sbrk(0),
        int(stat_fields[28]),
        begin, begin + size, begin, begin + size, 0, 0, 0xFFFFFFFF,
    )  # fmt: skip
    status = libc.prctl(
        PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(memory_map), ctypes.sizeof(memory_map), 0
    )
    print("ready" if status == 0 else os.strerror(ctypes.get_errno()), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

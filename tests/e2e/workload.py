"""The program that jobs of end-to-end tests run, with a known CPU and memory usage.

It runs with the system's Python, as users may not run one in a virtual environment below /root.
"""

import shlex

PYTHON = "/usr/bin/python3"
PROGRAM = """
import mmap, sys, time
cpu_seconds, memory_mb, idle_seconds = map(float, sys.argv[1:])
held = mmap.mmap(-1, max(int(memory_mb), 1) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, int(memory_mb) << 20, mmap.PAGESIZE):
    held[page] = 1
while time.process_time() < cpu_seconds:
    sum(range(20000))
time.sleep(idle_seconds)
"""


def argv(cpu: float = 0.0, memory_mb: int = 0, sleep: float = 0.0) -> list[str]:
    """Command line that touches memory, burns user CPU seconds, then sleeps."""
    return [PYTHON, "-S", "-E", "-c", PROGRAM, f"{cpu:g}", str(memory_mb), f"{sleep:g}"]


def command(cpu: float = 0.0, memory_mb: int = 0, sleep: float = 0.0) -> str:
    """The same command line for a shell script."""
    return shlex.join(argv(cpu, memory_mb, sleep))

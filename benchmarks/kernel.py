"""What the helper's programs cost: python -m benchmarks.kernel [PROCESSES].

Prints nanoseconds per ended thread and per packet, as the kernel measures the programs (with about
55 ns of its own for each run), and the CPU time of one look at the IO of many processes, beside
that of reading /proc/<pid>/io of each. Needs root. Uses cgroups of its own, of v2.
"""

import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from collectors.jobs.processes import proc
from collectors.kernel import bpf
from collectors.kernel.network import Network
from collectors.kernel.parts import JobTree
from collectors.kernel.process_io import ProcessIo
from collectors.kernel.types import read_kernel_types

ROUNDS = 7
ENABLE_STATISTICS = 32  # BPF_ENABLE_STATS
_RUN_TIME_OFFSET = 192  # of run_time_ns in struct bpf_prog_info; run_cnt follows

ENDS = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    for (int left = atoi(words[1]); left; left--) {
        pid_t child = vfork();
        if (!child) _exit(0);
        waitpid(child, 0, 0);
    }
}
"""
PACKETS = """
import socket
a, b = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "ab")
b.bind(("127.0.0.1", 0)); a.connect(b.getsockname())
for _ in range(50000): a.send(b"x" * 64); b.recv(64)
"""
WAITING = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if not os.fork(): signal.pause()
print(flush=True); sys.stdin.read(); os.killpg(0, 9)
"""


def main(processes: int) -> None:
    base = Path("/sys/fs/cgroup")
    base = base if (base / "cgroup.controllers").exists() else base / "unified"
    job = base / f"benchmark-{os.getpid()}" / "jobs" / "case_0"
    job.mkdir(parents=True)
    started = time.process_time()
    types = read_kernel_types()
    print(f"reading the kernel's types {1e3 * (time.process_time() - started):8.0f} ms")
    tree = JobTree("", 3)
    statistics_on = bpf.call(ENABLE_STATISTICS, "I", 0)
    process_io, network = ProcessIo(types, tree), Network(types, tree)
    try:
        parent = os.open(job.parent, os.O_RDONLY)
        network.attach(parent)
        os.close(parent)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "ends.c")
            source.write_text(ENDS)
            subprocess.run(["cc", "-O2", "-o", f"{folder}/ends", source], check=True)
            measure("ended thread", [process_io.program], job, f"{folder}/ends", "20000")
        packets = [program for program, _ in network.programs]
        measure("packet", packets, job, sys.executable, "-c", PACKETS)
        os.close(statistics_on)
        compare_looks(process_io, job, processes)
    finally:
        process_io.close()
        network.close()
        for directory in (job, job.parent, job.parent.parent):
            directory.rmdir()


def start(job: Path, *command: str, **options: object) -> subprocess.Popen[str]:
    enter = f"open('{job}/cgroup.procs', 'w').write('0')"
    program = f"import os, sys; {enter}; os.setpgid(0, 0); os.execv(sys.argv[1], sys.argv[1:])"
    return subprocess.Popen([sys.executable, "-c", program, *command], text=True, **options)


def measure(what: str, programs: list[int], job: Path, *command: str) -> None:
    figures = []
    for _ in range(ROUNDS):
        before = [run_time(each) for each in programs]
        start(job, *command).wait()
        pairs = zip(before, map(run_time, programs), strict=True)
        gains = [(after[0] - early[0], after[1] - early[1]) for early, after in pairs]
        figures.append(
            sum(nanoseconds for nanoseconds, _ in gains) / sum(runs for _, runs in gains)
        )
    print(f"per {what:22} {statistics.median(figures):8.0f} ns ({min(figures):.0f} to "
          f"{max(figures):.0f} in {ROUNDS} rounds)")  # fmt: skip


def run_time(program: int) -> tuple[int, int]:
    nanoseconds, runs = struct.unpack_from("QQ", bpf.program_info(program), _RUN_TIME_OFFSET)
    return nanoseconds, runs


def compare_looks(process_io: ProcessIo, job: Path, processes: int) -> None:
    """Both ways in alternation, with the same processes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    waiting = start(job, sys.executable, "-c", WAITING, str(processes), **pipes)
    waiting.stdout.readline()
    pids = [int(each) for each in (job / "cgroup.procs").read_text().split()]
    ways = {"helper": process_io.read,
            "/proc": lambda: [proc.read_io("/proc", pid) for pid in pids]}  # fmt: skip
    figures = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, look in ways.items():
            began = time.process_time()
            look()
            figures[way].append(1e3 * (time.process_time() - began))
    for way, milliseconds in figures.items():
        print(f"{len(pids)} processes by {way:10} {statistics.median(milliseconds):8.1f} ms of CPU "
              f"({min(milliseconds):.1f} to {max(milliseconds):.1f})")  # fmt: skip
    waiting.stdin.close()
    waiting.wait()
    while (job / "cgroup.procs").read_text():
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)

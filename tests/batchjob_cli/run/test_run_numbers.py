"""The figures of a run compared with `/usr/bin/time -v`, which asks the kernel by wait4(2)."""

import re
import shutil
import sys

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("time", path="/usr/bin") is None, reason="Debian's time is not installed"
)

BURN = """
import time
until = time.process_time() + {seconds}
while time.process_time() < until: pass
"""
HOLD = """
held = bytearray(200 << 20)
held[::4096] = bytes(len(held[::4096])).replace(b"\\0", b"x")
"""
WRITE = """
import os
with open("out", "wb") as file:
    for _ in range(20):
        file.write(os.urandom(1 << 20))
    file.flush()
    os.fsync(file.fileno())
"""
THREADS = """
import threading, zlib, os
data = os.urandom(8 << 20)
threads = [threading.Thread(target=lambda: [zlib.crc32(data) for _ in range(20)]) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
CHILDREN = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.3: pass"
for _ in range(3): subprocess.run([sys.executable, "-c", burn])
"""
PROGRAMS = {
    "cpu": BURN.format(seconds=0.5), "memory": HOLD, "io": WRITE, "threads": THREADS,
    "children": CHILDREN,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_figures_match_usr_bin_time(batchjob, cgroup_mode, tmp_path, name):
    time_report = tmp_path / "time.txt"
    time = ("/usr/bin/time", "-v", "-o", str(time_report), sys.executable, "-c", PROGRAMS[name])
    done = batchjob("run", "--cgroup", cgroup_mode, "--quiet", "--", *time, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    record, text = batchjob.record(), time_report.read_text()

    def number(label):
        return float(re.search(rf"{re.escape(label)}: ([\d.]+)", text)[1])

    cpu = number("User time (seconds)") + number("System time (seconds)")
    own = record["user_cpu_seconds"] + record["system_cpu_seconds"]
    assert own == pytest.approx(cpu, abs=0.08)  # `time` itself, and hundredths
    if name == "memory":
        resident = number("Maximum resident set size (kbytes)") * 1024
        assert record["peak_memory_bytes"] == pytest.approx(resident, rel=0.1)
    if name == "io":
        written = number("File system outputs") * 512
        assert written >= 20 << 20
        assert record["written_bytes"] == pytest.approx(written, abs=64 << 10)


def test_peak_memory_excludes_larger_parent_process(batchjob):
    larger = bytearray(400 << 20)
    larger[::4096] = b"x" * len(larger[::4096])
    batchjob("run", "--cgroup", "never", "--quiet", "--", sys.executable, "-c", HOLD)
    assert 200 << 20 < batchjob.record()["peak_memory_bytes"] < 260 << 20

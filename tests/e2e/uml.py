"""A Linux of its own for a test: a Python module run as root under cgroup v2, in User Mode Linux.

    report = uml.run("tests.e2e.guest_slurm", folder)   # folder/report.json, as it was written

Debian's `user-mode-linux` is a kernel that runs as an ordinary process, boots in 1.4 s and needs
neither KVM nor an image: its root file system is this machine's own, through hostfs, read-only, so
it has the same Python and the same packages. There cgroup2 is the only hierarchy, with the
controllers cpu, io, memory and pids; there is no PSI, no cpuset, one CPU, and CPU time comes in
ticks of 10 ms. Only `folder` can be written, as /run/out; /dev/ubda is an empty disk.

The module is run as `python -m MODULE /run/out` and leaves `report.json` there.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
KERNEL = "linux.uml"
PTRACE = Path(__file__).with_name("uml_ptrace.c")
DISK_BYTES = 64 << 20

# A second loopback address: with 127.0.0.1 alone getaddrinfo(AI_ADDRCONFIG) finds nothing.
INIT = """\
#!/bin/sh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8 TMPDIR=/run/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 1777 /run/tmp
mkdir /run/out
mount -t hostfs none /run/out -o {out}
exec >/run/out/log 2>&1
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+cpu +io +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/system.slice
echo '+cpu +io +memory +pids' > /sys/fs/cgroup/system.slice/cgroup.subtree_control
hostname uml
ip link set lo up
ip addr add 127.0.0.2/8 dev lo
cd {repository}
PYTHONDONTWRITEBYTECODE=1 {python} -m {module} /run/out
echo "exit status $?"
sync
echo o > /proc/sysrq-trigger
sleep 10
"""


def run(
    module: str, out: Path, memory: str = "1536M", timeout: float = 300.0,
    disk_bytes: int = DISK_BYTES,
) -> Any:  # fmt: skip
    """Boot, run the module, power off; what it reported. AssertionError with the log without."""
    init = out / "init"
    init.write_text(
        INIT.format(out=out, repository=REPOSITORY, python=sys.executable, module=module)
    )
    init.chmod(0o755)
    disk = out / "disk"
    with disk.open("wb") as file:
        file.truncate(disk_bytes)
    preload = _compiled(PTRACE, out)
    # HOME: the kernel keeps its console socket below ~/.uml. TMPDIR: it maps its memory from there.
    with tempfile.TemporaryDirectory(prefix="uml-") as home:
        argv = [
            KERNEL, f"mem={memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
            f"init={init}", f"ubd0={disk}", "con=null", "con0=fd:0,fd:1", "quiet",
        ]  # fmt: skip
        environ = {"HOME": home, "TMPDIR": "/dev/shm", "LD_PRELOAD": str(preload)}
        console = _console(argv, {**os.environ, **environ}, timeout)
    report = out / "report.json"
    if not report.exists():
        log = out / "log"
        text = log.read_text(errors="replace") if log.exists() else console.decode(errors="replace")
        raise AssertionError(f"{module} left no report: {text[-6000:]}")
    return json.loads(report.read_text())


def _compiled(source: Path, folder: Path) -> Path:
    library = folder / f"{source.stem}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def _console(argv: Sequence[str], environ: Mapping[str, str], timeout: float) -> bytes:
    """What it prints; when time is up, all its processes end, which are many."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environ, start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise


def missing() -> str:
    """Why it cannot be had on this machine, or nothing."""
    for program, package in ((KERNEL, "user-mode-linux"), ("cc", "gcc")):
        if not shutil.which(program):
            return f"not installed: {program} (package {package})"
    return ""

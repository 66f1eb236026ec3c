"""A separate Linux for a test: runs a Python module as root on cgroup v2, in User Mode Linux.

    report = uml.run("tests.e2e.guest_slurm", folder)   # the content of folder/report.json

Debian's `user-mode-linux` is a kernel that runs as an ordinary process, boots in 1.4 s and needs
neither KVM nor an image: its root file system is that of this machine, read-only through hostfs, so
it has the same Python and packages. cgroup2 is the only hierarchy, with the controllers cpu, io,
memory and pids. There is one CPU, no PSI and no cpuset, and CPU time is counted in ticks of 10 ms.
Only `folder` is writable, as /run/out; /dev/ubda is an empty disk.

The module is run as `python -m MODULE /run/out` and leaves `report.json` there. With
`has_systemd`, this machine's systemd is PID 1 and runs it as a service, beside D-Bus; uid 2001 is a
user, alice, who has a systemd of her own while `user@2001.service` runs.
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
PTRACE_SOURCE = Path(__file__).with_name("uml_ptrace.c")
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
"""

WITHOUT_SYSTEMD = """\
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

# A password of `*`, since PAM would look for one of `x` in /etc/shadow.
WITH_SYSTEMD = """\
(cat /etc/passwd; echo 'alice:*:2001:2001::/run/tmp:/bin/sh') > /run/passwd
mount --bind /run/passwd /etc/passwd
mount --bind /run/tmp /tmp
mkdir -p /run/systemd/system
cat > /run/systemd/system/guest.service <<'UNIT'
[Unit]
Requires=dbus.service
After=dbus.service
DefaultDependencies=no
[Service]
Type=oneshot
WorkingDirectory={repository}
Environment=HOME=/run PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Environment=PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8
ExecStart={python} -m {module} /run/out
ExecStopPost=sh -c 'sync; echo o > /proc/sysrq-trigger'
StandardOutput=append:/run/out/log
StandardError=append:/run/out/log
UNIT
exec /lib/systemd/systemd --system --unit=guest.service --log-target=console --show-status=0
"""


def run(
    module: str, output_directory: Path, memory: str = "1536M", timeout: float = 300.0,
    disk_bytes: int = DISK_BYTES, has_systemd: bool = False,
) -> Any:  # fmt: skip
    """Boot, run the module, power off; its report. AssertionError with the log if there is none."""
    init = output_directory / "init"
    script = INIT + (WITH_SYSTEMD if has_systemd else WITHOUT_SYSTEMD)
    init.write_text(
        script.format(
            out=output_directory, repository=REPOSITORY, python=sys.executable, module=module
        )
    )
    init.chmod(0o755)
    disk_image = output_directory / "disk"
    with disk_image.open("wb") as file:
        file.truncate(disk_bytes)
    ptrace_library = _compile_library(PTRACE_SOURCE, output_directory)
    # HOME: the kernel keeps its console socket below ~/.uml. TMPDIR: it maps its memory from there.
    with tempfile.TemporaryDirectory(prefix="uml-") as home_directory:
        argv = [
            KERNEL, f"mem={memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
            f"init={init}", f"ubd0={disk_image}", "con=null", "con0=fd:0,fd:1", "quiet",
        ]  # fmt: skip
        environ = {"HOME": home_directory, "TMPDIR": "/dev/shm", "LD_PRELOAD": str(ptrace_library)}
        console_output = run_kernel(argv, {**os.environ, **environ}, timeout)
    report = output_directory / "report.json"
    if not report.exists():
        log = output_directory / "log"
        log_text = (
            log.read_text(errors="replace")
            if log.exists()
            else console_output.decode(errors="replace")
        )
        raise AssertionError(f"{module} left no report: {log_text[-6000:]}")
    return json.loads(report.read_text())


def _compile_library(source: Path, folder: Path) -> Path:
    library = folder / f"{source.stem}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def run_kernel(argv: Sequence[str], environ: Mapping[str, str], timeout: float) -> bytes:
    """Run the kernel; its console output. At the timeout, kill all its processes."""
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
    """The reason why this machine cannot run it; empty if it can."""
    for program, package in ((KERNEL, "user-mode-linux"), ("cc", "gcc")):
        if not shutil.which(program):
            return f"not installed: {program} (package {package})"
    return ""

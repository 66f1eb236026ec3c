"""Another kernel for a test: runs a Python module as root in a machine that QEMU emulates.

    emulated.run("tests.e2e.guest_devices", folder, kernel)   # folder/report.json and folder/log

The processor is emulated, so that neither KVM nor a certain one is needed, and all is about ten
times as slow. As in User Mode Linux, the root file system is that of this machine, read-only, and
only `folder` is writable, as /run/out. Kernels are Debian's packages, unpacked:

    apt-get download linux-image-6.1.0-54-amd64
    dpkg -x linux-image-6.1.0-54-amd64_*.deb $BATCHJOB_TEST_KERNELS/6.1

With `hybrid`, /sys/fs/cgroup has cpuacct and devices of cgroup v1, and unified, v2.
"""

import gzip
import lzma
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.e2e import uml
from tests.helpers.waiting import scaled

QEMU, SHELL = "qemu-system-x86_64", "/bin/busybox"
KERNELS = Path(os.environ.get("BATCHJOB_TEST_KERNELS", "/var/lib/batchjob-test-kernels"))
MODULES = ("virtio_pci", "9pnet_virtio", "9p")
OPTIONS = "trans=virtio,version=9p2000.L,msize=500000"

# The first program: the modules are in the order in which they must be loaded.
FIRST = f"""\
#!{SHELL} sh
set -e
for module in /modules/*; do {SHELL} insmod $module; done
{SHELL} mount -t 9p -o ro,cache=loose,{OPTIONS} root /root
exec {SHELL} switch_root /root {{init}}
"""
V2 = """\
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+cpu +io +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/system.slice
echo '+cpu +io +memory +pids' > /sys/fs/cgroup/system.slice/cgroup.subtree_control
"""
HYBRID = """\
mount -t tmpfs tmpfs /sys/fs/cgroup
for each in cpuacct devices; do
    mkdir /sys/fs/cgroup/$each
    mount -t cgroup -o $each cgroup /sys/fs/cgroup/$each
done
mkdir /sys/fs/cgroup/unified
mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
"""
RUN = """\
mount --bind /run/tmp /tmp
hostname emulated
ip link set lo up
ip addr add 127.0.0.2/8 dev lo
cd {repository}
export PYTHONDONTWRITEBYTECODE=1 BATCHJOB_TEST_TIME_SCALE={time_scale}
{python} -m {module}
echo "exit status $?"
sync
echo o > /proc/sysrq-trigger
sleep 60
"""


def run(
    module: str, folder: Path, kernel: Path, *, hybrid: bool = False, minutes: float = 15
) -> str:
    """Boot, run the module with its arguments, power off; what it has printed."""
    init = folder / "init"
    script = uml.INIT.replace("hostfs none /run/out -o {out}", f"9p out /run/out -o {OPTIONS}")
    init.write_text(
        script
        + (HYBRID if hybrid else V2)
        + RUN.format(
            repository=uml.REPOSITORY, python=sys.executable, module=module, time_scale=scaled(10)
        )
    )
    init.chmod(0o755)
    first = folder / "first"
    first.write_bytes(gzip.compress(b"".join(_archive(kernel, init)), 1))
    (image,) = (kernel / "boot").glob("vmlinuz-*")
    shares = ("local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
              f"local,path={folder},mount_tag=out,security_model=none")  # fmt: skip
    argv = [
        QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-smp", "2",
        "-m", "1536", "-nographic", "-no-reboot", "-nic", "none", "-kernel", str(image),
        "-initrd", str(first), "-append", "console=ttyS0 quiet panic=-1",
        *(argument for share in shares for argument in ("-virtfs", share)),
    ]  # fmt: skip
    console = uml.run_kernel(argv, os.environ, scaled(60 * minutes))
    log = folder / "log"
    assert log.exists(), f"{kernel.name} did not boot: {console.decode(errors='replace')[-6000:]}"
    return log.read_text(errors="replace")


def _archive(kernel: Path, init: Path) -> Iterator[bytes]:
    """An archive for the kernel's first file system. Format: Linux, buffer-format.rst."""
    for folder in ("bin", "modules", "root", "dev"):
        yield _entry(folder, 0o40755, b"")
    yield _entry("init", 0o100755, FIRST.format(init=init).encode())
    yield _entry(SHELL[1:], 0o100755, Path(SHELL).read_bytes())
    for number, data in enumerate(_modules(kernel, MODULES)):
        yield _entry(f"modules/{number:02}", 0o100644, data)
    yield _entry("TRAILER!!!", 0, b"")


def _entry(name: str, mode: int, data: bytes) -> bytes:
    path = name.encode() + b"\0"
    numbers = (hash(name) & 0xFFFFFF, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % each for each in numbers) + path
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _modules(kernel: Path, names: Iterable[str]) -> Iterator[bytes]:
    """Modules after those that they need; what the kernel has built in has no file."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in kernel.rglob("*.ko*")}
    done: set[str] = set()

    def of(name: str) -> Iterator[bytes]:
        if name in done or name not in files:
            return
        done.add(name)
        data = files[name].read_bytes()
        data = lzma.decompress(data) if files[name].suffix == ".xz" else data
        needed = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in needed[1].decode().split(",") if needed else ():
            yield from of(other.replace("-", "_"))
        yield data

    for name in names:
        yield from of(name)


def kernels() -> list[Path]:
    """The unpacked packages."""
    return sorted(KERNELS.glob("*/")) if KERNELS.is_dir() else []


def missing() -> str:
    """The reason why this machine cannot run it; empty if it can."""
    for program, package in ((QEMU, "qemu-system-x86"), (SHELL, "busybox-static")):
        if not shutil.which(program):
            return f"not installed: {program} (package {package})"
    return "" if kernels() else f"no kernel below {KERNELS}"

"""A Debian booted by its own systemd: units start as on a site, with their users and sandboxes.

    with booted.machine(root) as machine:
        machine.run("systemctl", "start", "batchjob_stats_db")

systemd is PID 1 of new namespaces (mount, pid, network, uts, ipc, cgroup) in a root made by
mmdebstrap with `systemd` and `dbus`. Its cgroups are a directory of its own in each hierarchy of
this machine, which is removed at the end. /proc/sys is read-only: most of it is this machine's too.
Needs root.
"""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.helpers.processes import call, daemon, succeeds
from tests.helpers.waiting import until

TOOLS = ("mmdebstrap", "unshare", "nsenter", "pivot_root")
CGROUPS = Path("/sys/fs/cgroup")

# $1: the root. $2: name of the cgroup. What systemd expects of a container:
# https://systemd.io/CONTAINER_INTERFACE
BOOT = r"""
set -e
for hierarchy in /sys/fs/cgroup/*/; do
    mountpoint -q "$hierarchy" || continue
    own=$hierarchy$2
    mkdir "$own"
    for file in cpuset.cpus cpuset.mems; do
        [ ! -e "$own/$file" ] || cat "$hierarchy$file" >"$own/$file"
    done
    echo $$ >"$own/cgroup.procs"
done
exec unshare --mount --pid --uts --ipc --net --cgroup --propagation=private --fork --kill-child \
    --mount-proc="$1/proc" sh -ec '
mount --rbind "$1" "$1"
cd "$1"
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
grep "^cgroup2\? /sys/fs/cgroup/" /proc/mounts | while read -r _ place kind _; do
    mkdir ".$place"
    case $place:$kind in
        *:cgroup2) mount -t cgroup2 cgroup2 ".$place" ;;
        */systemd:*) mount -t cgroup -o none,name=systemd cgroup ".$place" ;;
        *) mount -t cgroup -o "${place##*/}" cgroup ".$place" ;;
    esac
done
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
hostname booted
ip link set lo up
pivot_root . mnt
umount -l /mnt
exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system \
    --log-target=console --show-status=0
' boot "$1"
"""


class Machine(NamedTuple):
    """A running machine."""

    root: Path
    pid: int  # of its systemd

    def command_inside(self, *command: str) -> list[str]:
        """The command line that runs `command` inside, as root."""
        return ["nsenter", f"--target={self.pid}", "--all", "--root", "--wdns=/", *command]

    def run(self, *command: str) -> str:
        """The output of a command; AssertionError if it fails."""
        return call(*self.command_inside(*command), env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    def succeeds(self, *command: str) -> bool:
        """Whether it ends with 0."""
        return succeeds(self.command_inside(*command))

    def unit_property(self, unit: str, key: str) -> str:
        """A property of a unit, such as ActiveState."""
        return self.run("systemctl", "show", "--value", f"--property={key}", unit).strip()

    def log(self, unit: str) -> str:
        """The log of a unit, without times."""
        return self.run("journalctl", "--output=cat", "--unit", unit)


def missing() -> str:
    """Why nothing can be booted here, or nothing."""
    if os.geteuid() != 0:
        return "only root boots a machine"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if (CGROUPS / "systemd").is_dir() else "no hierarchy of cgroup v1 for systemd"


@contextlib.contextmanager
def machine(root: Path) -> Iterator[Machine]:
    """Boot what lies in `root`; at the end everything in it is killed."""
    name = f"booted-{os.getpid()}"
    log = Path(tempfile.mkstemp(prefix="booted-", suffix=".log")[1])
    with contextlib.ExitStack() as stack:
        stack.callback(log.unlink)
        stack.callback(_remove_cgroups, name)
        process = stack.enter_context(daemon(["bash", "-c", BOOT, "boot", str(root), name], log))
        pid = until(lambda: _child(process.pid), "systemd started")
        stack.callback(lambda: os.kill(pid, signal.SIGKILL))  # and the kernel all others
        made = Machine(root, pid)
        until(lambda: made.succeeds("systemctl", "is-active", "basic.target"), f"booted: {log}", 60)
        yield made


def _child(parent: int) -> int:
    """systemd, once it has taken over from the shell."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    if not text:
        return 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a command of the shell ended
        if Path(f"/proc/{text[0]}/comm").read_text().strip() == "systemd":
            return int(text[0])
    return 0


def _remove_cgroups(name: str) -> None:
    for top in CGROUPS.glob(f"*/{name}"):
        until(lambda top=top: _removed(top), f"removal of {top}")


def _removed(top: Path) -> bool:
    for folder in sorted([*top.rglob("*/"), top], reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not top.exists()

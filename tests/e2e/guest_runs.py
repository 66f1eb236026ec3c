"""Run inside User Mode Linux by `uml.run`: `batchjob run` on cgroup v2, for root and for others.

Writes what test_runs_cgroup2_uml.py looks at.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import batchjob
import batchjob_cli
import collectors
from collectors.host import Host
from collectors.kernel.client import HelperClient
from tests.e2e import exporter
from tests.helpers.waiting import scaled, until

CGROUPS = Path("/sys/fs/cgroup")
DISK = "/dev/ubda"
ALICE = 2001
PYTHON = "/usr/bin/python3"  # the tests' own may lie where only root may look
LIBRARY = Path("/run/lib")
BATCHJOB = (PYTHON, "-m", "batchjob_cli")
BURN = f"{PYTHON} -c 'import time\nwhile time.process_time() < {{}}: pass'"


def command(data: Path, *arguments: str, uid: int = 0) -> list[str]:
    """`batchjob ARGUMENTS` as a user."""
    drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
    environment = [f"BATCHJOB_DATA={data}", f"HOME={data}", f"PYTHONPATH={LIBRARY}"]
    return [*drop, "env", *environment, *BATCHJOB, *arguments]


def run_once(data: Path, *arguments: str, uid: int = 0, **options: Any) -> dict[str, Any]:
    """Run to the end: what it said, how long it took, its record, the cgroups left."""
    begun = time.monotonic()
    done = subprocess.run(
        command(data, "run", *arguments, uid=uid), capture_output=True, text=True, **options
    )
    seconds = time.monotonic() - begun
    return {
        "status": done.returncode, "stdout": done.stdout, "stderr": done.stderr,
        "seconds": seconds, "record": newest_record(data), "left": slices(),
    }  # fmt: skip


def copy_library() -> None:
    """Put the packages where every user may read them."""
    for package in (batchjob, batchjob_cli, collectors, yaml):
        source = Path(package.__path__[0])
        shutil.copytree(source, LIBRARY / source.name, ignore=shutil.ignore_patterns("*.so"))


def newest_record(data: Path) -> dict[str, Any]:
    """The record of the last run."""
    paths = sorted((data / "runs").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(paths[-1].read_text())
    return found


def slices() -> list[str]:
    """All cgroups of runs."""
    return [str(path) for path in CGROUPS.rglob("batchjob.slice")]


def delegated() -> Path:
    """The cgroup that systemd hands to alice (`Delegate=yes`), with her processes in a leaf."""
    parent = CGROUPS
    for name in ("user.slice", f"user-{ALICE}.slice"):
        parent /= name
        parent.mkdir(exist_ok=True)
        (parent / "cgroup.subtree_control").write_text("+cpu +io +memory +pids")
    hers = parent / f"user@{ALICE}.service"
    (hers / "shell").mkdir(parents=True)
    for path in (hers, hers / "shell"):
        for each in (path, path / "cgroup.procs", path / "cgroup.subtree_control"):
            os.chown(each, ALICE, ALICE)
    (hers / "cgroup.subtree_control").write_text("+cpu +io +memory +pids")
    return hers / "shell"


def helper_problems() -> Mapping[str, str]:
    """What the helper cannot give on this kernel, and why."""
    socket = Path("/run/helper")
    program = [sys.executable, "-m", "batchjob_exporter.helper", f"--listen={socket}"]
    helper = subprocess.Popen([*program, "--exporter-directory=/run"])
    try:
        client = HelperClient(Host(helper=str(socket)))
        return until(client.problems, "an answer of the helper", 60)
    finally:
        helper.kill()
        helper.wait()


def main() -> None:
    """Run all, and report."""
    out = Path(sys.argv[1])
    copy_library()
    subprocess.run(["mkfs.ext4", "-q", "-F", DISK], check=True)
    disk = Path("/run/disk")
    disk.mkdir()
    subprocess.run(["mount", DISK, disk], check=True)
    data = {uid: Path(f"/run/data-{uid}") for uid in (0, ALICE)}
    for uid, path in data.items():
        path.mkdir()
        os.chown(path, uid, uid)
    hold = f"{PYTHON} -c 'x = bytearray(200 << 20)'"
    write = "dd if=/dev/zero of=file bs=1M count=8 oflag=direct"
    cat = "cat /proc/self/cgroup"
    report: dict[str, Any] = {
        "plain": run_once(data[0], "--", "sh", "-c", f"{cat}; {BURN.format(0.5)}; exit 3"),
        "memory": run_once(data[0], "--memory", "80M", "--", "sh", "-c", f"{hold}"),
        "cpus": run_once(data[0], "--cpus", "0.3", "--", "sh", "-c", BURN.format(0.6)),
        "io": run_once(data[0], "--io", "4M", "--", "sh", "-c", write, cwd=disk),
        "left_behind": run_once(data[0], "--", "sh", "-c", "setsid sleep 600 & exit 0"),
        "alice_without": run_once(data[ALICE], "--", "sh", "-c", cat, uid=ALICE),
        "alice_limited": run_once(data[ALICE], "--memory", "1G", "--", "true", uid=ALICE),
        "alice_refused": run_once(
            data[ALICE], "--strict", "--memory", "1G", "--", "true", uid=ALICE
        ),
    }
    shell = delegated()

    def join() -> None:
        (shell / "cgroup.procs").write_text("0")

    report["alice"] = run_once(
        data[ALICE], "--memory", "80M", "--", "sh", "-c", f"{cat}; {hold}",
        uid=ALICE, preexec_fn=join,
    )  # fmt: skip
    with exporter.running("--collector.disable-defaults", "--collector.jobs") as target:
        busy = subprocess.Popen(
            command(data[ALICE], "run", "--", "sleep", "600", uid=ALICE), preexec_fn=join
        )
        until(lambda: target.scrape(60).series("batchjob_job_info", manager="local"), "seen", 60)
        scrape = target.scrape(60)
        record = newest_record(data[ALICE])
        stopped = subprocess.run(
            command(data[ALICE], "stop", record["jobid"], uid=ALICE), capture_output=True, text=True
        )
        assert stopped.returncode == 0, f"{record}: {stopped}"
        busy.wait(scaled(30))
        report["stopped"] = [stopped.returncode, stopped.stdout, stopped.stderr, slices()]
        report["seen"] = {"text": scrape.text, "jobid": record["jobid"]}
    report["helper"] = helper_problems()
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()

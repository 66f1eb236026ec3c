"""Run inside User Mode Linux by `uml.run`: a real Slurm on cgroup v2, jobs, and the exporter.

Writes what test_slurm_cgroup2_uml.py looks at: ids and states of the jobs, expositions, and what
the kernel's own files said just before and after one of them.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.e2e import exporter, slurm
from tests.e2e.workload import command
from tests.helpers.waiting import scaled, until

DISK = "/dev/ubda"
FILES = ("memory.current", "memory.peak", "memory.max", "cpu.stat", "memory.events", "io.stat")
JOBS = {
    "batch": ("alice", command(cpu=1.5, memory_mb=60, sleep=600), ("--mem=150M", "--nodelist={0}")),
    "io": (
        "bob",
        f"dd if=/dev/zero of={DISK} bs=1M count=20 oflag=direct\n"
        f"dd if={DISK} of=/dev/null bs=1M count=10 iflag=direct\n"
        f"touch io-is-done\n{command(sleep=600)}",
        ("--mem=60M", "--nodelist={0}"),
    ),
    "steps": ("carol", f"srun {command(cpu=0.5)}", ("--nodes=2", "--ntasks=2", "--mem=60M")),
    "oom": ("dave", f"srun {command(memory_mb=150, sleep=2)}", ("--mem=80M",)),
    "cancelled": ("bob", command(cpu=0.5, sleep=600), ("--mem=60M",)),
    "short": ("carol", command(cpu=0.1), ("--array=1-5", "--mem=40M")),
}


def run(cluster: slurm.Cluster, target: exporter.Target) -> dict[str, Any]:
    """Submit all jobs, look at the node while they run and after they have ended."""
    [scope] = cluster.cgroups(cluster.nodes[0])
    # Slurm passes on only cpu and memory; an administrator may add io at the job level by hand.
    (scope / "cgroup.subtree_control").write_text("+io")
    Path(DISK).chmod(0o666)
    submitted = {
        kind: cluster.submit(user, script, *(each.format(*cluster.nodes) for each in options))
        for kind, (user, script, options) in JOBS.items()
    }
    jobs = {kind: scope / f"job_{submitted[kind]}" for kind in ("batch", "io")}
    until(lambda: all(job.exists() for job in jobs.values()), "batch and io job running", 60)
    cluster.wait(*(submitted[kind] for kind in ("steps", "oom", "short")), timeout=120)
    until((cluster.home("bob") / "io-is-done").exists, "20 MiB written and 10 MiB read", 60)
    time.sleep(2)  # for a look at the processes' owners
    before = {kind: kernel_files(job) for kind, job in jobs.items()}
    during = target.scrape(timeout=scaled(60))
    after = {kind: kernel_files(job) for kind, job in jobs.items()}
    cluster.command("scancel", *(submitted[kind] for kind in ("batch", "io", "cancelled")))
    cluster.wait(*submitted.values(), timeout=120)
    until(lambda: not any(job.exists() for job in jobs.values()), "job directories removed", 30)
    ended = target.scrape(timeout=scaled(60))
    return {
        "jobs": {kind: cluster.raw_ids(job) for kind, job in submitted.items()},
        "states": cluster.states(),
        "before": before,
        "after": after,
        "during": [during.time, during.text],
        "ended": [ended.time, ended.text],
    }


def kernel_files(job: Path) -> dict[str, str]:
    """The job's own files, as the kernel shows them now."""
    return {name: (job / name).read_text() for name in FILES if (job / name).exists()}


def main() -> None:
    """Start the cluster and the exporter, and report."""
    out = Path(sys.argv[1])
    with (
        slurm.cluster(cgroup=2, nodes=2, cpus=4, memory_mb=500, accounting=False) as cluster,
        exporter.running(
            "--collector.disable-defaults", "--collector.jobs", inside=cluster.inside()
        ) as target,
    ):
        report = run(cluster, target)
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()

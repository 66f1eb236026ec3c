"""Run inside User Mode Linux by `accuracy`: hard jobs of a real Slurm on cgroup v2.

One after the other, since only what a whole node used is counted beyond a job's end. Writes each
job with what the kernel counted, and what the exporter showed of it.
"""

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import hard_jobs, kernel_truth, taskstats
from benchmarks.hard_jobs import USERS, Job
from benchmarks.job_scrapes import SCRAPE_SECONDS, Scrapes, scraped
from tests.e2e import slurm, slurm_files
from tests.helpers.waiting import until

DISK, MOUNTED = "/dev/ubda", Path("/run/disk")
OVER_A_RESTART = "over a restart"
EACH, SLOW = 2, frozenset(("1,000 short children",))  # jobs of each kind; only one of slow kinds
TIMEOUT = 300.0


def run(cluster: slurm.Cluster) -> list[dict[str, Any]]:
    """Run all jobs."""
    users = iter(USERS)
    kinds = [
        kind
        for kind in hard_jobs.KINDS
        if kind != OVER_A_RESTART
        for _ in range(1 if kind in SLOW else EACH)
    ]
    scrapes, used = Scrapes(), {}
    with taskstats.recording() as records, kernel_truth.looking(cgroup=2) as looks:

        def wait(job: Job, before: float) -> None:
            cluster.wait(job.jobid, timeout=TIMEOUT)
            until(partial(_gone, cluster, job), f"removal of {job}", 60)
            used[job] = kernel_truth.cpu_seconds_of_jobs(cluster) - before
            print(job.kind, used[job], flush=True)

        with scraped(scrapes):
            for kind in kinds:
                before = kernel_truth.cpu_seconds_of_jobs(cluster)
                job = hard_jobs.submitted(cluster, kind, next(users))
                hard_jobs.disturb(cluster, [job])
                wait(job, before)
            before = kernel_truth.cpu_seconds_of_jobs(cluster)
            last = hard_jobs.submitted(cluster, OVER_A_RESTART, next(users))
            until(partial(hard_jobs.started, cluster, last), f"start of {last}", 60)
        with scraped(scrapes), hard_jobs.restarted(cluster, cluster.nodes[0]):
            wait(last, before)
            until(partial(_has_ended, scrapes, last), "a scrape after the end", 10 * SCRAPE_SECONDS)
    by_user = {job.uid: seconds for job, seconds in used.items()}
    return [
        {
            "job": job._asdict(),
            "truth": kernel_truth.truth_of(job, records, looks, by_user)._asdict(),
            "shown": scrapes.shown(job.jobid)._asdict(),
        }
        for job in used
    ]


def _gone(cluster: slurm.Cluster, job: Job) -> bool:
    scopes = (scope for node in cluster.nodes for scope in cluster.cgroups(node))
    return not any((scope / f"job_{job.jobid}").exists() for scope in scopes)


def _has_ended(scrapes: Scrapes, job: Job) -> bool:
    return scrapes.shown(job.jobid).elapsed_seconds is not None


def main() -> None:
    """Start the cluster, and report."""
    subprocess.run(["mkfs.ext4", "-q", "-F", DISK], check=True)
    MOUNTED.mkdir()
    subprocess.run(["mount", DISK, MOUNTED], check=True)
    # Jobs must write past the page cache, which is impossible on tmpfs.
    tempfile.tempdir = str(MOUNTED)
    slurm_files.USERS.update(USERS)
    slurm_files.ACCOUNTS.update(all=tuple(USERS))
    with slurm.cluster(cgroup=2, nodes=2, cpus=4, memory_mb=600, accounting=False) as cluster:
        report = run(cluster)
    (Path(sys.argv[1]) / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()

"""How near the exporter's figures are to the kernel's own, on a real Slurm with unlike jobs.

    python -m benchmarks.accuracy
    python -m benchmarks.accuracy --cgroup=2

Runs some fifty jobs on cgroup v1, among them such as end badly, while slurmd and the exporter are
restarted, and compares what a scrape every 5 s kept of them with the kernel's counts and with
sacct. With --cgroup=2 some thirty of them run one after the other on cgroup v2, in User Mode Linux.
Prints a row per figure, and the jobs that are off most. Needs root, Debian's Slurm with its
database, and some 5 minutes; for v2 Debian's user-mode-linux, and 15 minutes.
"""

import argparse
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import hard_jobs, kernel_truth, taskstats
from benchmarks.hard_jobs import INTERRUPTED, USERS, Job
from benchmarks.job_scrapes import SCRAPE_SECONDS, Scrapes, Shown, scraped
from benchmarks.kernel_truth import Truth
from tests.e2e import slurm, slurm_files, uml

MIB = 1 << 20
GUEST_MEMORY, GUEST_DISK_BYTES, GUEST_SECONDS = "2G", 512 * MIB, 1800.0


class Error(NamedTuple):
    """By how much a figure of a job is off."""

    job: Job
    truth: float
    told: float

    @property
    def ratio(self) -> float:
        """1 is all of it."""
        return abs(self.told - self.truth) / self.truth

    @property
    def difference(self) -> float:
        """In the figure's unit."""
        return abs(self.told - self.truth)


class Result(NamedTuple):
    """Of each job the truth, and what the exporter and sacct show of it."""

    truths: Mapping[Job, Truth]
    shown: Mapping[Job, Shown]
    accounted: Mapping[Job, Shown]


def run_in_guest() -> Result:
    """Run jobs on cgroup v2, where there is no accounting."""
    with tempfile.TemporaryDirectory() as folder:
        told = uml.run(
            "benchmarks.accuracy_guest", Path(folder), GUEST_MEMORY, GUEST_SECONDS,
            GUEST_DISK_BYTES,
        )  # fmt: skip
    jobs = [(Job(**each["job"]), each) for each in told]
    return Result(
        {job: Truth(**each["truth"]) for job, each in jobs},
        {job: Shown(**each["shown"]) for job, each in jobs},
        {},
    )


def run() -> Result:
    """Run all jobs on cgroup v1."""
    slurm_files.USERS.update(USERS)
    slurm_files.ACCOUNTS.update(all=tuple(USERS))
    scrapes = Scrapes()
    with (
        slurm.cluster(cgroup=1, nodes=4, cpus=4) as cluster,
        taskstats.recording() as records,
        kernel_truth.looking() as looks,
    ):
        kernel_truth.hold(cluster)
        with scraped(scrapes):
            jobs = hard_jobs.submit(cluster)
            hard_jobs.disturb(cluster, jobs)
        with scraped(scrapes), hard_jobs.restarted(cluster, cluster.nodes[0]):
            cluster.wait(*(job.jobid for job in jobs), timeout=900)
            time.sleep(2 * SCRAPE_SECONDS)
            accounted = {job: _accounted(cluster, job.jobid) for job in jobs}
        used = kernel_truth.cpu_seconds(cluster)
    truths = {job: kernel_truth.truth_of(job, records, looks, used) for job in jobs}
    return Result(truths, {job: scrapes.shown(job.jobid) for job in jobs}, accounted)


def _accounted(cluster: slurm.Cluster, jobid: str) -> Shown:
    """All runs of a job, as sacct has them."""
    fields = "JobID,TotalCPU,MaxRSS,ElapsedRaw,TRESUsageInTot,TRESUsageOutTot"
    text = cluster.command(
        "sacct", "--parsable2", "--noheader", "--duplicates",
        f"--jobs={jobid}", f"--format={fields}",
    )  # fmt: skip
    rows = [line.split("|") for line in text.splitlines()]
    steps = [row for row in rows if "." in row[0]]
    sizes = [_bytes(row[2]) for row in steps if row[2]]
    return Shown(
        sum(_seconds(row[1]) for row in steps),
        max(sizes, default=None),
        sum(float(row[3]) for row in rows if "." not in row[0]),
        sum(_disk(row[4]) for row in steps),
        sum(_disk(row[5]) for row in steps),
    )


def _seconds(text: str) -> float:
    """As sacct writes them: [DD-[HH:]]MM:SS[.mmm]."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return total + 86400 * int(days or 0)


def _bytes(text: str) -> float:
    """As sacct writes them: 3932K."""
    found = re.fullmatch(r"([\d.]+)([KMGT]?)", text)
    assert found, text
    return float(found[1]) * 1024 ** " KMGT".index(found[2] or " ")


def _disk(text: str) -> float:
    """What processes read or wrote: fs/disk=1024,..."""
    found = re.search(r"fs/disk=([\d.]+[KMGT]?)", text)
    return _bytes(found[1]) if found else 0.0


def row(name: str, errors: Sequence[Error], in_seconds: bool = False) -> str:
    """A line of the table."""
    if not errors:
        return f"| {name} | 0 | | | | |"
    ordered = sorted(errors, key=lambda error: error.difference if in_seconds else error.ratio)
    chosen = (
        ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        ordered[-1],
    )  # fmt: skip
    cells = " | ".join(
        f"{error.difference:.2f} s" if in_seconds else f"{100 * error.ratio:.2f} %"
        for error in chosen
    )
    return f"| {name} | {len(errors)} | {cells} | {ordered[-1].job.kind} |"


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cgroup", type=int, choices=(1, 2), default=1)
    truths, shown, accounted = run() if parser.parse_args().cgroup == 1 else run_in_guest()

    def errors(figure: str, of: Mapping[Job, Shown], least: float) -> list[Error]:
        kinds = INTERRUPTED if figure == "elapsed_seconds" else ()
        found = [(job, getattr(truths[job], figure), getattr(of[job], figure)) for job in of]
        return [
            Error(job, true, told)
            for job, true, told in found
            if told is not None and true > least and job.kind not in kinds
        ]

    print(f"{len(truths)} jobs")
    print("| figure | jobs | median | p90 | maximum | of which kind |")
    print("|---|---|---|---|---|---|")
    for figure in Shown._fields:
        least = MIB if figure.startswith("characters") else 0.0
        for who, of in (("exporter", shown), ("sacct", accounted)):
            if not of:
                continue
            found = errors(figure, of, least)
            print(row(f"{figure}, {who}", found, figure == "elapsed_seconds"))
    records = [Error(job, it.cpu_seconds, it.recorded_cpu_seconds) for job, it in truths.items()]
    print(row("cpu_seconds, exit records", records))
    for figure in Shown._fields:
        off = errors(figure, shown, 0.0)
        for error in sorted(off, key=lambda error: error.ratio, reverse=True)[:6]:
            print(f"{figure}: {error.job.kind}: {error.told:.3f} of {error.truth:.3f}")
    unseen = [job.kind for job, each in shown.items() if not each.cpu_seconds]
    print(f"not seen: {', '.join(unseen) or 'none'}")


if __name__ == "__main__":
    main()

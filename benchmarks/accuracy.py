"""How near the exporter's figures are to the kernel's own, on a real Slurm with unlike jobs.

    python -m benchmarks.accuracy

Runs some fifty jobs on cgroup v1, among them such as end badly, while slurmd and the exporter are
restarted, and compares what a scrape every 5 s kept of them with the kernel's counts and with
sacct. Prints a row per figure, and the jobs that are off most. Needs root, Debian's Slurm with its
database, and some 4 minutes.
"""

import contextlib
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks import hard_jobs, kernel_truth, taskstats
from benchmarks.hard_jobs import INTERRUPTED, USERS, Job
from benchmarks.kernel_truth import Truth
from tests.e2e import exporter, slurm, slurm_files

SCRAPE_SECONDS = 5.0
LINGER = "120s"
MIB = 1 << 20


class Shown(NamedTuple):
    """A job as an exporter or as sacct shows it; None where it does not."""

    cpu_seconds: float
    peak_memory_bytes: float | None
    elapsed_seconds: float | None
    characters_read: float
    characters_written: float


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


def run() -> tuple[dict[Job, Truth], dict[Job, Shown], dict[Job, Shown]]:
    """Run all jobs: the truth, and what the exporter and sacct show of them."""
    slurm_files.USERS.update(USERS)
    slurm_files.ACCOUNTS.update(all=tuple(USERS))
    scrapes = Scrapes()
    with (
        slurm.cluster(cgroup=1, nodes=4, cpus=4) as cluster,
        taskstats.recording() as records,
        kernel_truth.looking() as looks,
    ):
        kernel_truth.hold(cluster)
        with _scraped(scrapes):
            jobs = hard_jobs.submit(cluster)
            hard_jobs.disturb(cluster, jobs)
        with _scraped(scrapes), hard_jobs.restarted(cluster, cluster.nodes[0]):
            cluster.wait(*(job.jobid for job in jobs), timeout=900)
            time.sleep(2 * SCRAPE_SECONDS)
            accounted = {job: _accounted(cluster, job.jobid) for job in jobs}
        used = kernel_truth.cpu_seconds(cluster)
    truths = {job: kernel_truth.truth_of(job, records, looks, used) for job in jobs}
    return truths, {job: scrapes.shown(job.jobid) for job in jobs}, accounted


class Scrapes:
    """What scrapes had of each job; a counter that falls goes on from where it was."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], float] = {}
        self._sums: dict[tuple[str, str], float] = defaultdict(float)
        self._largest: dict[tuple[str, str], float] = {}

    def take(self, scrape: exporter.Scrape) -> None:
        """Add a scrape."""
        for name, series in scrape.samples.items():
            if name.startswith("batchjob_job_"):
                for labels, value in series:
                    self._add(name, labels, value)

    def _add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        of_job = (labels["jobid"], name.removeprefix("batchjob_job_"))
        self._largest[of_job] = max(value, self._largest.get(of_job, value))
        if name.endswith("_total"):
            key = (*of_job, str(sorted(labels.items())))
            before = self._last.get(key, 0.0)
            self._sums[of_job] += value - before if value >= before else value
            self._last[key] = value

    def shown(self, jobid: str) -> Shown:
        """A job, with all its runs."""
        begun = self._largest.get((jobid, "start_time_seconds"))
        ended = self._largest.get((jobid, "end_time_seconds"))
        return Shown(
            self._sums[jobid, "cpu_seconds_total"],
            self._largest.get((jobid, "memory_peak_bytes")),
            ended - begun if begun and ended else None,
            self._sums[jobid, "process_io_read_characters_total"],
            self._sums[jobid, "process_io_written_characters_total"],
        )


@contextlib.contextmanager
def _scraped(scrapes: Scrapes) -> Iterator[None]:
    """Run an exporter as its unit does, with the right to see processes' files, and scrape it."""
    rights = {"AmbientCapabilities": "CAP_DAC_READ_SEARCH CAP_SYS_PTRACE"}
    groups = (f"--collector.jobs.metrics={group}" for group in ("cpu", "memory", "process-io"))
    flags = (
        "--collector.disable-defaults",
        "--collector.jobs",
        f"--collector.jobs.linger={LINGER}",
    )
    with exporter.as_the_unit(*flags, *groups, changed=rights) as target:
        stopped = threading.Event()

        def scrape() -> None:
            while not stopped.is_set():
                scrapes.take(target.scrape(timeout=60))
                stopped.wait(SCRAPE_SECONDS)

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            scrapes.take(target.scrape(timeout=60))


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
    truths, shown, accounted = run()

    def errors(figure: str, of: Mapping[Job, Shown], least: float) -> list[Error]:
        kinds = INTERRUPTED if figure == "elapsed_seconds" else ()
        found = [(job, getattr(truths[job], figure), getattr(of[job], figure)) for job in truths]
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

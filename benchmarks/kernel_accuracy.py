"""What the exporter shows of short processes, with the helper and without it.

    python -m benchmarks.kernel_accuracy

Needs root. Each job runs in a cgroup of its own on v1 and v2; the exporter's collector of jobs is
scraped every five seconds, as by Prometheus, and once after the job. The truth is what the job's
processes print.
"""

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from batchjob_exporter.exposition import render
from collectors.host import Host
from collectors.jobs.collector import JobsCollector, JobsOptions
from collectors.jobs.discovery.site_layouts import site_layouts
from tests.e2e.kernel_jobs import TREES, job_cgroups, run_in, v2_root
from tests.e2e.test_kernel_helper import FORKS, later_jobs
from tests.e2e.test_kernel_helper import READ as READ_BYTES_EACH
from tests.helpers import processes
from tests.helpers.waiting import until

SCRAPE_SECONDS = 5.0
DIRECT = """
import mmap
file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
data = mmap.mmap(-1, 1 << 20)
for _ in range(100): os.write(file, data)
print(100 << 20)
"""
READ, WRITTEN = "process_io_read_characters", "process_io_written_bytes"


def main() -> None:
    print("| job | cgroups | true | with the helper | without |\n| --- | --- | --- | --- | --- |")
    for version in ("v1", "v2"):
        for what, metric in (
            ("trees of processes of 1 ms, bytes read", READ),
            ("100 MiB by O_DIRECT within a second, bytes to storage", WRITTEN),
        ):
            figures = [measure(version, metric, with_helper) for with_helper in (True, False)]
            shown = " | ".join("none" if each is None else f"{each:,.0f}" for _, each in figures)
            true = " and ".join(dict.fromkeys(f"{each:,}" for each, _ in figures))
            print(f"| {what} | {version} | {true} | {shown} |", flush=True)


def measure(version: str, metric: str, with_helper: bool) -> tuple[int, float | None]:
    """What a job did, and what the exporter shows of it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, contextlib.ExitStack() as opened:
        folder = Path(name)
        if with_helper:
            opened.enter_context(helper(folder))
        (first,) = opened.enter_context(job_cgroups(version))
        collector = opened.enter_context(exporter(folder, first))
        waiting = run_in(first, "sys.stdin.read()", stdin=subprocess.PIPE)
        until(lambda: "case_0" in render(collector.collect()).decode(), "the first job", 60)
        time.sleep(SCRAPE_SECONDS)
        (job,) = opened.enter_context(later_jobs(first))
        true = do(metric, job, folder, collector)
        deadline = time.monotonic() + 3 * SCRAPE_SECONDS
        while time.monotonic() < deadline:
            figure = shown(collector, metric)
            time.sleep(SCRAPE_SECONDS)
        waiting.communicate()
        return true, figure


def do(metric: str, job: Path, folder: Path, collector: JobsCollector) -> int:
    """Run the job, with a scrape every five seconds; what its processes did."""
    program, argument = (FORKS, 1) if metric == READ else (DIRECT, folder / "file")
    running = run_in(job, program, argument)
    while running.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(SCRAPE_SECONDS)
        collector.collect()
    lines = running.communicate()[0].split("\n")
    numbers = [int(line) for line in lines if line.isdigit()]
    if metric != READ:
        return sum(numbers)
    own = [int(line.split()[1]) for line in lines if line.startswith("own")]
    return sum(numbers) * READ_BYTES_EACH + sum(own)


@contextlib.contextmanager
def helper(folder: Path) -> Iterator[None]:
    argv = [sys.executable, "-m", "batchjob_exporter.helper", "--listen", str(folder / "socket"),
            "--exporter-directory", str(folder)]  # fmt: skip
    process = subprocess.Popen(argv)
    try:
        until((folder / "socket").exists, "the helper listens")
        yield
    finally:
        processes.end(process)


@contextlib.contextmanager
def exporter(folder: Path, job: Path) -> Iterator[JobsCollector]:
    base = TREES["v1"] if job.is_relative_to(TREES["v1"]) else v2_root()
    root = "/" + job.parent.parent.relative_to(base).as_posix()
    pattern = f"{root}/user_{{uid}}/{{jobid}}"
    layouts = site_layouts([{"manager": "mybatch", "pattern": pattern}])
    host = Host(helper=str(folder / "socket"), state=str(folder))
    collector = JobsCollector(host, JobsOptions(layouts=layouts))
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()


def shown(collector: JobsCollector, metric: str) -> float | None:
    text = render(collector.collect()).decode()
    pattern = rf'^batchjob_job_{metric}_total{{[^}}]*jobid="later_0"[^}}]*}} (\S+)$'
    found = re.search(pattern, text, re.MULTILINE)
    return None if found is None else float(found[1])


if __name__ == "__main__":
    main()

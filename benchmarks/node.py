"""What the exporter means to its node, apart from single scrapes.

    python -m benchmarks.node churn        memory over 10,000 scrapes while jobs come and go
    python -m benchmarks.node crowd        one job with 10,000 processes
    python -m benchmarks.node strangers    1000 cgroups that are no jobs
    python -m benchmarks.node idle         wake-ups and CPU per minute without a scrape
    python -m benchmarks.node short        what is kept of short jobs while all CPUs are busy

Each prints what it measured, a line per number. Needs root; `crowd` needs cc.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks import measure, trees
from benchmarks.scrape import JOBS_ALONE, compile_c, cost, scraper
from tests.e2e import exporter, short_jobs
from tests.helpers.waiting import until

TREE = "v1"


def running(*flags: str) -> AbstractContextManager[exporter.Target]:
    """Our exporter with the jobs collector alone."""
    return exporter.running(*JOBS_ALONE, *flags)


def sees(target: exporter.Target, jobs: int) -> None:
    """Wait until so many jobs are shown."""
    until(
        lambda: len(target.scrape().series("batchjob_job_info")) >= jobs,
        f"{jobs} jobs seen",
        timeout=60,
        interval=0.5,
    )


def churn(scrapes: int = 10_000, jobs: int = 20, every: int = 5) -> Iterator[str]:
    """A job is replaced by a new one each few scrapes; memory must not grow with their number."""
    with trees.make(TREE, jobs) as tree, running("--collector.jobs.linger=1s") as target:
        sees(target, jobs)
        scrape = scraper(f"http://{target.address}/metrics")
        oldest = 1
        for number in range(scrapes + 1):
            if number % (scrapes // 10) == 0:
                rss = measure.resident_bytes(target.pid) / 1e6
                files = len(os.listdir(f"/proc/{target.pid}/fd"))
                size = len(scrape())
                yield f"{number} scrapes: {rss:.1f} MB resident, {files} files, {size} bytes"
            if number % every == 0:
                tree.remove(oldest)
                tree.add(oldest + jobs)
                oldest += 1
            scrape()
        peak = measure.resident_bytes(target.pid, peak=True) / 1e6
        yield f"{oldest - 1} jobs ended; {peak:.1f} MB at most"


def crowd(processes: int = 10_000) -> Iterator[str]:
    """One job with so many processes: no scrape may wait for them."""
    with tempfile.TemporaryDirectory() as folder, trees.make(TREE, 1) as tree, running() as target:
        sees(target, 1)
        scrape = scraper(f"http://{target.address}/metrics")
        yield f"one process: {shown(target, scrape)}"
        Path(folder).chmod(0o755)
        enter = "".join(f"echo $$ > {task}/cgroup.procs; " for task in tree.tasks(1))
        setpriv = f"setpriv --reuid={trees.UID} --regid={trees.UID} --clear-groups"
        program = compile_c("crowd", Path(folder))
        argv = ["/bin/sh", "-c", f'{enter} exec {setpriv} "$@"', "sh", program, str(processes)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as many:
            try:
                assert many.stdout is not None
                assert many.stdout.readline() == b"ready\n"
                until(
                    lambda: target.scrape().total("batchjob_job_processes") > processes,
                    "all processes counted",
                    timeout=120,
                    interval=1.0,
                )
                yield f"{processes} processes: {shown(target, scrape)}"
                yield f"and without scrapes: {background(target, 60)}"
            finally:
                many.kill()


def strangers(count: int = 1000, jobs: int = 10) -> Iterator[str]:
    """Cgroups that are nobody's job cost a scrape nothing."""
    with trees.make(TREE, jobs) as tree, running() as target:
        sees(target, jobs)
        scrape = scraper(f"http://{target.address}/metrics")
        yield f"{jobs} jobs alone: {shown(target, scrape)}"
        slices = [top.parent / f"bench{os.getpid()}.slice" for top in tree.tops]
        made = [each / f"service-{n}" for each in slices for n in range(count)]
        try:
            for each in made:
                each.mkdir(parents=True)
            time.sleep(2)
            yield f"beside {count} other cgroups: {shown(target, scrape)}"
            yield f"and without scrapes: {background(target, 30)}"
        finally:
            for each in (*made, *slices):
                each.rmdir()


def idle(jobs: int = 100, seconds: float = 60.0) -> Iterator[str]:
    """Nobody scrapes."""
    with trees.make(TREE, jobs), running() as target:
        sees(target, jobs)
        time.sleep(2)
        yield f"{jobs} jobs: {background(target, seconds)}"


def short(jobs: int = 60, at_once: int = 6) -> Iterator[str]:
    """Jobs of 0.3 to 3 s whose cgroups go 5 ms after their last process, on a full node.

    As the systemd unit runs the exporter, and with a drop-in for a quiet node.
    """
    runs: dict[str, dict[str, str]] = {"the unit": {}, "nice 10": {"Nice": "10"}}
    versions: tuple[short_jobs.CgroupVersion, ...] = (2, 1)
    for version in versions:
        for name, changed in runs.items():
            own = ("--collector.disable-defaults", "--collector.jobs")

            with (
                short_jobs.slurm_cgroups(version) as top_cgroups,
                exporter.as_the_unit(*own, changed=changed) as target,
                short_jobs.busy_cpus(),
            ):
                coverage = short_jobs.run_and_scrape_jobs(
                    top_cgroups, target, jobs, at_once, removal_delay=0.005
                )
            percent = 100 * coverage.cpu_seconds_ratio
            unseen = len(coverage.unseen_jobs)
            yield f"v{version}, {name}: {percent:.2f} % of CPU seconds, {unseen} unseen"


def shown(target: exporter.Target, scrape: Callable[[], bytes]) -> str:
    """Cost of a scrape and memory, in words."""
    each = cost(target.pid, scrape, 50)
    rss = measure.resident_bytes(target.pid) / 1e6
    return f"{each.cpu_ms:.2f} ms CPU, {each.wall_ms:.2f} ms wall per scrape; {rss:.1f} MB"


def background(target: exporter.Target, seconds: float) -> str:
    """What it does when nobody asks, in words."""
    cpu, wakes = measure.cpu_seconds(target.pid), measure.wake_ups(target.pid)
    time.sleep(seconds)
    cpu, wakes = measure.cpu_seconds(target.pid) - cpu, measure.wake_ups(target.pid) - wakes
    per_minute = 60 / seconds
    return f"{wakes * per_minute:.0f} wake-ups and {1e3 * cpu * per_minute:.1f} ms CPU per minute"


SUBJECTS = {each.__name__: each for each in (churn, crowd, strangers, idle, short)}


def main() -> None:
    """Measure one subject."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subject", choices=SUBJECTS)
    for line in SUBJECTS[parser.parse_args().subject]():
        print(line, flush=True)


if __name__ == "__main__":
    main()

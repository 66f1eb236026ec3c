"""What a busy loop pinned to the exporter's CPU loses by scrapes.

    python -m benchmarks.beside                      # 60 pairs of seconds, 5 scrapes in each second

Seconds with and without scrapes alternate, so that whatever else the machine does hits both alike;
a second with scrapes is compared with the one before. Two things are lost: the time in which the
loop was ready to run and did not (the kernel counts it: run delay in /proc/<pid>/schedstat,
Documentation/scheduler/sched-stats.rst), and speed while it ran, since scrapes use the same caches.
Printed are medians over the pairs with their 95 % confidence intervals, by ranks, so that nothing
is supposed of the noise. Needs root and a second CPU, from which the loop is watched.
"""

import argparse
import contextlib
import math
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure, trees
from benchmarks.node import TREE, running, sees
from benchmarks.scrape import scraper

# Counts its rounds in memory shared with the watcher.
BUSY_LOOP = """
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
rounds = 0
while True:
    for _ in range(1000):
        pass
    rounds += 1
    struct.pack_into("Q", shared, 0, rounds)
"""


class State(NamedTuple):
    """Of the loop and the exporter; all of it only grows."""

    rounds: float
    ran: float  # seconds running on the CPU
    waited: float  # seconds ready to run, but waiting for the CPU
    used: float  # CPU seconds of the exporter

    @property
    def speed(self) -> float:
        """Rounds in a second of its own."""
        return self.rounds / self.ran


class Interval(NamedTuple):
    """A median and where it lies with 95 % confidence."""

    median: float
    low: float
    high: float

    def shown(self, unit: str) -> str:
        """In words."""
        return f"{self.median:.3f} {unit} ({self.low:.3f} to {self.high:.3f})"


def median(values: list[float]) -> Interval:
    """By ranks: the number of values below the median is binomial."""
    ordered, n = sorted(values), len(values)
    reach = math.ceil(0.98 * math.sqrt(n))
    low, high = max(n // 2 - reach, 0), min((n - 1) // 2 + reach, n - 1)
    return Interval((ordered[n // 2] + ordered[(n - 1) // 2]) / 2, ordered[low], ordered[high])


@contextlib.contextmanager
def busy(cpu: int, exporter: int) -> Iterator[Callable[[], State]]:
    """A loop on this CPU, and a function that says how it does."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(8)
        argv = ["taskset", "-c", str(cpu), sys.executable, "-S", "-E", "-c", BUSY_LOOP, file.name]
        with subprocess.Popen(argv) as loop, mmap.mmap(file.fileno(), 8) as shared:

            def state() -> State:
                (rounds,) = struct.unpack_from("Q", shared, 0)
                waited = Path(f"/proc/{loop.pid}/schedstat").read_text().split()[1]
                ran, used = measure.cpu_seconds(loop.pid), measure.cpu_seconds(exporter)
                return State(rounds, ran, int(waited) / 1e9, used)

            try:
                time.sleep(1)  # until it is looping
                yield state
            finally:
                loop.kill()


def beside(jobs: int, pairs: int, scrapes: int) -> Iterator[str]:
    """Measure with so many jobs, pairs of seconds, and scrapes in each other second."""
    cpu, *others = sorted(os.sched_getaffinity(0), reverse=True)
    os.sched_setaffinity(0, {cpu})  # which the exporter inherits
    with trees.make(TREE, jobs) as tree, running() as target:
        os.sched_setaffinity(0, others)
        sees(target, jobs)
        scrape = scraper(f"http://{target.address}/metrics")
        scrape()
        with busy(cpu, target.pid) as state:
            seconds = [
                second(state, scrape if number % 2 else None, scrapes, tree.stir)
                for number in range(2 * pairs)
            ]
    both = list(zip(seconds[::2], seconds[1::2], strict=True))
    each = 1e3 / scrapes
    used = median([each * (scraped.used - idle.used) for idle, scraped in both])
    waited = median([each * (scraped.waited - idle.waited) for idle, scraped in both])
    slower = median(
        [
            100 * (1 - scraped.rounds / scraped.ran * idle.ran / idle.rounds)
            for idle, scraped in both
        ]
    )
    yield f"the exporter uses {used.shown('ms')} of the CPU for a scrape of {jobs} jobs"
    yield f"the loop waits {waited.shown('ms')} longer for each"
    yield f"and runs {slower.shown('%')} slower in a second with {scrapes} scrapes"
    yield (
        f"with a scrape each 15 s it loses {waited.median / 150:.3f} % by waiting and "
        f"{slower.median / 15 / scrapes:.4f} % by speed"
    )


def second(
    state: Callable[[], State],
    scrape: Callable[[], object] | None,
    scrapes: int,
    stir: Callable[[], None],
) -> State:
    """What changed in a second, with scrapes or without; the jobs do some work in both."""
    before, begin = state(), time.monotonic()
    for number in range(1, scrapes + 1):
        stir()
        if scrape is not None:
            scrape()
        time.sleep(max(begin + number / scrapes - time.monotonic(), 0))
    return State(*(now - then for now, then in zip(state(), before, strict=True)))


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--scrapes", type=int, default=5)
    for line in beside(**vars(parser.parse_args())):
        print(line, flush=True)


if __name__ == "__main__":
    main()

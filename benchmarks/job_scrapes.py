"""What scrapes of an exporter have of each job, be it long over when it is asked for."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.e2e import exporter

SCRAPE_SECONDS = 5.0
LINGER = "120s"


class Shown(NamedTuple):
    """A job as an exporter or as sacct shows it; None where it does not."""

    cpu_seconds: float
    peak_memory_bytes: float | None
    elapsed_seconds: float | None
    characters_read: float
    characters_written: float


class Scrapes:
    """What scrapes had of each job; a counter that falls goes on from where it was.

    A job's user may be seen only after its first scrape: the series without one is the same. A
    run that follows has a start of its own.
    """

    def __init__(self) -> None:
        self._started: dict[str, float] = {}
        self._last: dict[tuple[str, str, str], float] = {}
        self._sums: dict[tuple[str, str], float] = defaultdict(float)
        self._largest: dict[tuple[str, str], float] = {}

    def take(self, scrape: exporter.Scrape) -> None:
        """Add a scrape."""
        for labels, start in scrape.samples.get("batchjob_job_start_time_seconds", ()):
            self._begin(labels["jobid"], start)
        for name, series in scrape.samples.items():
            if name.startswith("batchjob_job_"):
                for labels, value in series:
                    self._add(name, labels, value)

    def _begin(self, jobid: str, start: float) -> None:
        if start > self._started.get(jobid, start) + 1:
            self._last = {key: value for key, value in self._last.items() if key[0] != jobid}
        self._started[jobid] = start

    def _add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        of_job = (labels["jobid"], name.removeprefix("batchjob_job_"))
        self._largest[of_job] = max(value, self._largest.get(of_job, value))
        if name.endswith("_total"):
            kind = sorted(pair for pair in labels.items() if pair[0] != "user")
            key = (*of_job, str(kind))
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
def scraped(scrapes: Scrapes) -> Iterator[None]:
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

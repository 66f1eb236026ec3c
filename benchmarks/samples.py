"""What samples cost: bytes and CPU time for each, with 1 to 200 jobs.

    python -m benchmarks.samples [--jobs 1,10,50,200] [--passes 720] [--interval 5]

The jobs' numbers change as real ones do: `busy` computes, `io` reads and writes as well, `idle`
waits. An hour at the usual interval is 720 passes; they are made one after the other, without
waiting, so that only the recorder's own work is counted: rows of the table, packing, writing. What
reading the cgroup files takes is in `benchmarks.scrape`, for it is the same work.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from batchjob.quantities.quantity import Statistic
from batchjob.quantities.reading import (
    CgroupReading,
    DeviceIO,
    JobReading,
    ProcessReading,
    job_reading,
)
from batchjob_stats_db.samples.file import SampleFile
from batchjob_stats_db.samples.folder import files_of, folder_of
from batchjob_stats_db.samples.recorder import Recorder, RecorderOptions
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from collectors.energy.ledger import EnergyAccounts, JobAccount
from collectors.job_samples import take_samples
from collectors.jobs.view import JobName
from collectors.metric import NO_LABELS

T = 1_775_300_000.0
PAGE = 4096
KINDS = ("busy", "io", "idle")


class Job:
    """Numbers that go on as those of a job of one kind do."""

    def __init__(self, number: int, kind: str) -> None:
        self.kind = kind
        self.name = JobName("slurm", str(1000 + number), "alice", NO_LABELS)
        self._chance = random.Random(number)
        self._user = self._system = self._waiting = self._joules = 0.0
        self._faults = self._read = self._written = self._operations = 0
        self._memory = 500_000 * PAGE

    def go_on(self, passes: int) -> None:
        """Five seconds go by."""
        chance = self._chance
        if self.kind == "idle":
            self._joules += 2.5
            return
        self._user += 19.9 + chance.gauss(0, 0.05)
        self._system += 0.05 + chance.random() * 0.02
        self._waiting += chance.random() * 0.05
        self._joules += 1500 + chance.gauss(0, 20)
        self._faults += chance.randrange(2000)
        self._memory += PAGE * chance.randrange(-200, 201)
        if self.kind == "io" and passes % 3 == 0:  # processes are read every 15 s
            self._read += PAGE * chance.randrange(50_000)
            self._written += PAGE * chance.randrange(50_000)
            self._operations += chance.randrange(5000)

    def reading(self) -> JobReading:
        """All that is read by default of a job on cgroup v2."""
        idle = self.kind == "idle"
        cgroup = CgroupReading(
            cpu_user_seconds=self._user, cpu_system_seconds=self._system,
            cpu_throttled_seconds=0.0, cpu_throttled_periods=0, cpu_periods=0, cpus=4.0,
            memory_current=self._memory, memory_peak=700_000 * PAGE, memory_limit=1 << 33,
            memory_anon=self._memory - 1000 * PAGE, memory_file=1000 * PAGE, memory_shmem=0,
            memory_swap=0, page_faults=self._faults, page_faults_major=12, memory_limit_hits=0,
            oom_kills=0, cpu_waiting_seconds=self._waiting, cpu_stalled_seconds=0.0,
            memory_waiting_seconds=0.0, memory_stalled_seconds=0.0,
            io_waiting_seconds=0.0 if idle else self._waiting / 3, io_stalled_seconds=0.0,
            threads=1 if idle else 6, threads_limit=1000, threads_limit_hits=0,
            io={"sda": DeviceIO(self._read, self._written, self._operations, self._operations)},
        )  # fmt: skip
        processes = ProcessReading(
            processes=1 if idle else 5, threads=6, read_bytes=self._read,
            written_bytes=self._written, read_characters=self._read, written_characters=1e6,
        )  # fmt: skip
        return job_reading(T, None, cgroup, processes)

    def account(self) -> JobAccount:
        """Its energy."""
        return JobAccount(self.name, {("host", "active"): self._joules}, {})


def record(jobs: list[Job], samples: Path, passes: int, interval: int = 5) -> tuple[float, int]:
    """CPU seconds of the recorder, and the bytes of the files before they are packed again.

    `interval`: seconds between two samples, a multiple of the five of a pass.
    """
    step = interval // 5
    moment = T
    read_samples = partial(
        take_samples,
        lambda: [(job.name, job.reading()) for job in jobs],
        accounts=lambda: EnergyAccounts(tuple(job.account() for job in jobs)),
    )
    recorder = Recorder(
        read_samples,
        samples,
        RecorderOptions(most=0),
        lambda: moment,
        lambda: moment,
    )
    cpu = 0.0
    for number in range(0, passes, step):
        for job in jobs:
            for each in range(number, number + step):
                job.go_on(each)
        begun = time.process_time()
        recorder.record()
        cpu += time.process_time() - begun
        moment += 5.0 * step
    live = sum(path.stat().st_size for job in jobs for path in files(samples, job))
    begun = time.process_time()
    recorder.start()
    recorder.stop()  # closes and repacks all files
    return cpu + time.process_time() - begun, live


def files(samples: Path, job: Job) -> Iterator[Path]:
    """The job's files."""
    yield from files_of(folder_of(samples, job.name.jobid))


def unpacked(path: Path) -> int:
    """Bytes of a file's lines."""
    with SampleFile(path) as file:
        return sum(len(line) + 1 for line in file.lines())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="1,10,50,200")
    parser.add_argument("--passes", type=int, default=720)
    parser.add_argument("--interval", type=int, default=5)
    given = parser.parse_args()
    print(
        "jobs  kind  CPU us/sample  bytes/sample while it runs  after  "
        "kB/job and hour while it runs  after  text/gzip"
    )
    for count in map(int, given.jobs.split(",")):
        for kind in KINDS:
            with tempfile.TemporaryDirectory(prefix="bj-samples-") as folder:
                samples = Path(folder)
                jobs = [Job(number, kind) for number in range(count)]
                cpu, live = record(jobs, samples, given.passes, given.interval)
                many = count * given.passes * 5 // given.interval
                hours = count * given.passes * 5 / 3600
                sizes = [
                    (p.stat().st_size, unpacked(p)) for job in jobs for p in files(samples, job)
                ]
                packed, text = (sum(column) for column in zip(*sizes, strict=True))
                print(
                    f"{count:4d}  {kind:4s}  {cpu / many * 1e6:13.0f}  {live / many:26.1f}  "
                    f"{packed / many:5.1f}  {live / hours / 1000:29.1f}  "
                    f"{packed / hours / 1000:5.1f}  "
                    f"{text / packed:9.1f}"
                )
                if count == 1:
                    begun = time.process_time()
                    span = JobWindow("c1", jobs[0].name.jobid, int(T), int(T) + 5 * given.passes)
                    metric = "batchjob_job_cpu_seconds_total"
                    SampleHistory(samples).measure({Statistic.TOTAL: [metric]}, [span])
                    spent = time.process_time() - begun
                    print(f"      all totals, peaks and means of it: {spent * 1e3:.0f} ms of CPU")


if __name__ == "__main__":
    main()

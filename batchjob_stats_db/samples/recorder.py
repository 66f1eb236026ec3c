"""Records samples of all jobs: one pass in each interval, one file for each job."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs import record
from batchjob.quantities.job import (
    CPU_SYSTEM,
    CPU_USER,
    MEMORY_PEAK,
    PROCESS_IO_READ_BYTES,
    PROCESS_IO_WRITTEN_BYTES,
)
from batchjob.quantities.sample import (
    JobSample,
    JobSamples,
    SampledJob,
    SampleHeader,
    SampleKey,
    Values,
)
from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration, size
from batchjob_stats_db.samples.folder import files_of, folder_of, folders
from batchjob_stats_db.samples.retention import expire
from batchjob_stats_db.samples.writer import Writer, repack

log = logging.getLogger(__name__)

LONGEST_FILE = 128 << 10  # bytes before it is repacked: several hours of a busy job
# Without a change after a job's end; by then its energy has been attributed.
_SETTLED_SECONDS = 30.0
_TIDY_SECONDS = 600.0


@dataclass(frozen=True)
class RecorderOptions:
    """How samples are recorded and retained."""

    interval: float = option(5.0, "Interval between samples of a job.", parse=duration)
    keep: float = option(
        30 * 86400.0, "How long samples of a finished job are kept; 0: forever.", parse=duration
    )
    most: int = option(
        1 << 30,
        "Maximum disk space of samples; the oldest are deleted first; 0: no limit.",
        parse=size,
    )


class _Course(NamedTuple):
    """A job that is being recorded."""

    writer: Writer
    values: Values
    changed_at: float  # in monotonic seconds


class Recorder:
    """Owns the recording thread and the open files."""

    def __init__(
        self,
        take: Callable[[], list[JobSamples]],
        samples: Path,
        options: RecorderOptions,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        runs: Path | None = None,
    ) -> None:
        """`take`: samples every job now. `samples`: the directory, created with the first sample.

        `runs`: the directory of this machine's own runs.
        """
        self._take = take
        self._samples = samples
        self._runs = runs
        self._options = options
        self._clock = clock
        self._monotonic = monotonic
        self._node = os.uname().nodename
        self._courses: dict[SampledJob, _Course] = {}
        self._over: set[SampledJob] = set()  # ended and closed, but still reported
        self._tidy_at = float("-inf")
        self._once = LogOnce(log)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start recording."""
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample of each job, and close all files."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
            self._thread = None

    def _run(self) -> None:
        due = self._monotonic()
        while not self._stopped.is_set():
            self.record()
            due = max(due + self._options.interval, self._monotonic())
            self._stopped.wait(due - self._monotonic())
        self.record()
        for key in list(self._courses):
            self._close(key)

    def record(self) -> None:
        """One pass: a sample of each job. Errors are logged once, and do not affect other jobs."""
        at, now = self._clock(), self._monotonic()
        with self._isolated("read", "samples: cannot read jobs"):
            taken = self._take()
            if self._runs is not None:
                taken = [_with_totals(each, self._runs) for each in taken]
            self._once.over("read")
            whole = [self._recorded(each, at, now) for each in taken]
            present = {each.job for each in taken}
            whole += [self._close(key) for key in self._courses.keys() - present]
            self._over &= present
            if all(whole):
                self._once.over("write")
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_SECONDS
            self._tidy()

    def _recorded(self, taken: JobSamples, at: float, now: float) -> bool:
        """Write a sample of the job if there is a new one; False if that failed."""
        key = taken.job
        course = self._courses.get(key)
        if not taken.ended:
            self._over.discard(key)
        elif key in self._over:
            return True
        elif course is not None and taken.values == course.values:
            if now - course.changed_at < _SETTLED_SECONDS:
                return True
            self._over.add(key)
            return self._close(key)
        return self._write(key, taken, at, now)

    def _write(self, key: SampledJob, taken: JobSamples, at: float, now: float) -> bool:
        course = self._courses.pop(key, None)
        writer: Writer | None = course.writer if course else None
        try:
            writer = writer or self._begun(taken.job, at)
            writer.write(JobSample(at, taken.values))
        except OSError as error:
            self._once.warning("write", "cannot write samples: %s", error)
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.close()  # the next pass creates a new file
            return False
        self._courses[key] = _Course(writer, taken.values, now)
        return writer.bytes < LONGEST_FILE or self._close(key)

    def _begun(self, job: SampledJob, at: float) -> Writer:
        who = SampleHeader(job.manager, job.jobid, job.user, self._node, self._options.interval)
        return Writer(folder_of(self._samples, job.jobid), who, at)

    def _close(self, key: SampledJob) -> bool:
        writer = self._courses.pop(key).writer
        try:
            writer.close()
            repack(writer.path)
        except OSError as error:
            self._once.warning("write", "cannot write samples: %s", error)
            return False
        return True

    def _tidy(self) -> None:
        """Repack what a killed recorder has left, and delete expired samples."""
        with self._isolated("tidy", "cannot delete old samples"):
            for folder in folders(self._samples):
                for path in files_of(folder):
                    repack(path)
            running = {folder_of(self._samples, jobid) for _, jobid, _ in self._courses}
            options = self._options
            expire(self._samples, self._clock(), options.keep, options.most, running)
            self._once.over("tidy")

    @contextlib.contextmanager
    def _isolated(self, what: str, said: str) -> Iterator[None]:
        """Run a pass; an error must not affect the exporter, and the next pass tries again."""
        try:
            yield
        except Exception as error:
            self._once.warning(what, "%s: %s", said, error)
            log.debug("%s", said, exc_info=True)


def _with_totals(taken: JobSamples, runs: Path) -> JobSamples:
    """An ended local run with the totals of its record, where those are larger.

    Its supervisor read them after the last process had ended, and summed up the processes one by
    one; the last sample may be seconds older.
    """
    job = taken.job
    if job.manager != "local" or not taken.ended:
        return taken
    try:
        run = record.decoded(record.read(runs / f"{job.jobid}.json"))
    except (OSError, record.RunFileError):
        return taken
    if run.state.live or run.user != job.user:
        return taken
    totals = {
        CPU_USER: run.user_cpu_seconds,
        CPU_SYSTEM: run.system_cpu_seconds,
        MEMORY_PEAK: run.peak_memory_bytes,
        PROCESS_IO_READ_BYTES: run.read_bytes,
        PROCESS_IO_WRITTEN_BYTES: run.written_bytes,
    }
    known = {
        SampleKey(quantity.name): float(value)
        for quantity, value in totals.items()
        if value is not None
    }
    larger = {name: max(value, taken.values.get(name, value)) for name, value in known.items()}
    return taken._replace(values={**taken.values, **larger})

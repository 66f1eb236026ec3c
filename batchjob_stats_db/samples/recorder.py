"""Records samples of all jobs, one pass in each interval and one file for each job.

Deletes the oldest ones.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from batchjob.local_runs import record
from batchjob.quantities import job as of_job
from batchjob.quantities.sample import (
    JobSample,
    JobSamples,
    SampledJob,
    SampleHeader,
    SampleKey,
    Values,
)
from batchjob.runtime.background import PeriodicTask
from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration, size
from batchjob_stats_db.samples.folder import files_of, folder_of, folders
from batchjob_stats_db.samples.writer import Writer, repack

log = logging.getLogger(__name__)

LONGEST_FILE = 128 << 10  # bytes before it is repacked: several hours of a busy job
# How long the values of an ended job must not change: by then its energy has been attributed.
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


_Recording = tuple[Writer, Values, float]
"""A job's file, its last values, and when they changed, in monotonic seconds."""


class Recorder(PeriodicTask):
    """Records in a thread of its own, and owns the open files."""

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
        super().__init__("samples", self._record_and_pause)
        self.patience_seconds = 10.0  # to pack the files of all running jobs
        self._take = take
        self._samples = samples
        self._runs = runs
        self._options = options
        self._clock = clock
        self._monotonic = monotonic
        self._node = os.uname().nodename
        self._recordings: dict[SampledJob, _Recording] = {}
        self._finished: set[SampledJob] = set()  # ended and closed, but still reported
        self._tidy_at = float("-inf")
        self._log_once = LogOnce(log)
        self._due = monotonic()

    def _run(self) -> None:
        """Take a last sample of each job in the end, and close all files."""
        super()._run()
        self.record()
        for key in list(self._recordings):
            self._close(key)

    def _record_and_pause(self) -> float:
        self.record()
        self._due = max(self._due + self._options.interval, self._monotonic())
        return self._due - self._monotonic()

    def record(self) -> None:
        """One pass: a sample of each job. Errors are logged once, and do not affect other jobs."""
        at, now = self._clock(), self._monotonic()
        with self._logging_errors("read", "samples: cannot read jobs"):
            samples = self._take()
            if self._runs is not None:
                samples = [_with_totals(each, self._runs) for each in samples]
            self._log_once.forget("read")
            succeeded = [self._record_job(each, at, now) for each in samples]
            present = {each.job for each in samples}
            succeeded += [self._close(key) for key in self._recordings.keys() - present]
            self._finished &= present
            if all(succeeded):
                self._log_once.forget("write")
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_SECONDS
            self._tidy()

    def _record_job(self, samples: JobSamples, at: float, now: float) -> bool:
        """Write a sample of the job if there is a new one; False if that failed."""
        key = samples.job
        recording = self._recordings.get(key)
        if not samples.ended:
            self._finished.discard(key)
        elif key in self._finished:
            return True
        elif recording is not None and samples.values == recording[1]:
            if now - recording[2] < _SETTLED_SECONDS:
                return True
            self._finished.add(key)
            return self._close(key)
        return self._write(key, samples, at, now)

    def _write(self, key: SampledJob, samples: JobSamples, at: float, now: float) -> bool:
        writer, *_ = self._recordings.pop(key, (None,))
        try:
            if writer is None:
                header = SampleHeader(*samples.job, self._node, self._options.interval)
                writer = Writer(folder_of(self._samples, samples.job.jobid), header, at)
            writer.write(JobSample(at, samples.values))
        except OSError as error:
            self._log_once.warning("write", "cannot write samples: %s", error)
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.close()  # the next pass creates a new file
            return False
        self._recordings[key] = (writer, samples.values, now)
        return writer.bytes < LONGEST_FILE or self._close(key)

    def _close(self, key: SampledJob) -> bool:
        writer, *_ = self._recordings.pop(key)
        try:
            writer.close()
            repack(writer.path)
        except FileNotFoundError:  # the job has been deleted
            return True
        except OSError as error:
            self._log_once.warning("write", "cannot write samples: %s", error)
            return False
        return True

    def _tidy(self) -> None:
        """Repack files that a killed recorder left, and delete expired samples."""
        with self._logging_errors("tidy", "cannot delete old samples"):
            for folder in folders(self._samples):
                for path in files_of(folder):
                    repack(path)
            running = {folder_of(self._samples, jobid) for _, jobid, _ in self._recordings}
            options = self._options
            expire(self._samples, self._clock(), options.keep, options.most, running)
            self._log_once.forget("tidy")

    @contextlib.contextmanager
    def _logging_errors(self, what: str, message: str) -> Iterator[None]:
        """Log errors once: they must not affect the exporter, and the next pass tries again."""
        try:
            yield
        except Exception as error:
            self._log_once.warning(what, "%s: %s", message, error)
            log.debug("%s", message, exc_info=True)


def _with_totals(samples: JobSamples, runs: Path) -> JobSamples:
    """Samples of an ended local run, with the totals of its record where those are larger.

    Its supervisor read them after the last process had ended, and summed up the processes one by
    one; the last sample may be seconds older.
    """
    job = samples.job
    if job.manager != "local" or not samples.ended:
        return samples
    try:
        run = record.decode_run(record.read(runs / f"{job.jobid}.json"))
    except (OSError, record.RunFileError):
        return samples
    if run.state.is_live or run.user != job.user:
        return samples
    totals = {
        of_job.CPU_USER: run.user_cpu_seconds,
        of_job.CPU_SYSTEM: run.system_cpu_seconds,
        of_job.MEMORY_PEAK: run.peak_memory_bytes,
        of_job.PROCESS_IO_READ_BYTES: run.read_bytes,
        of_job.PROCESS_IO_WRITTEN_BYTES: run.written_bytes,
    }
    values = dict(samples.values)
    for quantity, value in totals.items():
        key = SampleKey(quantity.name)
        if value is not None:
            values[key] = max(float(value), values.get(key, 0.0))
    return samples._replace(values=values)


def expire(
    samples: Path, now: float, max_age_seconds: float, max_bytes: int, running: Collection[Path]
) -> int:
    """Delete expired samples, then the oldest until the rest fits.

    A limit of 0 is none. The folders in `running` are kept. Returns how many jobs' samples were
    deleted; raises OSError if some could not be.
    """
    jobs = sorted(map(_last_time_and_size, folders(samples)))
    total = sum(bytes_on_disk for _, bytes_on_disk, _ in jobs)
    deleted = 0
    failure: OSError | None = None
    for last, bytes_on_disk, folder in jobs:
        too_old = max_age_seconds and now - last > max_age_seconds
        too_large = max_bytes and total > max_bytes
        if folder in running or not (too_old or too_large):
            continue
        try:
            shutil.rmtree(folder)
        except OSError as error:  # the others can still be deleted
            failure = failure or error
            continue
        total -= bytes_on_disk
        deleted += 1
        log.info("samples of %s deleted: %s", folder.name, "too old" if too_old else "too much")
    if failure is not None:
        raise failure
    return deleted


def _last_time_and_size(folder: Path) -> tuple[float, int, Path]:
    found = [status for path in files_of(folder) if (status := _status(path))]
    last = max(each.st_mtime for each in found) if found else _modified_time(folder)
    return last, sum(each.st_blocks * 512 for each in found), folder


def _modified_time(path: Path) -> float:
    status = _status(path)
    return status.st_mtime if status else 0.0


def _status(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return path.stat()
    return None

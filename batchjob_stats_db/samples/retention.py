"""Retention of samples: by age and by size, job by job, the oldest first."""

import logging
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from batchjob_stats_db.samples.folder import folders, sizes

log = logging.getLogger(__name__)


class SampleFolder(NamedTuple):
    """The size of a job's samples, and the time of the last one."""

    last: float
    bytes: int
    folder: Path


def expire(
    samples: Path, now: float, oldest_seconds: float, most_bytes: int, running: Collection[Path]
) -> int:
    """Delete expired samples, then the oldest until the rest fits.

    A limit of 0 is none. The folders in `running` are kept. Returns how many jobs' samples were
    deleted; raises OSError if some could not be.
    """
    jobs = [_job(folder) for folder in folders(samples)]
    total = sum(job.bytes for job in jobs)
    deleted = 0
    failure: OSError | None = None
    for job in sorted(jobs):
        too_old = oldest_seconds and now - job.last > oldest_seconds
        too_much = most_bytes and total > most_bytes
        if job.folder in running or not (too_old or too_much):
            continue
        try:
            shutil.rmtree(job.folder)
        except OSError as error:  # the others can still be deleted
            failure = failure or error
            continue
        total -= job.bytes
        deleted += 1
        log.info("samples of %s deleted: %s", job.folder.name, "too old" if too_old else "too much")
    if failure is not None:
        raise failure
    return deleted


def _job(folder: Path) -> SampleFolder:
    found = list(sizes(folder))
    last = max((last for last, _ in found), default=_changed(folder))
    return SampleFolder(last, sum(size for _, size in found), folder)


def _changed(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0

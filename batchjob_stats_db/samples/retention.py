"""Retention of samples: by age and by size, job by job, the oldest first."""

import logging
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from batchjob_stats_db.samples.folder import folders, times_and_sizes

log = logging.getLogger(__name__)


class SampleFolder(NamedTuple):
    """The size of a job's samples, and the time of the last one."""

    last: float
    bytes: int
    folder: Path


def expire(
    samples: Path, now: float, max_age_seconds: float, max_bytes: int, running: Collection[Path]
) -> int:
    """Delete expired samples, then the oldest until the rest fits.

    A limit of 0 is none. The folders in `running` are kept. Returns how many jobs' samples were
    deleted; raises OSError if some could not be.
    """
    jobs = [_sample_folder(folder) for folder in folders(samples)]
    total = sum(job.bytes for job in jobs)
    deleted = 0
    failure: OSError | None = None
    for job in sorted(jobs):
        too_old = max_age_seconds and now - job.last > max_age_seconds
        too_large = max_bytes and total > max_bytes
        if job.folder in running or not (too_old or too_large):
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


def _sample_folder(folder: Path) -> SampleFolder:
    found = list(times_and_sizes(folder))
    last = max((last for last, _ in found), default=_modified_time(folder))
    return SampleFolder(last, sum(size for _, size in found), folder)


def _modified_time(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0

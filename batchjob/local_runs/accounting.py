"""Source `runs`: the records that `batchjob run` writes (format: `local_runs/record.py`)."""

import contextlib
import math
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from batchjob.local_runs import record as run_files
from batchjob.runtime.formatting import size
from batchjob.runtime.settings import option
from batchjob.runtime.user_files import ForeignFileError
from batchjob.schedulers import accounting
from batchjob.schedulers.fields import RowError, quarantined_row
from batchjob.schedulers.json_record import decode
from batchjob.schedulers.log_follower import NO_PATH
from batchjob.schedulers.records import JobRecord, QuarantinedRow

SOURCE = "runs"
_BATCH_SIZE = 2000
_MAX_FILES_OF_USER = 200_000  # so that one user's files do not use up the poller's memory
_ACCEPTED_FIELDS = frozenset(run_files.Run._fields) & frozenset(JobRecord._fields)
"""What a file may set of a job; its author must not claim an account, energy and the like."""
_FileStamp = tuple[float, int, int]
"""When a file was modified, by the file system's clock, its inode and its size."""
_OVERLAP_SECONDS = 5  # file system timestamps are coarse


@dataclass(frozen=True)
class LocalRunsOptions:
    path: str = option("", "Directory of the run records, <data>/runs.")


class Runs:
    """Reads the files that have changed, and checks whether unfinished runs are still alive."""

    name = SOURCE

    def __init__(
        self,
        cluster: str,
        options: LocalRunsOptions,
        clock: Callable[[], float] = time.time,
        procfs: str = "/proc",
    ) -> None:
        self.cluster = cluster
        self._path = Path(options.path)
        self._clock = clock
        self._procfs = procfs
        self._node = os.uname().nodename
        # Of the last reading: the state of the files, and the watermark it returned.
        self._last_stamps: dict[str, _FileStamp] | None = None
        self._last_watermark = ""

    def check(self) -> tuple[str, ...]:
        if str(self._path) == ".":  # Path("")
            return (NO_PATH,)
        if os.access(self._path, os.R_OK | os.X_OK):
            return ()
        return (f"{self._path}: does not exist, or uid {os.geteuid()} may not list it",)

    def watermark_at(self, since: int) -> str:
        """Watermarks are epoch seconds of the file system: what changed since then is read."""
        return str(since)

    def read(
        self, watermark: str, unfinished: Mapping[str, accounting.UnfinishedJob]
    ) -> Iterator[accounting.Batch]:
        now = int(self._clock())
        covered = min(accounting.parse_epoch_watermark(SOURCE, watermark), now)
        if watermark != self._last_watermark:  # a different database than last time
            self._last_stamps = None
        stamps = self._read_stamps()
        if self._last_stamps is None:
            since = covered - _OVERLAP_SECONDS
            changed = {name: stamp for name, stamp in stamps.items() if stamp[0] >= since}
        else:  # by any clock
            last = self._last_stamps
            changed = {name: stamp for name, stamp in stamps.items() if last.get(name) != stamp}
        newest = max((modified for modified, *_ in stamps.values()), default=0)
        own_unfinished = accounting.with_jobids_like(unfinished, run_files.RUN_ID)
        ended_unchanged = [
            jobid
            for jobid in own_unfinished
            if f"{jobid}.json" not in changed and self._is_end_recorded(jobid, own_unfinished)
        ]
        jobs, unreadable = self._read_records(
            [*_sort_by_time(changed), *(f"{jobid}.json" for jobid in ended_unchanged)]
        )
        for at in range(0, len(jobs), _BATCH_SIZE):
            yield accounting.Batch(tuple(jobs[at : at + _BATCH_SIZE]), (), watermark, covered)
        ended = {job.jobid for job in jobs if not job.state.is_live}
        vanished = tuple(
            jobid
            for jobid in own_unfinished
            if jobid not in ended
            and (jobid in ended_unchanged or self._has_vanished(jobid, own_unfinished))
        )
        tombstones = self._list_tombstones()
        deleted = tuple(each for each in map(_read_deletion, tombstones) if each is not None)
        covered = max(covered, min(int(newest), now))
        yield accounting.Batch((), tuple(unreadable), str(covered), now, vanished, deleted=deleted)
        # The consumer resumes this generator only after it has stored the batch.
        self._last_stamps, self._last_watermark = stamps, str(covered)
        for tombstone in tombstones:
            with contextlib.suppress(OSError):  # not permitted: reading it again later is harmless
                tombstone.unlink()

    def reread(
        self, since: int, find_differing: accounting.FindDiffering
    ) -> Iterator[accounting.Batch]:
        """See RereadableSource: a file may arrive with an older time than files already read."""
        names = _sort_by_time({n: s for n, s in self._read_stamps().items() if s[0] >= since})
        for at in range(0, len(names), _BATCH_SIZE):
            jobs, unreadable = self._read_records(names[at : at + _BATCH_SIZE])
            differing_keys = find_differing(jobs)
            changed = [job for job in jobs if job.key in differing_keys]
            # The file of a killed run says forever that the run is active.
            kept = tuple(
                job for job in changed if job.end_time or not self._has_vanished(job.jobid, {})
            )
            yield accounting.Batch(kept, tuple(unreadable), "", since)

    def _read_records(self, names: Iterable[str]) -> tuple[list[JobRecord], list[QuarantinedRow]]:
        """The records of files, in the order in which the runs began, and unreadable files."""
        jobs_by_start: list[tuple[float, JobRecord]] = []
        unreadable: list[QuarantinedRow] = []
        for name in names:
            try:
                document = run_files.read(self._path / name)
                job, complaints = self._decode_record(document)
            except FileNotFoundError:  # removed by retention in the meantime
                continue
            except OSError as error:
                unreadable.append(quarantined_row(SOURCE, f"{name}: {error.strerror}", ""))
                continue
            except (run_files.RunFileError, RowError) as error:
                unreadable.append(quarantined_row(SOURCE, str(error), ""))
                continue
            except Exception as error:  # one user's file must not keep out those of all others
                unreadable.append(quarantined_row(SOURCE, f"{name}: {error!r}", ""))
                continue
            jobs_by_start.append((document.get("start_time") or document["submit_time"], job))
            if complaints:
                unreadable.append(
                    quarantined_row(SOURCE, f"{name}: {'; '.join(complaints)}", repr(job))
                )
        # Rows are numbered in this order, which distinguishes runs started in the same second.
        return [job for _, job in sorted(jobs_by_start, key=itemgetter(0))], unreadable

    def _read_stamps(self) -> dict[str, _FileStamp]:
        """The identity of each file, which changes with its content: files are replaced."""
        return {
            name: (status.st_mtime, status.st_ino, status.st_size)
            for name, status in self._list_files(".json")
        }

    def _list_tombstones(self) -> list[Path]:
        """What is beyond an owner's maximum is read when the first ones have been removed."""
        names = (name for name, _ in self._list_files(run_files.TOMBSTONE))
        return [
            self._path / name
            for name in names
            if run_files.RUN_ID.fullmatch(name.partition(".")[0])
        ]

    def _list_files(self, suffix: str) -> Iterator[tuple[str, os.stat_result]]:
        """One after the other, with a limit for each owner: any user may create any number."""
        of_owner: Counter[int] = Counter()
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if not entry.name.endswith(suffix) or entry.name.startswith("."):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        of_owner[status.st_uid] += 1
                        if of_owner[status.st_uid] <= _MAX_FILES_OF_USER:
                            yield entry.name, status
        except OSError as error:
            raise accounting.SourceError(f"{self._path}: {error.strerror}") from error

    def _decode_record(self, document: dict[str, Any]) -> tuple[JobRecord, tuple[str, ...]]:
        node = document.get("node")
        share = {
            "node": node,
            "cpus": document.get("allocated_cpus"),
            "memory_bytes": document.get("allocated_memory_bytes"),
            "gpus": document.get("allocated_gpus"),
        }
        accepted = {key: value for key, value in document.items() if key in _ACCEPTED_FIELDS}
        limit = accepted.get("time_limit_seconds")
        if isinstance(limit, float) and math.isfinite(limit):
            accepted["time_limit_seconds"] = math.ceil(limit)
        nodes = [] if document.get("start_time") is None else [share]  # it waits, and holds nothing
        job, complaints = decode(accepted | {"nodes": nodes}, self.cluster, SOURCE)
        run = run_files.decode_run(document)
        user, system = job.user_cpu_seconds, job.system_cpu_seconds
        job = job._replace(
            eligible_time=run.submit_time,  # keeps the milliseconds
            node_list=str(node),
            array_jobid=str(document.get("workflow", "")),
            allocated_nodes=len(nodes) or None,
            allocated_resources=_format_resources(run),
            elapsed_seconds=run.duration_seconds,
            cpu_seconds=None if user is None or system is None else user + system,
        )
        return job, complaints

    def _read_own(
        self, jobid: str, known: Mapping[str, accounting.UnfinishedJob]
    ) -> dict[str, Any]:
        """The file of a run of a known user; those of others are not even read."""
        uid = known[jobid].uid if jobid in known else None
        return run_files.read(self._path / f"{jobid}.json", None if uid is None else (0, uid))

    def _is_end_recorded(self, jobid: str, known: Mapping[str, accounting.UnfinishedJob]) -> bool:
        try:
            return self._read_own(jobid, known).get("end_time") is not None
        except (OSError, run_files.RunFileError):
            return False

    def _has_vanished(self, jobid: str, known: Mapping[str, accounting.UnfinishedJob]) -> bool:
        """Whether a run ended without a record of its end: it was killed, or the machine went down.

        For a run on another machine that shares the directory, this cannot be known.
        """
        try:
            document = self._read_own(jobid, known)
        except (FileNotFoundError, ForeignFileError):
            return True
        except (OSError, run_files.RunFileError):
            return False
        if document.get("end_time") is not None:  # it has just ended, and is read in the next cycle
            return False
        return document.get("node") == self._node and not run_files.is_supervisor_alive(
            document, self._procfs
        )


def _sort_by_time(stamps: Mapping[str, _FileStamp]) -> list[str]:
    return sorted(stamps, key=lambda name: (stamps[name][0], name))


def _read_deletion(tombstone: Path) -> accounting.DeletedRecord | None:
    """The deletion that a file asks for; None if the file is not valid.

    Files of root, and of the poller's own user, delete anybody's records, those of other users only
    their own. The owner of a link, symbolic or hard, is not the owner of its target.
    """
    try:
        status = tombstone.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        return None
    owner = status.st_uid
    jobid = tombstone.name.partition(".")[0]
    return accounting.DeletedRecord(SOURCE, jobid, None if owner in (0, os.geteuid()) else owner)


def _format_resources(run: run_files.Run) -> str:
    """Limits that have no column of their own."""
    speed = run.io_limit_bytes_per_second
    parts = (
        f"IO {size(speed)}/s" if speed else "",
        f"bound to CPU {run.cpu_list}" if run.cpu_list else "",
        f"GPUs {run.gpu_list}" if run.gpu_list else "",
    )
    return ", ".join(filter(None, parts))


ACCOUNTING = accounting.AccountingModule(LocalRunsOptions, Runs)

"""Source `runs`: the records that `batchjob run` writes (format: `local_runs/record.py`)."""

import contextlib
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.local_runs.record import RUN_ID, TOMBSTONE, Run, RunFileError, alive, decoded, read
from batchjob.runtime.formatting import size
from batchjob.runtime.settings import option
from batchjob.runtime.values import text
from batchjob.schedulers.accounting import (
    AccountingModule,
    Batch,
    Deleted,
    Differing,
    SourceError,
    Unfinished,
    epoch_watermark,
    own,
)
from batchjob.schedulers.fields import RowError, quarantined
from batchjob.schedulers.json_record import Decoded, decode
from batchjob.schedulers.records import JobRecord, Quarantined

SOURCE = "runs"
_BATCH = 2000
_TAKEN = frozenset(Run._fields) & frozenset(JobRecord._fields)
"""What a file may say of a job; accounts, energy and the like are not its author's to claim."""
_OVERLAP = 5  # seconds; file system timestamps are coarse


@dataclass(frozen=True)
class LocalRunsOptions:
    """Local runs."""

    path: str = option("", "Directory of the run records, <data>/runs.", parse=text)


def build(cluster: str, options: LocalRunsOptions) -> "Runs":
    """The source for one machine."""
    return Runs(cluster, options)


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
        self._seen: dict[str, _Stamp] | None = None  # state of the files at the last reading
        self._watermark = ""  # the watermark that the last reading returned

    def check(self) -> tuple[str, ...]:
        """See AccountingSource."""
        if os.access(self._path, os.R_OK | os.X_OK):
            return ()
        return (f"{self._path}: does not exist, or uid {os.geteuid()} may not list it",)

    def watermark_at(self, since: int) -> str:
        """Watermarks are epoch seconds of the file system: what changed since then is read."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See AccountingSource."""
        now = int(self._clock())
        covered = min(epoch_watermark(SOURCE, watermark), now)
        if watermark != self._watermark:  # a different database than last time
            self._seen = None
        listed = self._stamps()
        changed = self._changed(listed, covered - _OVERLAP)
        newest = max((stamp.modified for stamp in listed.values()), default=0)
        mine = own(unfinished, RUN_ID)
        over = [jobid for jobid in mine if f"{jobid}.json" not in changed and self._ended(jobid)]
        found, bad = self._records([*_by_time(changed), *(f"{jobid}.json" for jobid in over)])
        for at in range(0, len(found), _BATCH):
            yield Batch(tuple(found[at : at + _BATCH]), (), watermark, covered)
        ended = {job.jobid for job in found if not job.state.live}
        gone = tuple(
            jobid for jobid in mine if jobid not in ended and (jobid in over or self._gone(jobid))
        )
        graves = [
            path for path in map(Path, self._listed(TOMBSTONE)) if RUN_ID.fullmatch(path.stem)
        ]
        deleted = tuple(each for each in map(_deleted, graves) if each is not None)
        covered = max(covered, min(int(newest), now))
        yield Batch((), tuple(bad), str(covered), now, gone, deleted=deleted)
        # The consumer resumes this generator only after it has stored the batch.
        self._seen, self._watermark = listed, str(covered)
        for grave in graves:
            with contextlib.suppress(OSError):  # not permitted: reading it again later is harmless
                grave.unlink()

    def reread(self, since: int, differing: Differing) -> Iterator[Batch]:
        """See RereadableSource: a file may arrive with an older time than files already read."""
        names = _by_time({n: s for n, s in self._stamps().items() if s.modified >= since})
        for at in range(0, len(names), _BATCH):
            found, bad = self._records(names[at : at + _BATCH])
            wanted = differing(found)
            differ = [job for job in found if job.key in wanted]
            # The file of a killed run says forever that the run is active.
            kept = tuple(job for job in differ if job.end_time or not self._gone(job.jobid))
            yield Batch(kept, tuple(bad), "", since)

    def _records(self, names: Iterable[str]) -> tuple[list[JobRecord], list[Quarantined]]:
        """The records of files, in the order in which the runs began, and unreadable files."""
        begun: list[tuple[float, JobRecord]] = []
        bad: list[Quarantined] = []
        for name in names:
            try:
                document = read(self._path / name)
                job, complaints = self._record(document)
            except FileNotFoundError:  # removed by retention in the meantime
                continue
            except OSError as error:
                bad.append(quarantined(SOURCE, f"{name}: {error.strerror}", ""))
                continue
            except (RunFileError, RowError) as error:
                bad.append(quarantined(SOURCE, str(error), ""))
                continue
            begun.append((document.get("start_time") or document["submit_time"], job))
            if complaints:
                bad.append(quarantined(SOURCE, f"{name}: {'; '.join(complaints)}", repr(job)))
        # Rows are numbered in this order, which distinguishes runs started in the same second.
        return [job for _, job in sorted(begun, key=itemgetter(0))], bad

    def _changed(self, listed: Mapping[str, "_Stamp"], since: int) -> dict[str, "_Stamp"]:
        """Files that changed since the last call, by any clock, or at first since a time."""
        if self._seen is None:
            return {name: stamp for name, stamp in listed.items() if stamp.modified >= since}
        return {name: stamp for name, stamp in listed.items() if self._seen.get(name) != stamp}

    def _stamps(self) -> dict[str, "_Stamp"]:
        """The identity of each file, which changes with its content: files are replaced, not
        edited.
        """
        found = {}
        for entry in self._listed(".json"):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found[entry.name] = _Stamp(status.st_mtime, status.st_ino, status.st_size)
        return found

    def _listed(self, suffix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._path) as entries:
                return [
                    entry
                    for entry in entries
                    if entry.name.endswith(suffix) and not entry.name.startswith(".")
                ]
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror}") from error

    def _record(self, document: dict[str, Any]) -> Decoded:
        node = document.get("node")
        share = {
            "node": node,
            "cpus": document.get("allocated_cpus"),
            "memory_bytes": document.get("allocated_memory_bytes"),
            "gpus": document.get("allocated_gpus"),
        }
        kept = {key: value for key, value in document.items() if key in _TAKEN}
        if isinstance(limit := kept.get("time_limit_seconds"), float):
            kept["time_limit_seconds"] = math.ceil(limit)
        job, complaints = decode(kept | {"nodes": [share]}, self.cluster, SOURCE)
        job = job._replace(
            eligible_time=decoded(document).submit_time,  # keeps the milliseconds
            node_list=str(node),
            array_jobid=str(document.get("workflow", "")),
            allocated_nodes=1,
            allocated_resources=_resources(decoded(document)),
            elapsed_seconds=decoded(document).duration_seconds,
            cpu_seconds=_sum(job.user_cpu_seconds, job.system_cpu_seconds),
        )
        return Decoded(job, complaints)

    def _ended(self, jobid: str) -> bool:
        try:
            return read(self._path / f"{jobid}.json").get("end_time") is not None
        except (OSError, RunFileError):
            return False

    def _gone(self, jobid: str) -> bool:
        """Whether a run ended without a record of its end: it was killed, or the machine went down.

        For a run on another machine that shares the directory, this cannot be known.
        """
        try:
            document = read(self._path / f"{jobid}.json")
        except FileNotFoundError:
            return True
        except (OSError, RunFileError):
            return False
        if document.get("end_time") is not None:  # it has just ended, and is read in the next cycle
            return False
        return document.get("node") == self._node and not alive(document, self._procfs)


class _Stamp(NamedTuple):
    """A file's state."""

    modified: float  # epoch seconds, from the file system's clock
    inode: int
    size: int


def _by_time(stamps: Mapping[str, _Stamp]) -> list[str]:
    return sorted(stamps, key=lambda name: (stamps[name].modified, name))


def _deleted(grave: Path) -> Deleted | None:
    """The deletion that a file asks for; None if the file is not valid.

    Files of root, and of the poller's own user, delete anybody's records, those of other users only
    their own. The owner of a link, symbolic or hard, is not the owner of its target.
    """
    try:
        found = grave.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        return None
    owner = found.st_uid
    return Deleted(SOURCE, grave.stem, None if owner in (0, os.geteuid()) else owner)


def _resources(run: Run) -> str:
    """Limits that have no column of their own."""
    speed = run.io_limit_bytes_per_second
    words = (f"IO {size(speed)}/s" if speed else "", f"CPUs {run.cpu_list}" if run.cpu_list else "")
    return ", ".join(filter(None, words))


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


ACCOUNTING = AccountingModule(LocalRunsOptions, build)

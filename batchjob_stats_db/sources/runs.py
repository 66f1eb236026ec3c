"""Local runs, from the files that `batchjob run` writes (batchjob/runs.py has the form)."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchjob.runs import TOMBSTONE, RunFileError, alive, read
from batchjob.settings import option
from batchjob.values import text
from batchjob_stats_db.records import JobRecord, Quarantined
from batchjob_stats_db.sources.json_record import Decoded, decode
from batchjob_stats_db.sources.row import RowError, quarantined
from batchjob_stats_db.sources.source import (
    Batch,
    Deleted,
    SourceError,
    Unfinished,
    epoch_watermark,
    own,
)

SOURCE = "runs"
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_BATCH = 2000
_OURS = ("version", "supervisor", "node", "by", "wall_seconds")  # of the file, not of the record
_OVERLAP = 5  # seconds; file systems' clocks are coarse


@dataclass(frozen=True)
class Options:
    """Local runs."""

    path: str = option("", "The directory of the runs' files, <data>/runs.", parse=text)


def build(cluster: str, options: Options) -> "Runs":
    """The source for one machine."""
    return Runs(cluster, options)


class Runs:
    """Reads the files that have changed, and looks whether unfinished runs still live."""

    name = SOURCE

    def __init__(
        self,
        cluster: str,
        options: Options,
        clock: Callable[[], float] = time.time,
        procfs: str = "/proc",
    ) -> None:
        self.cluster = cluster
        self._path = Path(options.path)
        self._clock = clock
        self._procfs = procfs
        self._node = os.uname().nodename

    def check(self) -> tuple[str, ...]:
        """See Source."""
        if os.access(self._path, os.R_OK | os.X_OK):
            return ()
        return (f"{self._path}: uid {os.geteuid()} may not list it, or it is not there",)

    def watermark_at(self, since: int) -> str:
        """Watermarks are epoch seconds: the files changed since then are read."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See Source."""
        now = int(self._clock())
        since = min(epoch_watermark(SOURCE, watermark), now) - _OVERLAP
        found: list[JobRecord] = []
        bad: list[Quarantined] = []
        for path in self._changed(since):
            try:
                job, complaints = self._record(path.stem, self._document(path))
            except FileNotFoundError:  # its retention ended meanwhile
                continue
            except (OSError, RunFileError, RowError) as error:
                bad.append(quarantined(SOURCE, f"{path.name}: {error}", _raw(path)))
                continue
            found.append(job)
            if complaints:
                bad.append(quarantined(SOURCE, "; ".join(complaints), _raw(path)))
        for at in range(0, len(found), _BATCH):
            yield Batch(tuple(found[at : at + _BATCH]), (), watermark, since)
        ended = {job.jobid for job in found if not job.state.live}
        mine = own(unfinished, _RUN_ID)
        gone = tuple(jobid for jobid in mine if jobid not in ended and self._gone(jobid))
        graves = [path for path in self._listed(TOMBSTONE) if _RUN_ID.fullmatch(path.stem)]
        deleted = tuple(each for each in map(_deleted, graves) if each is not None)
        yield Batch((), tuple(bad), str(now), now, gone, deleted=deleted)
        # Whoever took the batch has written it, or he would not have come back.
        for grave in graves:
            with contextlib.suppress(OSError):  # not ours: read again, it changes nothing
                grave.unlink()

    @staticmethod
    def _document(path: Path) -> dict[str, Any]:
        """What the file says; where several users write into the directory, of himself alone."""
        document, owner = read(path), path.stat().st_uid
        if owner not in (0, document.get("uid")):
            raise RunFileError(f"{path.name}: uid {owner} wrote a run of uid {document.get('uid')}")
        return document

    def _changed(self, since: int) -> list[Path]:
        changed = []
        for path in self._listed(".json"):
            with contextlib.suppress(FileNotFoundError):
                changed.append((path.stat().st_mtime, path))
        return [path for at, path in sorted(changed) if at >= since]

    def _listed(self, suffix: str) -> list[Path]:
        try:
            names = os.listdir(self._path)
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror}") from error
        return [
            self._path / name
            for name in names
            if name.endswith(suffix) and not name.startswith(".")
        ]

    def _record(self, jobid: str, document: dict[str, Any]) -> Decoded:
        if document.get("jobid") != jobid:
            raise RowError("jobid: expected the file's name")
        node = document.get("node")
        share = {
            "node": node,
            "cpus": document.get("allocated_cpus"),
            "memory_bytes": document.get("allocated_memory_bytes"),
            "gpus": document.get("allocated_gpus"),
        }
        kept = {key: value for key, value in document.items() if key not in _OURS}
        job, complaints = decode(kept | {"nodes": [share]}, self.cluster, SOURCE)
        return Decoded(_summed(job)._replace(node_list=str(node), allocated_nodes=1), complaints)

    def _gone(self, jobid: str) -> bool:
        """Whether a run ended without anybody to write it down: killed, or the machine went down.

        Of a run on another machine that shares the directory we cannot tell.
        """
        try:
            document = read(self._path / f"{jobid}.json")
        except FileNotFoundError:
            return True
        except (OSError, RunFileError):
            return False
        return document.get("node") == self._node and not alive(document, self._procfs)


def _deleted(grave: Path) -> Deleted | None:
    """root deletes everybody's records, and who polls those of his own directory."""
    try:
        owner = grave.stat().st_uid
    except OSError:
        return None
    return Deleted(SOURCE, grave.stem, None if owner in (0, os.geteuid()) else owner)


def _summed(job: JobRecord) -> JobRecord:
    if job.end_time is None or job.start_time is None:
        return job
    parts = (job.user_cpu_seconds, job.system_cpu_seconds)
    cpu = None if None in parts else sum(part or 0.0 for part in parts)
    return job._replace(elapsed_seconds=max(0, job.end_time - job.start_time), cpu_seconds=cpu)


def _raw(path: Path) -> str:
    try:
        return path.read_bytes()[:10_000].decode("utf-8", "backslashreplace")
    except OSError:
        return ""

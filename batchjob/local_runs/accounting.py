"""Source `runs`: the records that `batchjob run` writes; `local_runs/record.py` has their form."""

import contextlib
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from batchjob.local_runs.record import RUN_ID, TOMBSTONE, Run, RunFileError, alive, decoded, read
from batchjob.runtime.formatting import size
from batchjob.runtime.settings import option
from batchjob.runtime.values import text
from batchjob.schedulers.accounting import (
    AccountingModule,
    Batch,
    Deleted,
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
_OVERLAP = 5  # seconds; file systems' clocks are coarse


@dataclass(frozen=True)
class LocalRunsOptions:
    """Local runs."""

    path: str = option("", "Directory of the run records, <data>/runs.", parse=text)


def build(cluster: str, options: LocalRunsOptions) -> "Runs":
    """The source for one machine."""
    return Runs(cluster, options)


class Runs:
    """Reads the files that have changed, and looks whether unfinished runs still live."""

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
        begun: list[tuple[float, JobRecord]] = []
        bad: list[Quarantined] = []
        for path in self._changed(since):
            try:
                document = read(path)
                job, complaints = self._record(document)
            except FileNotFoundError:  # its retention ended meanwhile
                continue
            except OSError as error:
                bad.append(quarantined(SOURCE, f"{path.name}: {error.strerror}", ""))
                continue
            except (RunFileError, RowError) as error:
                bad.append(quarantined(SOURCE, str(error), ""))
                continue
            begun.append((document.get("start_time") or document["submit_time"], job))
            if complaints:
                bad.append(quarantined(SOURCE, f"{path.name}: {'; '.join(complaints)}", repr(job)))
        # Rows are numbered as they come, which tells runs of one second apart.
        found = [job for _, job in sorted(begun, key=itemgetter(0))]
        for at in range(0, len(found), _BATCH):
            yield Batch(tuple(found[at : at + _BATCH]), (), watermark, since)
        ended = {job.jobid for job in found if not job.state.live}
        mine = own(unfinished, RUN_ID)
        gone = tuple(jobid for jobid in mine if jobid not in ended and self._gone(jobid))
        graves = [path for path in self._listed(TOMBSTONE) if RUN_ID.fullmatch(path.stem)]
        deleted = tuple(each for each in map(_deleted, graves) if each is not None)
        yield Batch((), tuple(bad), str(now), now, gone, deleted=deleted)
        # Whoever took the batch has written it, or he would not have come back.
        for grave in graves:
            with contextlib.suppress(OSError):  # not ours: read again, it changes nothing
                grave.unlink()

    def _changed(self, since: int) -> list[Path]:
        changed = []
        for path in self._listed(".json"):
            with contextlib.suppress(FileNotFoundError):
                changed.append((path.lstat().st_mtime, path))
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
            node_list=str(node),
            array_jobid=str(document.get("workflow", "")),
            allocated_nodes=1,
            allocated_resources=_resources(decoded(document)),
            elapsed_seconds=decoded(document).duration_seconds,
            cpu_seconds=_sum(job.user_cpu_seconds, job.system_cpu_seconds),
        )
        return Decoded(job, complaints)

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
    """root deletes everybody's records, and who polls those of his own directory.

    A link, symbolic or not, is not of who owns its target.
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
    """Limits that have no field of their own."""
    speed = run.io_limit_bytes_per_second
    words = (f"IO {size(speed)}/s" if speed else "", f"CPUs {run.cpu_list}" if run.cpu_list else "")
    return ", ".join(filter(None, words))


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


ACCOUNTING = AccountingModule(LocalRunsOptions, build)
